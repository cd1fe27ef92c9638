package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/integration/harness/cluster"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// quiet is the time after a disturbance that still belongs to it.
const quiet = 6 * time.Second

// crowd is the number of pods with meters: $AFS_CLUSTER_PODS, or 50.
var crowd = func() int {
	if n, err := strconv.Atoi(os.Getenv("AFS_CLUSTER_PODS")); err == nil && n > 0 {
		return n
	}
	return 50
}()

// meters starts pods with meters, and waits until all have begun. base and sessions are URLs.
func (w *world) meters(t *testing.T, prefix, base, sessions string, count int) (names []string) {
	t.Helper()
	var all strings.Builder
	for i := range count {
		p := pod{name: fmt.Sprintf("%s-%02d", prefix, i),
			attributes: map[string]string{"remote": base, "sessionRemote": sessions}}
		p.command = "exec meter -dir /work -log /meter/" + p.name + ".log"
		all.WriteString(strings.Replace(p.yaml(), "terminationGracePeriodSeconds: 2", "terminationGracePeriodSeconds: 20", 1))
		names = append(names, p.name)
	}
	check(t, w.Apply(all.String()))
	check(t, w.WaitReady(t.Context(), "default", "app="+prefix, count))
	begun := time.Now()
	check(t, w.Wait(t.Context(), "all meters work", func() error {
		for _, name := range names {
			found, _ := filepath.Glob(filepath.Join(meterDir, name+".log"))
			if len(found) == 0 {
				return errors.New("no record of " + name)
			}
			if o := operations(t, name); len(o) == 0 || o[len(o)-1].end.Before(begun) {
				return errors.New("no new record of " + name)
			}
		}
		return nil
	}))
	return names
}

// repositories makes a repository with files for meters, and a session remote that has its history, and serves both.
func repositories(t *testing.T) (base, sessions *gittest.Server, dir string) {
	t.Helper()
	dir = t.TempDir()
	hashedRepo(t, filepath.Join(dir, "base/app.git"), 1000)
	gittest.Must(t, dir, "clone", "-q", "--bare", "base/app.git", "sessions/app.git")
	gittest.Must(t, filepath.Join(dir, "sessions/app.git"), "config", "http.receivepack", "true")
	return serve(t, gittest.ServerOptions{Root: filepath.Join(dir, "base")}),
		serve(t, gittest.ServerOptions{Root: filepath.Join(dir, "sessions")}), dir
}

// daemonPIDs returns the processes of the daemon of the node.
func (w *world) daemonPIDs() (worker, supervisor int, err error) {
	out, err := w.afs("list", "--json")
	if err != nil {
		return 0, 0, err
	}
	var s struct {
		Daemon struct{ PID, Supervisor int }
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		return 0, 0, err
	}
	// The daemon reports the numbers of its own PID namespace. The tests kill these processes.
	for _, pid := range []int{s.Daemon.PID, s.Daemon.Supervisor} {
		if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err != nil ||
			strings.TrimSpace(string(name)) != "artifactfs" {
			return 0, 0, fmt.Errorf("process %d of the daemon has the name %q (%v)", pid, name, err)
		}
	}
	return s.Daemon.PID, s.Daemon.Supervisor, nil
}

// podOf returns the name of the only pod of a daemon set.
func (w *world) podOf(app string) (string, error) {
	out, err := w.Kubectl("get", "pod", "-n", namespace, "-l", "app="+app, "-o", "jsonpath={.items[*].metadata.name}")
	if err == nil && (out == "" || strings.Contains(out, " ")) {
		err = fmt.Errorf("pods of %s: %q, want one", app, out)
	}
	return out, err
}

// killContainer kills the first process of a container of the deployment, and waits until the container runs again.
func (w *world) killContainer(app, container string) error {
	name, err := w.podOf(app)
	if err != nil {
		return err
	}
	pid, err := w.ContainerPID(namespace, name, container)
	if err != nil {
		return err
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return err
	}
	return w.Wait(context.Background(), "container "+container+" runs again", func() error {
		now, err := w.ContainerPID(namespace, name, container)
		if err == nil && now == pid {
			err = errors.New("its process was not replaced")
		}
		return err
	})
}

// killDaemon kills processes of the daemon, and waits until another worker serves.
func (w *world) killDaemon(pids ...int) error {
	worker, _, err := w.daemonPIDs()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			return err
		}
	}
	return w.Wait(context.Background(), "another worker serves", func() error {
		now, _, err := w.daemonPIDs()
		if err == nil && now == worker {
			err = errors.New("the worker was not replaced")
		}
		return err
	})
}

// roll changes an annotation of the pods of daemon sets, and waits until their pods are replaced.
func (w *world) roll(apps ...string) error {
	patch := fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"test":"%d"}}}}}`, time.Now().UnixNano())
	if _, err := w.Kubectl(append([]string{"patch", "daemonset", "-n", namespace, "-p", patch}, apps...)...); err != nil {
		return err
	}
	for _, app := range apps {
		if _, err := w.Kubectl("rollout", "status", "daemonset", "-n", namespace, app, "--timeout=120s"); err != nil {
			return err
		}
		if err := w.Wait(context.Background(), "the old pod is gone", func() error {
			_, err := w.podOf(app)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// disturbance is something that happens on a node.
type disturbance struct {
	name string
	do   func() error
}

func (w *world) disturbances() []disturbance {
	node := func(args ...string) func() error {
		return func() error {
			_, err := w.Kubectl(append([]string{"delete", "pod", "-n", namespace, "-l", "app=artifactfs-node"}, args...)...)
			return err
		}
	}
	restart := func(c cluster.Component) func() error {
		return func() error {
			if err := w.Kill(c); err != nil {
				return err
			}
			return w.Launch(c)
		}
	}
	supervisor := func() error {
		_, supervisor, err := w.daemonPIDs()
		if err != nil {
			return err
		}
		return w.killDaemon(supervisor)
	}
	return []disturbance{
		{"nothing", func() error { time.Sleep(10 * time.Second); return nil }},
		{"worker killed", func() error {
			worker, _, err := w.daemonPIDs()
			if err != nil {
				return err
			}
			return w.killDaemon(worker)
		}},
		{"supervisor killed", supervisor},
		// The kubelet would restart a container that ends again only after a pause of 10 s.
		{"supervisor killed again", supervisor},
		{"keep killed", func() error { return w.killContainer("artifactfs-keep", "keep") }},
		{"csi killed", func() error { return w.killContainer("artifactfs-node", "csi") }},
		{"kubelet killed", restart(cluster.Kubelet)},
		{"containerd killed", restart(cluster.Containerd)},
		{"driver pod deleted", node()},
		{"driver pod deleted by force", node("--force", "--grace-period=0")},
		{"rolling update of artifactfs-node", func() error { return w.roll("artifactfs-node") }},
		{"rolling update of artifactfs-keep", func() error { return w.roll("artifactfs-keep") }},
		{"rolling update of both at once", func() error { return w.roll("artifactfs-keep", "artifactfs-node") }},
	}
}

// TestDisturbances is 50 pods with volumes while parts of the node are replaced and killed.
func TestDisturbances(t *testing.T) {
	w := start(t)
	base, sessions, dir := repositories(t)
	begun := time.Now()
	pods := w.meters(t, "crowd", base.URL("app.git"), sessions.URL("app.git"), crowd)
	table := fmt.Sprintf("%d pods with a volume each (4 operations a second in each pod)", crowd)
	summary.add(t, table, "%-36s %.1f s from creation until all of them work, load %s", "start",
		time.Since(begun).Seconds(), load())
	t.Cleanup(func() { w.remove(t, "app=crowd") })
	for _, d := range w.disturbances() {
		t.Run(d.name, func(t *testing.T) { w.disturb(t, table, d, pods) })
	}
	t.Run("keep and daemon killed together", func(t *testing.T) { w.keepAndDaemonKilled(t, table, pods) })
	t.Run("drain", func(t *testing.T) { w.drained(t, pods, base, sessions, filepath.Join(dir, "sessions/app.git")) })
}

// disturb does something to the node while pods work, and tests that no operation of theirs fails.
func (w *world) disturb(t *testing.T, table string, d disturbance, pods []string) {
	begin := time.Now()
	check(t, d.do())
	w.deployed(t)
	recovered := time.Since(begin)
	time.Sleep(quiet)
	end := time.Now()
	m := measure(t, pods, begin, end)
	summary.add(t, table, "%-36s %s; %.1f s until all parts run again; load %s", d.name, m, recovered.Seconds(), load())
	if m.failures > 0 {
		t.Errorf("%s: %d operations failed, want 0", d.name, m.failures)
	}
	if m := measure(t, pods, end.Add(-quiet), end); m.gap >= quiet {
		t.Errorf("%s: pod %s has done nothing for %v", d.name, m.slowest, m.gap)
	}
}
