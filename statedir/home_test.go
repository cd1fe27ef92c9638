package statedir_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/statedir"
	"github.com/artifactfs/artifactfs/statedir/statedirtest"
)

func TestHomeIsTakenOnce(t *testing.T) {
	h := statedirtest.New(t)
	first, err := h.Lock(t.Context(), "work", "/srv/a b")
	if err != nil || !first.Created {
		t.Fatalf("lock a new mount directory: got %+v, %v", first, err)
	}
	var used statedir.InUseError
	if _, err := h.Lock(t.Context(), "work", "/srv/other"); !errors.As(err, &used) || used.Dir != "/srv/a b" || used.Session != "work" {
		t.Errorf("taken twice: %v", err)
	}
	first.Unlock()
	second, err := h.Lock(t.Context(), "work", "/srv/other")
	if err != nil || second.Created {
		t.Fatalf("given up and not taken: %+v, %v", second, err)
	}
	if err := second.Remove(); err != nil {
		t.Fatal(err)
	}
	if names := statedirtest.Names(t, h); names != "" {
		t.Errorf("left %q", names)
	}
}

// A process that only reads the directory of a session does not make a mount fail: the mount waits for it.
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
		t.Errorf("while somebody looks: %v", err)
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
		t.Fatal("still waiting")
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
	if err := h.Discard("work", true); !errors.As(err, &used) {
		t.Errorf("while it is mounted: %v", err)
	}
	m.Unlock()
	if err := h.Discard("work", true); err != nil {
		t.Error(err)
	}
	if err := h.Discard("work", true); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("twice: %v", err)
	}
	if names := statedirtest.Names(t, h); names != "" {
		t.Errorf("left %q", names)
	}
}
