package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// parentSession starts a daemon, and serves a repository until the end of the test. It returns the request for a mount
// of the repository with the session "work".
func parentSession(t *testing.T) (*testKeeper, control.MountRequest, *gittest.Server) {
	t.Helper()
	k := newKeep(t)
	k.start()
	k.await()
	root := t.TempDir()
	sample(t, filepath.Join(root, "r.git"))
	server, err := gittest.Serve(gittest.ServerOptions{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	r := k.request(server.URL("r.git"), k.dir("m"))
	r.Session, r.Prefetch, r.History, r.Wait = "work", control.PrefetchNone, control.HistoryNone, control.WaitTree
	return k, r, server
}

// TestForksShareEverything checks that a fork sends no request, copies no contents, starts with exactly the files and
// git state of the checkpoint, and is then independent.
func TestForksShareEverything(t *testing.T) {
	t.Parallel()
	k, r, server := parentSession(t)
	r.SessionOptions.Policy = control.PolicyOff
	k.mount(r)
	k.sh(r.Dir,
		"for i in 1 2 3 4 5; do head -c 100000 /dev/urandom >large$i; done; echo staged >dir0/file0.txt; git add dir0/file0.txt large1; rm dir1/file1.txt")
	p := k.checkpoint(r.Dir)
	before := k.sh(r.Dir, look)
	large := filepath.Join("session.git", "objects", "pack")
	server.Log().Reset()
	var forks []control.MountRequest
	for i := range 6 {
		f := r
		f.Dir, f.Session = k.dir(fmt.Sprint("f", i)), fmt.Sprint("fork", i)
		if i < 2 {
			f.SessionOptions.Policy = control.PolicyIdle
		}
		if _, err := k.client.Fork(t.Context(), control.ForkRequest{Of: "work", ID: p.ID, Mount: f}, nil); err != nil {
			t.Fatal(err)
		}
		if text := k.sh(f.Dir,
			"ls large1 dir0/file0.txt; ls dir1/file1.txt 2>/dev/null || echo gone"); text != "dir0/file0.txt\nlarge1\ngone\n" {
			t.Errorf("files of fork %d: got %q", i, text)
		}
		forks = append(forks, f)
	}
	if all := server.Log().Requests(); len(all) > 0 {
		t.Errorf("forks sent requests:\n%s", server.Log())
	}
	packs, err := os.ReadDir(filepath.Join(k.state, "mounts", "work", large))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range forks {
		for _, p := range packs {
			if !strings.HasSuffix(p.Name(), ".pack") {
				continue
			}
			theirs, err := os.Stat(filepath.Join(k.state, "mounts", "work", large, p.Name()))
			ours, err2 := os.Stat(filepath.Join(k.state, "mounts", f.Session, large, p.Name()))
			if err != nil || err2 != nil || theirs.Sys().(*syscall.Stat_t).Ino != ours.Sys().(*syscall.Stat_t).Ino {
				t.Errorf("session %s does not share the pack %s with its parent: %v %v", f.Session, p.Name(), err, err2)
			}
		}
	}

	// Two forks are unmounted immediately: one without changes, and one with a change that is made before git is ready.
	k.sh(forks[1].Dir, "echo mine >mine")
	for _, f := range forks[:2] {
		k.unmount(f.Dir)
	}
	if text := k.said(); strings.Contains(text, "warn") || strings.Contains(text, "error") {
		t.Errorf("the log has warnings or errors:\n%s", text)
	}
	k.mount(forks[1])
	if text := k.sh(forks[1].Dir, "cat mine; git status --porcelain mine; rm mine"); text != "mine\n?? mine\n" {
		t.Errorf("file that was written before git was ready: got %q", text)
	}
	if checkpoints, err := k.client.SessionLog(t.Context(), control.SessionLogRequest{Of: "fork1"}); err != nil ||
		len(checkpoints.Checkpoints) == 0 {
		t.Errorf("session log of the fork with a change: got %+v, %v, want a checkpoint", checkpoints, err)
	}
	for _, f := range forks[1:] {
		if after := k.sh(f.Dir, look); after != before {
			t.Errorf("state of %s differs from the parent:\n%s", f.Session, diffText(t, before, after))
		}
	}

	// The daemon is killed before git has read the fork's git directory.
	f := r
	f.Dir, f.Session = k.dir("last"), "last"
	if _, err := k.client.Fork(t.Context(), control.ForkRequest{Of: "work", ID: p.ID, Mount: f}, nil); err != nil {
		t.Fatal(err)
	}
	k.kill()
	k.again()
	if after := k.sh(f.Dir, look); after != before {
		t.Errorf("state of a fork after a kill differs:\n%s", diffText(t, before, after))
	}
	k.sh(f.Dir, "git fsck --connectivity-only")
	for _, f := range append(forks[1:], f, r) {
		k.unmount(f.Dir)
	}
}

// A session that is created while a fork with the same name is prepared is neither mounted nor changed by the fork.
func TestForkSparesASessionThatAppears(t *testing.T) {
	t.Parallel()
	k, r, _ := parentSession(t)
	k.mount(r)
	k.sh(r.Dir, "echo parent >mine")
	p := k.checkpoint(r.Dir)
	other := r
	other.Dir, other.Session = k.dir("x"), "x"
	k.mount(other)
	k.sh(other.Dir, "echo other >mine")
	k.unmount(other.Dir)

	// The record appears after the daemon has looked for it, while the fork waits for the lock of all homes.
	record := filepath.Join(k.state, "mounts", "x", "session.json")
	lock, err := os.OpenFile(filepath.Join(k.state, "mounts.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		defer lock.Close()
		err = errors.Join(syscall.Flock(int(lock.Fd()), syscall.LOCK_EX), os.Rename(record, record+".hidden"))
	}
	if err != nil {
		t.Fatal(err)
	}
	f := r
	f.Dir, f.Session = k.dir("f"), "x"
	_, err = k.client.Fork(t.Context(), control.ForkRequest{Of: "work", ID: p.ID, Mount: f}, func(p control.Progress) {
		if p.Phase != "connect" {
			return
		}
		if err := errors.Join(os.Rename(record+".hidden", record), lock.Close()); err != nil {
			t.Error(err)
		}
	})
	var failure *control.Error
	if !errors.As(err, &failure) || failure.ErrorCode() != control.CodeConflict {
		t.Errorf("fork: got %v, want a conflict", err)
	}
	k.mount(other)
	if text := k.sh(other.Dir, "cat mine"); text != "other\n" {
		t.Errorf("file of the session: got %q", text)
	}
	k.unmount(other.Dir)
	k.unmount(r.Dir)
}

// A client repeats its request if the daemon ends before it has received the reply.
func TestForkIsRepeated(t *testing.T) {
	t.Parallel()
	k, r, _ := parentSession(t)
	r.SessionOptions.Policy = control.PolicyOff
	k.mount(r)
	k.sh(r.Dir, "echo first >mine")
	f := r
	f.Dir, f.Session, f.Nonce = k.dir("f"), "fork", "nonce"
	fork := func() control.MountReply {
		t.Helper()
		reply, err := k.client.Fork(t.Context(), control.ForkRequest{Of: "work", Mount: f}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return reply
	}
	first := fork()
	k.sh(r.Dir, "echo second >mine")
	for range 2 {
		if got := fork(); got.ID != first.ID || got.Commit != first.Commit || got.Dir != f.Dir {
			t.Errorf("repeated fork: got %+v, want %+v", got, first)
		}
		k.again()
	}
	log, err := k.client.SessionLog(t.Context(), control.SessionLogRequest{Of: "work"})
	if err != nil || len(log.Checkpoints) != 1 {
		t.Errorf("checkpoints of the parent: got %+v, %v, want those of one fork", log, err)
	}
	if text := k.sh(f.Dir, "cat mine"); text != "first\n" {
		t.Errorf("file of the fork: got %q", text)
	}
	f.Nonce = "other"
	if _, err := k.client.Fork(t.Context(), control.ForkRequest{Of: "work", Mount: f}, nil); err == nil {
		t.Error("another request for the same fork succeeded")
	}
	k.unmount(f.Dir)
	k.unmount(r.Dir)
}
