package writeback

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
)

func TestRefusals(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newTestRemote(t, "http", object.SHA1, p.Origin.Path)
	hook := func(name, script string) func() {
		path := filepath.Join(to.dir, "hooks", name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
		return func() { os.Remove(path) }
	}
	p.copier()
	q := p.queue(to, QueueOptions{})
	// If the server refuses a protected branch, checkpoints are pushed without delay.
	remove := hook("update", `test "$1" != refs/heads/main || { echo main is protected >&2; exit 1; }`)
	one := p.Commit("a", "one")
	await.Until(t, "the copier has copied the ref", func() bool { return p.InSession("refs/heads/main") == one.String() })
	checkpoint := p.Checkpoint("manual")
	err := syncAll(t, q)
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "protected") {
		t.Errorf("sync of a protected branch: got %v, want ErrRefused with the reason", err)
	}
	if st := q.Status(); !q.Has(checkpoint) || len(st.Refused) != 1 || st.Pending != 1 {
		t.Errorf("status: got %+v, want the checkpoint pushed, and one refused and pending ref", st)
	}
	remove()
	wantSync(t, q)
	// The server refuses all refs.
	remove = hook("pre-receive", "echo closed today >&2; exit 1")
	two := p.Commit("a", "two")
	p.Carried(two)
	if err := syncAll(t, q); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "closed today") {
		t.Errorf("sync while all updates are refused: got %v, want ErrRefused with the reason", err)
	}
	remove()
	wantSync(t, q)
	if got := to.ref("refs/heads/main"); got != two.String() {
		t.Errorf("main on the session remote: got %s", got)
	}
	// The server refuses non-fast-forward updates, so the branch of this session is pushed to its diverged name.
	run(t, to.dir, "", "config", "receive.denyNonFastForwards", "true")
	three := p.Commit("a", "three", "--amend")
	p.Carried(three)
	wantSync(t, q)
	if st := q.Status(); len(st.Diverged) != 1 {
		t.Errorf("diverged refs where rewriting is forbidden: got %+v, want refs/heads/main", st.Diverged)
	}
	if got := to.ref(session.DivergedRef(sessionName, "refs/heads/main")); got != three.String() ||
		to.ref("refs/heads/main") != two.String() {
		t.Errorf("our branch on the session remote: got %s", got)
	}
	run(t, to.dir, "", "config", "receive.denyNonFastForwards", "false")
	q = p.reopen(q, to, QueueOptions{})
	wantSync(t, q)
	// The server also refuses deletions.
	run(t, to.dir, "", "config", "receive.denyDeletes", "true")
	run(t, p.Work, "", "branch", "gone", "HEAD")
	await.Until(t, "the branch is pushed", func() bool { return to.ref("refs/heads/gone") != "" })
	run(t, p.Work, "", "branch", "-D", "gone")
	await.Until(t, "the copier has removed the branch", func() bool { return p.InSession("refs/heads/gone") == "" })
	wantSync(t, q)
	// The server refuses authentication.
	deny := to.server.Inject(gittest.Fault{Kind: gittest.RequireAuth, User: "u", Pass: "secret"})
	four := p.Commit("a", "four")
	await.Until(t, "the copier has copied the ref", func() bool { return p.InSession("refs/heads/main") == four.String() })
	if err := syncAll(t, q); !errors.Is(err, transport.ErrAuth) {
		t.Errorf("sync without a password: got %v, want transport.ErrAuth", err)
	}
	if st := q.Status(); st.Pending == 0 || st.Failure == nil {
		t.Errorf("status after the failed authentication: got %+v, want pending refs and a failure", st)
	}
	deny.Remove()
	wantSync(t, q)
}

// TestOutage checks that all refs remain pending while the session remote is unreachable, and are then pushed once and
// in order.
func TestOutage(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newTestRemote(t, "http", object.SHA1, p.Origin.Path)
	p.copier()
	q := p.queue(to, QueueOptions{})
	run(t, to.dir, "", "config", "core.logAllRefUpdates", "always")
	to.server.Down()
	var last object.ID
	var checkpoints []session.Checkpoint
	for i := range 10 {
		last = p.Commit("a", fmt.Sprint(i))
		p.Carried(last)
		checkpoints = append(checkpoints, p.Checkpoint("idle"))
	}
	awaitFailure(t, q)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := q.Sync(ctx, nil); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, transport.ErrUnreachable) {
		t.Errorf("sync without a remote: got %v", err)
	}
	q.Close() // pending refs must survive a new process
	if err := to.server.Up(); err != nil {
		t.Fatal(err)
	}
	q = p.queue(to, QueueOptions{})
	wantSync(t, q)
	if to.ref("refs/heads/main") != last.String() || !q.Has(checkpoints[9]) {
		t.Error("not everything was pushed")
	}
	chain := strings.Fields(run(t, to.dir, "", "rev-list", "--first-parent", "-10",
		session.SegmentRef(sessionName, "main", 1)))
	for i, id := range chain {
		if id != checkpoints[9-i].Commit.String() {
			t.Errorf("checkpoint %d from the end: got %s", i, id)
		}
	}
	run(t, to.dir, "", "fsck", "--strict")
}

// TestFullRemote checks that a session remote with a full disk causes a failure in the status, and gets everything once
// it has space.
func TestFullRemote(t *testing.T) {
	p := newPlace(t, object.SHA1)
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=2m", "none", dir).CombinedOutput(); err != nil {
		t.Skipf("mount tmpfs: %v: %s", err, out)
	}
	t.Cleanup(func() { exec.Command("umount", "-l", dir).Run() })
	to := &testRemote{t: t, dir: filepath.Join(dir, "far"), url: filepath.Join(dir, "far")}
	run(t, "/", "", "clone", "-q", "--bare", "--no-hardlinks", p.Origin.Path, to.dir)
	to.own()
	p.copier()
	q := p.queue(to, QueueOptions{})
	one := p.Commit("a", "one")
	p.Carried(one)
	wantSync(t, q)
	noise := make([]byte, 4<<20)
	rand.Read(noise)
	two := p.Commit("noise", string(noise))
	p.Carried(two)
	awaitFailure(t, q)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := q.Sync(ctx, nil); err == nil {
		t.Error("sync to a full disk succeeded")
	}
	if st := q.Status(); st.Failure == nil || !strings.Contains(st.Failure.Error(), "No space") || st.Pending == 0 {
		t.Errorf("status with a full disk: got %+v, want pending refs and the failure \"No space\"", st)
	}
	if out, err := exec.Command("mount", "-o", "remount,size=64m", dir).CombinedOutput(); err != nil {
		t.Fatalf("remount: %v: %s", err, out)
	}
	wantSync(t, q)
	if got := to.ref("refs/heads/main"); got != two.String() {
		t.Errorf("main on the session remote: got %s, want %s", got, two)
	}
	run(t, to.dir, "", "fsck", "--strict")
}
