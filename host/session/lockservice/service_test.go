package lockservice_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/remotes"
	"github.com/artifactfs/artifactfs/host/session/catalog"
	"github.com/artifactfs/artifactfs/host/session/lockservice"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/host/statedir/statedirtest"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// unmounted represents a daemon without mounts.
type unmounted struct{}

func (unmounted) Mounted(context.Context, string) (*catalog.Mounted, error) { return nil, nil }

func (unmounted) Writable() []*catalog.Mounted { return nil }

// world is a daemon that has the sessions "one" and "two", which use the same session remote.
type world struct {
	lockservice.Locks
	t   *testing.T
	far string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	h := statedirtest.New(t)
	w := &world{t: t, far: filepath.Join(t.TempDir(), "far.git")}
	w.Catalog = &catalog.Catalog{State: h.State, Log: zap.NewNop(), Homes: h, Mounts: unmounted{},
		Remotes: remotes.New(h.State, "", zap.NewNop(), nil, nil)}
	gittest.Must(t, "/", "init", "-q", "--bare", w.far)
	for name, remote := range map[string]string{"one": w.far, "two": w.far, "own": control.RemoteEmbedded,
		"lone": control.RemoteNone} {
		statedirtest.Add(t, h, name, 0, true)
		dir := filepath.Join(h.Dir(), name)
		r, err := statedir.ReadRecord(dir)
		if err == nil {
			r.Carried = control.SessionOptions{Remote: remote}
			err = r.Save(dir)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w *world) ask(r control.SessionLocksRequest) control.SessionLocksReply {
	w.t.Helper()
	reply, err := w.SessionLocks(w.t.Context(), r)
	if err != nil {
		w.t.Fatal(err)
	}
	return reply
}

// refused sends a request that must fail with an error code, and returns the error.
func (w *world) refused(r control.SessionLocksRequest, code control.ErrorCode) *control.Error {
	w.t.Helper()
	_, err := w.SessionLocks(w.t.Context(), r)
	var e *control.Error
	if !errors.As(err, &e) || e.Kind != code {
		w.t.Fatalf("%s %q of session %q: got %v, want an error with the code %s", r.Op, r.Patterns, r.Of, err, code)
	}
	return e
}

func lock(of string, patterns ...string) control.SessionLocksRequest {
	return control.SessionLocksRequest{Of: of, Op: control.LockAcquire, Patterns: patterns, Actor: "ann",
		Reason: "a rewrite"}
}

func unlock(of string, patterns ...string) control.SessionLocksRequest {
	return control.SessionLocksRequest{Of: of, Op: control.LockRelease, Patterns: patterns, Actor: "bob"}
}

func list(of string) control.SessionLocksRequest {
	return control.SessionLocksRequest{Of: of, Op: control.LockList}
}

func TestLockIsSeenByOtherSessions(t *testing.T) {
	w := newWorld(t)
	if reply := w.ask(list("one")); len(reply.Locks) != 0 || reply.Mode != "refuse" {
		t.Errorf("locks of an empty session remote: got %+v, want none, and the mode refuse", reply)
	}
	r := lock("one", "src", "doc/*.md")
	r.TTL = 10 * time.Minute
	done := w.ask(r).Done
	if len(done) != 2 || done[0].Session != "one" || done[0].Actor != "ann" || done[0].Reason != "a rewrite" ||
		!done[0].Mine {
		t.Fatalf("lock: got %+v, want two locks of ann in session one", done)
	}
	if left := time.Until(done[0].Expires); left > r.TTL || left < r.TTL-time.Minute {
		t.Errorf("lock for 10 minutes: got one that expires in %v", left)
	}
	elsewhere := control.SessionLocksRequest{SessionRemote: w.far, Op: control.LockList}
	for name, r := range map[string]control.SessionLocksRequest{"two": list("two"), "": elsewhere} {
		got := w.ask(r)
		if len(got.Locks) != 2 || got.Locks[0].ID != done[0].ID || got.Locks[0].Mine || got.Session != name {
			t.Errorf("locks as session %q sees them: got %+v, want those of session one", name, got)
		}
	}
	e := w.refused(lock("two", "src/main.go"), control.CodeConflict)
	if !strings.Contains(e.Cause, "one") || !strings.Contains(e.Cause, "a rewrite") ||
		!strings.Contains(e.Hint, done[0].ID) {
		t.Errorf("lock of a locked file: got cause %q and hint %q, want the holder, the reason and the id", e.Cause, e.Hint)
	}
	if got := w.ask(lock("two", "test")).Locks; len(got) != 3 {
		t.Errorf("locks after one more: got %+v, want three", got)
	}
}

func TestUnlock(t *testing.T) {
	w := newWorld(t)
	id := w.ask(lock("one", "src")).Done[0].ID
	w.refused(unlock("one", "doc"), control.CodeNotFound)
	w.refused(unlock("two", "src"), control.CodeConflict)
	if got := w.ask(list("one")).Locks; len(got) != 1 {
		t.Fatalf("locks after the refusals: got %+v, want one", got)
	}
	force := unlock("two", id)
	force.Force = true
	w.refused(force, control.CodeUsage) // a forced unlock needs a reason
	force.Reason = "one is gone"
	reply := w.ask(force)
	if len(reply.Locks) != 0 || len(reply.Done) != 1 || reply.Done[0].ID != id {
		t.Errorf("forced unlock: got %+v, want no locks, and the one that was released", reply)
	}
	forced := w.ask(list("one")).Forced
	if len(forced) != 1 || forced[0].Session != "two" || forced[0].Actor != "bob" || forced[0].Reason != force.Reason ||
		forced[0].Lock.ID != id || !forced[0].Lock.Mine {
		t.Errorf("forced removals as session one sees them: got %+v, want that of its lock by bob", forced)
	}
	w.ask(lock("two", "src"))
	if got := w.ask(unlock("two", "src")).Locks; len(got) != 0 {
		t.Errorf("locks after the own unlock: got %+v", got)
	}
}

func TestSessionsWithoutLocks(t *testing.T) {
	w := newWorld(t)
	w.refused(lock("own", "src"), control.CodeUnsupported)
	w.refused(lock("unknown", "src"), control.CodeNotFound)
	if _, err := w.SessionLocks(t.Context(), lock("lone", "src")); err == nil {
		t.Error("lock of a session without a session remote: got nil, want an error")
	}
	nobody := lock("", "src")
	nobody.SessionRemote = w.far
	if e := w.refused(nobody, control.CodeUsage); !strings.Contains(e.Cause, "-C SESSION") {
		t.Errorf("lock without a session: got cause %q, want one that says how to name the session", e.Cause)
	}
	w.refused(lock("one", "../outside"), control.CodeUsage)
	if got := w.ask(list("one")).Locks; len(got) != 0 {
		t.Errorf("locks after the refusals: got %+v, want none", got)
	}
	away := control.SessionLocksRequest{SessionRemote: filepath.Join(w.far, "none"), Op: control.LockList}
	if _, err := w.SessionLocks(t.Context(), away); err == nil {
		t.Error("locks of a session remote that does not exist: got nil, want an error")
	}
}
