package keeper

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session/locks"
	"github.com/artifactfs/artifactfs/session/reffile"
)

// bed is a session remote, with a Keeper for the session "mine".
type bed struct {
	*testing.T
	repo  string
	store *reffile.Store
	saved string
	keep  *Keeper
	view  *locks.View

	mu     sync.Mutex
	events []string
}

func newBed(t *testing.T) *bed {
	b := &bed{T: t, repo: filepath.Join(t.TempDir(), "r.git"), saved: filepath.Join(t.TempDir(), "locks.json")}
	gittest.Must(t, filepath.Dir(b.repo), "init", "-q", "--bare", b.repo)
	b.store = &reffile.Store{Remote: b.open(), Dir: t.TempDir()}
	b.restart()
	return b
}

func (b *bed) open() *transport.Remote {
	b.Helper()
	r, err := transport.Open(b.repo, transport.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { r.Close() })
	return r
}

// restart replaces the Keeper by the one of a new process.
func (b *bed) restart() {
	b.view = &locks.View{Session: "mine", Log: zap.NewNop()}
	event := func(text string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.events = append(b.events, text)
	}
	b.keep = New(&Keeper{
		Session: "mine", Dir: b.TempDir(), Saved: b.saved, Remote: b.open(), View: b.view, Log: zap.NewNop(),
		Open:   func() (*transport.Remote, func(), error) { return b.open(), func() {}, nil },
		Before: func(context.Context) { event("before") },
		After:  func(added []locks.Lock) { event("after " + added[0].Pattern) },
	})
}

// lock locks a pattern for a session. The lock begins the duration ago before the present time.
func (b *bed) lock(name, pattern string, ttl, ago time.Duration) {
	b.Helper()
	b.change(func(f *locks.File) error {
		_, err := f.Acquire(locks.Caller{Session: name, Actor: "a", Host: "h"}, []string{pattern}, ttl, "",
			time.Now().Add(-ago))
		return err
	})
}

func (b *bed) change(edit func(f *locks.File) error) {
	b.Helper()
	if _, err := Change(b.Context(), b.store, "test", edit); err != nil {
		b.Fatal(err)
	}
}

func (b *bed) look() {
	b.Helper()
	if _, err := b.keep.Refs(b.Context(), "refs/heads/"); err != nil {
		b.Fatal(err)
	}
}

func (b *bed) file() locks.File {
	b.Helper()
	v, err := b.store.Read(b.Context(), File)
	if err != nil {
		b.Fatal(err)
	}
	f, err := locks.Parse(v.Content)
	if err != nil {
		b.Fatal(err)
	}
	return f
}

func TestKeeperReadsLocks(t *testing.T) {
	b := newBed(t)
	if b.look(); b.view.Active() || len(b.events) > 0 {
		t.Error("locks without a ref")
	}
	b.lock("other", "a", time.Hour, 0)
	b.lock("mine", "b", time.Hour, 0)
	if b.look(); !b.view.Refuses("a", false) || b.view.Refuses("b", false) {
		t.Error("want a lock on a, and none on b")
	}
	if b.look(); strings.Join(b.events, ", ") != "before, after a" {
		t.Errorf("events: got %q", b.events)
	}
	policy := func(text string) {
		t.Helper()
		_, err := b.store.Change(t.Context(), policyFile, "policy",
			func(reffile.Version) ([]byte, error) { return []byte(text), nil })
		if err != nil {
			t.Fatal(err)
		}
		b.look()
	}
	if policy(`{"version":1,"locks":"warn"}`); b.view.Refuses("a", false) || !b.view.Active() {
		t.Error("policy warn: a change is refused, or not noticed")
	}
	if policy(`{"version":1,"locks":"ignore"}`); b.view.Active() {
		t.Error("policy ignore: the view is active")
	}
	if policy(`{"version":1,"locks":"no"}`); !b.view.Refuses("a", false) {
		t.Error("invalid policy: a change is not refused")
	}
	// If the file becomes invalid, the last valid locks remain.
	b.change(func(f *locks.File) error { f.Locks[0].Pattern = "../x"; return nil })
	if b.look(); !b.view.Refuses("a", false) {
		t.Error("invalid file: a change is not refused")
	}
	if gittest.Must(t, b.repo, "update-ref", "-d", locks.Ref); !b.view.Active() {
		t.Error("view changed without a request")
	}
	if b.look(); b.view.Active() {
		t.Error("view without a ref is active")
	}
}

// TestKeeperOfTheNextProcess checks that the next process has the locks that the previous one has stored, until it has
// read the present ones.
func TestKeeperOfTheNextProcess(t *testing.T) {
	b := newBed(t)
	b.lock("other", "a", time.Hour, 0)
	b.look()
	if b.restart(); !b.view.Refuses("a", false) {
		t.Error("the next process does not know the lock")
	}
	gittest.Must(t, b.repo, "update-ref", "-d", locks.Ref)
	if b.look(); b.view.Active() {
		t.Error("the next process keeps a lock that is gone")
	}
	if b.restart(); b.view.Active() {
		t.Error("the process after that has a lock that is gone")
	}
}

// TestKeeperRenews checks that Run renews the locks of the session, and removes those that have expired.
func TestKeeperRenews(t *testing.T) {
	b := newBed(t)
	b.lock("mine", "a", time.Hour, 30*time.Minute)
	b.lock("other", "b", time.Hour, 30*time.Minute)
	before := b.file().Locks
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() { b.keep.Run(ctx) })
	defer ended.Wait()
	defer cancel()
	await.Until(t, "the lock is renewed", func() bool { return b.file().Locks[0].Expires.After(before[0].Expires) })
	if now := b.file().Locks; len(now) != 2 || !now[1].Expires.Equal(before[1].Expires) {
		t.Errorf("locks after a renewal: got %+v, want the lock of the other session as before: %+v", now, before)
	}
	b.change(func(f *locks.File) error {
		f.Locks[0].Since, f.Locks[0].Expires = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
		return nil
	})
	v, err := b.store.Read(t.Context(), File)
	if err != nil {
		t.Fatal(err)
	}
	b.keep.Changed(t.Context(), v)
	await.Until(t, "the lost lock is noticed", func() bool { _, renew := b.keep.due(); return renew.IsZero() })
}
