package cluster

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

const (
	tableRestart = "restart of the node, uninstalling"
	few          = 10 // number of pods of these tests
)

// workers starts a few pods in which git works, writes a file in each, and returns their names. The sessions are pushed
// only when a pod is deleted.
func (w *world) workers(t *testing.T, prefix string, base, sessions *gittest.Server) (names []string) {
	t.Helper()
	var all strings.Builder
	for i := range few {
		p := pod{name: fmt.Sprintf("%s-%d", prefix, i), image: nodeImage, command: "sleep 1000000",
			attributes: map[string]string{
				"remote": base.URL("app.git"), "sessionRemote": sessions.URL("app.git"), "sessionPolicy": "interval=1h"}}
		all.WriteString(p.yaml())
		names = append(names, p.name)
	}
	check(t, w.Apply(all.String()))
	t.Cleanup(func() { w.remove(t, "app="+prefix) })
	check(t, w.WaitReady(t.Context(), "default", "app="+prefix, few))
	for _, name := range names {
		w.expect(t, name,
			[2]string{"cd /work && echo " + name +
				" >new && mv dir00 moved && git add new && sync new && git status --porcelain new", "A  new"})
	}
	return names
}

// worked tests that pods have the work that workers has begun, and that git works in them.
func (w *world) worked(t *testing.T, names []string) {
	t.Helper()
	for _, name := range names {
		w.expect(t, name,
			[2]string{"cd /work && cat new && ls moved | wc -l && git status --porcelain new && cat moved/* | wc -c | grep -c .",
				name + "\n50\nA  new\n1"})
	}
}

// TestNodeRestart ends every process of the node but the control plane, as a restart of the machine does.
func TestNodeRestart(t *testing.T) {
	w := start(t)
	base, sessions, _ := repositories(t)
	names := w.workers(t, "survivor", base, sessions)
	begin := time.Now()
	check(t, w.Restart())
	check(t, w.Wait(t.Context(), "all containers were started again", func() error {
		out, err := w.Kubectl("get", "pods", "-l", "app=survivor", "-o",
			`jsonpath={range .items[*]}{.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].ready}{"\n"}{end}`)
		if n := strings.Count(out, "1 true\n"); err == nil && n != few {
			err = fmt.Errorf("%d of %d containers run again:\n%s", n, few, out)
		}
		return err
	}))
	took := time.Since(begin)
	w.deployed(t)
	w.worked(t, names)
	if !t.Failed() {
		summary.add(t, tableRestart, "restart of the node: %d pods run again after %.0f s, with all their work; load %s", few,
			took.Seconds(), load())
	}
}

// TestUninstallWhilePodsRun removes the deployment while pods use volumes, and installs it again.
func TestUninstallWhilePodsRun(t *testing.T) {
	w := start(t)
	base, sessions, _ := repositories(t)
	t.Cleanup(func() { // also if the test fails
		check(t, w.Apply(deployment(t)))
		w.deployed(t)
	})
	names := w.workers(t, "orphan", base, sessions)
	_, err := w.Kubectl("delete", "daemonset", "-n", namespace, "--all")
	check(t, err)
	check(t, w.WaitGone(t.Context(), namespace, ""))
	check(t, w.Wait(t.Context(), "the volume is dead", func() error {
		if _, err := w.exec(names[0], "echo text >/work/other"); err == nil {
			return errors.New("a file was written")
		}
		return nil
	}))
	_, err = w.Kubectl("delete", "pod", "-l", "app=orphan", "--wait=false")
	check(t, err)
	time.Sleep(quiet) // longer than the grace period of the pods
	out, err := w.Kubectl("get", "pods", "-l", "app=orphan", "-o", "name")
	check(t, err)
	stay := strings.Count(out, "\n")
	begin := time.Now()
	check(t, w.Apply(deployment(t)))
	w.deployed(t)
	check(t, w.WaitGone(t.Context(), "default", "app=orphan"))
	check(t, w.Wait(t.Context(), "all volumes are gone", w.volumesLeft))
	took := time.Since(begin)
	names = nil
	for i := range few {
		p := pod{name: fmt.Sprintf("orphan-%d", i), image: nodeImage, command: "sleep 1000000", attributes: map[string]string{
			"remote": base.URL("app.git"), "sessionRemote": sessions.URL("app.git")}}
		check(t, w.Apply(p.yaml()))
		names = append(names, p.name)
	}
	check(t, w.WaitReady(t.Context(), "default", "app=orphan", few))
	w.worked(t, names)
	if stay != few {
		t.Error(errors.New("pods whose volumes no driver could unmount are gone"))
	}
	if !t.Failed() {
		summary.add(t, tableRestart,
			"uninstalled while pods run: %d of %d deleted pods stay in Terminating; gone %.0f s after the next "+
				"installation; new pods have all their work; load %s", stay, few, took.Seconds(), load())
	}
}
