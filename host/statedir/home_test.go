package statedir_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/host/statedir/statedirtest"
)

func TestHomeIsTakenOnce(t *testing.T) {
	h := statedirtest.New(t)
	first, err := h.Lock(t.Context(), "work", "/srv/a b")
	if err != nil || !first.Created {
		t.Fatalf("lock a new mount directory: got %+v, %v", first, err)
	}
	var used statedir.InUseError
	if _, err := h.Lock(t.Context(), "work", "/srv/other"); !errors.As(err, &used) || used.Dir != "/srv/a b" ||
		used.Session != "work" {
		t.Errorf("lock a locked directory: got %v", err)
	}
	first.Unlock()
	second, err := h.Lock(t.Context(), "work", "/srv/other")
	if err != nil || second.Created {
		t.Fatalf("lock a released directory: got %+v, %v", second, err)
	}
	if err := second.Remove(); err != nil {
		t.Fatal(err)
	}
	if names := statedirtest.Names(t, h); names != "" {
		t.Errorf("directories after the end: got %q", names)
	}
}

// TestLookingIsWaitedFor checks that a process that only reads the directory of a session does not make a mount fail:
// the mount waits for it.
func TestLookingIsWaitedFor(t *testing.T) {
	h := statedirtest.New(t)
	statedirtest.Add(t, h, "work", 1, true)
	looking, err := h.LockExisting("work")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*statedir.LookPause)
	defer cancel()
	if _, err := h.Lock(ctx, "work", "/srv/a"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("lock while another process reads: got %v", err)
	}
	taken := make(chan error, 1)
	go func() {
		m, err := h.Lock(context.Background(), "work", "/srv/a")
		if err == nil {
			m.Unlock()
		}
		taken <- err
	}()
	looking.Unlock()
	select {
	case err := <-taken:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the lock is still waiting after the reader has ended")
	}
}

// A tree of a clone that was not changed is kept while the daemon is to mount it again: a new git directory would not
// have the settings of the clone.
func TestTreeOfACloneIsKeptWhileRegistered(t *testing.T) {
	h := statedirtest.New(t)
	statedirtest.Add(t, h, "tree", 0, false)
	statedirtest.Add(t, h, "mount", 0, false)
	registry := filepath.Join(h.State, "registry")
	err := os.Mkdir(registry, 0o700)
	for name, settings := range map[string][]gitdir.Setting{"tree": {{Name: "core.eol", Value: "crlf"}}, "mount": nil} {
		r, readErr := statedir.ReadRecord(filepath.Join(h.Dir(), name))
		r.Checkout, r.Changed = settings, 0
		err = errors.Join(err, readErr, r.Save(filepath.Join(h.Dir(), name)),
			os.WriteFile(filepath.Join(registry, statedir.FileName(r.Dir)), []byte("{}"), 0o600))
	}
	if err = errors.Join(err, h.RemoveLeftovers()); err != nil {
		t.Fatal(err)
	}
	if names := statedirtest.Names(t, h); names != "tree" {
		t.Errorf("homes of mounts that are registered: got %q, want only that of the tree", names)
	}
	if r, err := statedir.ReadRecord(filepath.Join(h.Dir(), "tree")); err != nil || len(r.Checkout) != 1 || !r.Counted {
		t.Errorf("record of the tree: got %+v, %v", r, err)
	}
	if err := errors.Join(os.RemoveAll(registry), h.RemoveLeftovers()); err != nil {
		t.Fatal(err)
	}
	if names := statedirtest.Names(t, h); names != "" {
		t.Errorf("homes of mounts that are not registered: got %q", names)
	}
}

func TestDiscard(t *testing.T) {
	h := statedirtest.New(t)
	statedirtest.Add(t, h, "work", 1, true)
	m, err := h.Lock(t.Context(), "work", "/srv/work")
	if err != nil {
		t.Fatal(err)
	}
	var used statedir.InUseError
	if _, err := h.Discard("work", true); !errors.As(err, &used) {
		t.Errorf("discard of a mounted session: got %v", err)
	}
	m.Unlock()
	if _, err := h.Discard("work", true); err != nil {
		t.Error(err)
	}
	if _, err := h.Discard("work", true); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("second discard: got %v", err)
	}
	if names := statedirtest.Names(t, h); names != "" {
		t.Errorf("directories after the end: got %q", names)
	}
}
