package integration

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// If mount is interrupted while it resumes a session, the session stays as it was.
func TestInterruptedMountLeavesTheSession(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("interrupted session"))
	s := w.serve(gittest.ServerOptions{})
	m := w.bare(s.URL("r.git"))
	check(t, os.WriteFile(m.path("new"), []byte("new\n"), 0o644))
	w.unmount(m)
	stall := s.Inject(gittest.Fault{Kind: gittest.Stall})
	p := &waiting{Cmd: w.command(context.Background(), "mount", m.Remote, m.Dir, "--ref", "main")}
	p.Stdout, p.Stderr = &p.out, &p.out
	check(t, p.Start())
	w.until("the server stalls", func() bool { return stall.Hits() > 0 })
	p.Process.Signal(syscall.SIGINT)
	p.Wait()
	stall.Remove()
	if st := m.status(); st.State != control.StateUnmounted || st.Overlay.Changed != 1 {
		t.Errorf("status after the interrupt: got %+v", st)
	}
	again, _ := w.mountAt(m.Remote, m.Dir)
	w.wantFile(again.path("new"), "new\n")
	w.ok("unmount", m.Dir, "--discard", "--yes")
	w.nothingLeft(m.Dir)
}

// A directory that mount created is removed after the unmount, even if the process that created it was killed.
func TestMadeDirectoryGoesAfterAKill(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("made"))
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	dir := filepath.Join(w.place("made"), "deeper")
	m, _ := w.mountAt(url, dir)
	check(t, os.WriteFile(m.path("new"), []byte("new\n"), 0o644))
	w.killed()
	m, _ = w.mountAt(url, dir)
	w.wantFile(m.path("new"), "new\n")
	w.ok("unmount", dir)
	if exists(filepath.Dir(dir)) {
		t.Error("the directories still exist")
	}
}
