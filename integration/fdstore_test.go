package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/host/fdstore"
	"github.com/artifactfs/artifactfs/integration/harness/torture"
)

// service starts a process in a process group of its own, as the runtime of a container does. The function end kills
// the group.
func (w *world) service(args ...string) (cmd *exec.Cmd, end func()) {
	w.Helper()
	cmd = exec.Command(binary, args...)
	cmd.Dir = w.root
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	log := must[*os.File](w)(os.OpenFile(filepath.Join(w.root, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644))
	defer log.Close()
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	return cmd, func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		cmd.Wait()
	}
}

// With artifactfs keep in another container, the mounts outlive the container of the daemon.
func TestDescriptorStoreKeepsMounts(t *testing.T) {
	w := newWorld(t)
	socket := filepath.Join(w.root, "keep.sock")
	t.Cleanup(func() {
		if log, err := os.ReadFile(filepath.Join(w.root, "log")); err == nil && t.Failed() {
			t.Logf("log of the services:\n%s", log[max(0, len(log)-16<<10):])
		}
	})
	keep, endKeep := w.service("keep", "--fd-store", socket)
	t.Cleanup(func() { endKeep() })
	args := []string{"--state", w.state, "daemon", "--fd-store", socket, "--on-term", "leave"}
	cmd, endDaemon := w.service(args...)
	t.Cleanup(func() { endDaemon() })
	kept := func() (k fdstore.Kept) {
		all, _ := fdstore.List(t.Context(), socket)
		for _, one := range all {
			k = one
		}
		return k
	}
	w.until("the daemon has stored its socket", func() bool { return kept().Files > 0 })
	x := w.torture([]string{"names", "blocks", "deleted", "reader", "locks", "tail", "watch", "meter", "git"})
	stored := kept()
	if stored.Mounts != 1 || !stored.Running {
		t.Errorf("descriptor store: got %+v, want 1 mount of a running daemon", stored)
	}
	for i := range 6 {
		at := torture.Now()
		switch {
		case i%2 == 1: // the container is killed
			endDaemon()
		default: // the runtime stops the container, once when the descriptor store has just ended, and once at the same time
			if i == 2 {
				endKeep()
				time.Sleep(100 * time.Millisecond)
			}
			// At the same time means before the store has confirmed that it has everything. If it ended after that, no process
			// would have the descriptors.
			if i == 4 {
				check(t, keep.Process.Signal(syscall.SIGSTOP))
			}
			check(t, cmd.Process.Signal(syscall.SIGTERM))
			if i == 4 {
				endKeep()
			}
			if i > 0 {
				time.Sleep(500 * time.Millisecond)
				_, endKeep = w.service("keep", "--fd-store", socket)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("the daemon ended with %v", err)
			}
		}
		x.blows = append(x.blows, torture.Blow{At: at})
		cmd, endDaemon = w.service(args...)
		x.works("all processes of the daemon have ended")
		endKeep()
		keep, endKeep = w.service("keep", "--fd-store", socket)
		w.until("the daemon has stored everything again", func() bool { return kept().Files >= stored.Files })
		x.strike(1, syscall.SIGKILL, 100*time.Millisecond)
	}
	x.end()
	w.unmount(x.m)
	w.until("no descriptor of a mount is kept", func() bool { return kept().Mounts == 0 })

	// If store and daemon end together, the mount is dead. unmount detaches it, and the session is kept.
	again := w.mount(x.m.Remote)
	check(t, os.WriteFile(filepath.Join(again.Dir, "kept.txt"), []byte("x"), 0o644))
	endDaemon()
	endKeep()
	if _, err := os.Lstat(filepath.Join(again.Dir, "big")); err == nil {
		t.Error("a mount without any process that keeps it can be read")
	}
	out := must[[]byte](w)(exec.Command(binary, "--state", w.state, "unmount", again.Dir).CombinedOutput())
	if !strings.Contains(string(out), "unmounted "+again.Dir) {
		t.Errorf("unmount of a dead mount printed %s", out)
	}
	if at := mountsBelow(w.root); len(at) > 0 {
		t.Errorf("still mounted: %s", at)
	}
}
