package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/integration/harness/cluster"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// keepAndDaemonKilled kills the only two processes that have the devices of the mounts. The mounts are lost. It then
// tests that the pods can be deleted, and that new pods of the same names have all that was written.
func (w *world) keepAndDaemonKilled(t *testing.T, table string, pods []string) {
	t.Helper()
	// The containers have been restarted, so the kubelet would wait before it restarts them again.
	for _, app := range []string{"artifactfs-node", "artifactfs-keep"} {
		check(t, w.roll(app))
	}
	w.deployed(t)
	begin := time.Now()
	worker, supervisor, err := w.daemonPIDs()
	check(t, err)
	name, err := w.podOf("artifactfs-keep")
	check(t, err)
	keep, err := w.ContainerPID(namespace, name, "keep")
	check(t, err)
	check(t, w.killDaemon(keep, supervisor, worker))
	w.deployed(t)
	recovered := time.Since(begin)
	time.Sleep(quiet)
	m := measure(t, pods, begin, time.Now())
	if m.failures == 0 {
		t.Error("keep and daemon killed together: no operation failed; the test does not kill what has the mounts")
	}
	summary.add(t, table, "%-36s %s; %.1f s until all parts run again; load %s", "keep and daemon killed together", m,
		recovered.Seconds(), load())

	// A container that is started again in the same pod gets the volume when the kubelet has published it again.
	begin = time.Now()
	check(t, w.Wait(t.Context(), "the kubelet has published the volume again", func() error {
		return w.mountWorks(pods[0])
	}))
	published := time.Since(begin)
	pid, err := w.ContainerPID("default", pods[0], "main")
	check(t, err)
	check(t, unix.Kill(pid, unix.SIGKILL))
	restarted := time.Now()
	check(t, w.Wait(t.Context(), "the meter works in the restarted container", func() error {
		all := operations(t, pods[0])
		if last := all[len(all)-1]; last.failure != "" || last.end.Before(restarted) {
			return errors.New("last operation: " + last.failure)
		}
		return nil
	}))
	summary.add(t, table,
		"%-36s the kubelet publishes the volume again after %.0f s; a container works %.1f s after its restart",
		"  the same pods after it", published.Seconds(), time.Since(restarted).Seconds())

	begin = time.Now()
	w.remove(t, "app=crowd")
	check(t, w.Wait(t.Context(), "all volumes are gone", w.volumesLeft))
	summary.add(t, table, "%-36s %d pods are gone %.1f s after their deletion; load %s", "  deletion", len(pods),
		time.Since(begin).Seconds(), load())
}

// mountWorks returns an error if the volume of a pod, on the node, cannot be read.
func (w *world) mountWorks(pod string) error {
	uid, err := w.Kubectl("get", "pod", pod, "-o", "jsonpath={.metadata.uid}")
	if err != nil {
		return err
	}
	out, err := exec.Command("ls", cluster.KubeletRoot+"/pods/"+uid+
		"/volumes/kubernetes.io~csi/work/mount/meter").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return err
}

// resumed tests that pods have the files that earlier pods of the same names have written, and returns the number of
// files.
func (w *world) resumed(t *testing.T, pods []string, want map[string]map[string]string) (files int) {
	t.Helper()
	for _, name := range pods {
		out, err := w.exec(name, "cd /work/meter && sha256sum f*")
		check(t, err)
		got := map[string]string{}
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) == 2 {
				got[f[1]] = f[0]
			}
		}
		for file, sum := range want[name] {
			if got[file] != sum {
				t.Errorf("pod %s: file %s has the hash %s, want %s", name, file, got[file], sum)
			}
			files++
		}
	}
	return files
}

// resume starts pods of the same names again. Their command only sleeps.
func (w *world) resume(t *testing.T, pods []string, base, sessions string) {
	t.Helper()
	var all strings.Builder
	for _, name := range pods {
		all.WriteString(pod{name: name, command: "sleep 1000000",
			attributes: map[string]string{"remote": base, "sessionRemote": sessions}}.yaml())
	}
	check(t, w.Apply(all.String()))
	check(t, w.WaitReady(t.Context(), "default", "app=crowd", len(pods)))
}

// allWritten returns the files that the meters have written.
func allWritten(t *testing.T, pods []string) map[string]map[string]string {
	all := map[string]map[string]string{}
	for _, name := range pods {
		all[name] = written(t, name)
	}
	return all
}

// drained drains the node while the session remote is down, and while it is up.
func (w *world) drained(t *testing.T, pods []string, base, sessions *gittest.Server, repo string) {
	const table = "kubectl drain"
	baseURL, sessionsURL := base.URL("app.git"), sessions.URL("app.git")
	want := allWritten(t, pods)
	w.resume(t, pods, baseURL, sessionsURL)
	files := w.resumed(t, pods, want)
	summary.add(t, table,
		"%d new pods of the same names resume: all %d files that were written before keep and daemon were killed",
		len(pods), files)
	w.remove(t, "app=crowd")

	for _, down := range []bool{false, true} {
		pods = w.meters(t, "crowd", baseURL, sessionsURL, len(pods))
		if down {
			sessions.Down()
		}
		begin := time.Now()
		drain := make(chan error, 1)
		go func() {
			_, err := w.Kubectl("drain", cluster.Node, "--ignore-daemonsets", "--delete-emptydir-data", "--force",
				"--timeout=170s")
			drain <- err
		}()
		note := "session remote up"
		if down {
			time.Sleep(20 * time.Second)
			reason := w.unpublishError(t)
			out, err := w.Kubectl("get", "pods", "-l", "app=crowd", "-o",
				`jsonpath={range .items[*]}{.metadata.name} {.metadata.deletionTimestamp}{"\n"}{end}`)
			check(t, err)
			if n := strings.Count(out, "Z\n"); n != len(pods) {
				t.Errorf("%d pods are being deleted while the session remote is down, want %d:\n%s", n, len(pods), out)
			}
			summary.add(t, table, "session remote down: after %.0f s, %d of %d pods are Terminating; the driver logs: %s",
				time.Since(begin).Seconds(), strings.Count(out, "Z\n"), len(pods), reason)
			check(t, sessions.Up())
			begin, note = time.Now(), "session remote up again"
		}
		check(t, <-drain)
		check(t, w.WaitGone(t.Context(), "default", "app=crowd"))
		took := time.Since(begin)
		check(t, w.Wait(t.Context(), "all volumes are gone", w.volumesLeft))
		files := checkpoints(t, repo, pods)
		summary.add(t, table, "%s: %d pods drained in %.1f s; newest checkpoints below refs/afs/j have all %d files; load %s",
			note, len(pods), took.Seconds(), files, load())
		_, err := w.Kubectl("uncordon", cluster.Node)
		check(t, err)
	}
}

// unpublishError waits until the driver has logged why it does not unmount a volume, and returns the reason. Kubernetes
// reports it nowhere else.
func (w *world) unpublishError(t *testing.T) (reason string) {
	t.Helper()
	check(t, w.Wait(t.Context(), "the driver has logged an error of NodeUnpublishVolume", func() error {
		out, err := w.Kubectl("logs", "-n", namespace, "-l", "app=artifactfs-node", "-c", "csi", "--tail=1000")
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			var entry struct{ Call, Error string }
			if json.Unmarshal([]byte(line), &entry) == nil && entry.Call == "NodeUnpublishVolume" && entry.Error != "" {
				reason = entry.Error
				return nil
			}
		}
		return errors.New("no such line")
	}))
	return reason
}

// checkpoints tests that the newest checkpoint of each pod's session, on the session remote, has the files that the
// meter has written. It returns their number.
func checkpoints(t *testing.T, repo string, pods []string) (files int) {
	t.Helper()
	for _, name := range pods {
		refs := strings.Fields(gittest.Must(t, repo, "for-each-ref", "--sort=refname", "--format=%(refname)",
			"refs/afs/j/default-"+name+"-work/"))
		if len(refs) == 0 {
			t.Errorf("pod %s: no checkpoint of its session is on the session remote", name)
			continue
		}
		newest := refs[len(refs)-1]
		want := written(t, name)
		var ids, names []string
		for line := range strings.Lines(gittest.Must(t, repo, "ls-tree", newest, "meter/")) {
			meta, path, _ := strings.Cut(strings.TrimSpace(line), "\t")
			ids, names = append(ids, strings.Fields(meta)[2]), append(names, strings.TrimPrefix(path, "meter/"))
		}
		got := map[string]string{}
		for i, content := range blobs(t, repo, ids) {
			sum := sha256.Sum256(content)
			got[names[i]] = hex.EncodeToString(sum[:])
		}
		for file, sum := range want {
			if files++; got[file] != sum {
				t.Errorf("pod %s: file %s in %s has the hash %q, want %s", name, file, newest, got[file], sum)
			}
		}
	}
	return files
}

// blobs returns the contents of blobs.
func blobs(t *testing.T, repo string, ids []string) (all [][]byte) {
	t.Helper()
	cmd := exec.Command("git", "cat-file", "--batch")
	cmd.Dir, cmd.Env, cmd.Stdin = repo, gittest.Env(), strings.NewReader(strings.Join(ids, "\n")+"\n")
	out, err := cmd.Output()
	check(t, err)
	r := strings.NewReader(string(out))
	for range ids {
		var id, kind string
		var size int
		if _, err := fmt.Fscanf(r, "%s %s %d\n", &id, &kind, &size); err != nil {
			t.Fatalf("read blob: %v", err)
		}
		content := make([]byte, size+1)
		_, err := io.ReadFull(r, content)
		check(t, err)
		all = append(all, content[:size])
	}
	return slices.Clip(all)
}
