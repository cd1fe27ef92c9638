package places

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/internal/harness/await"
)

func TestPlacesOfNamespaces(t *testing.T) {
	p := New(3, 2, time.Hour)
	enter := func(namespace string) func() {
		t.Helper()
		leave, err := p.Enter(t.Context(), namespace)
		if err != nil {
			t.Fatal(err)
		}
		return leave
	}
	first, second := enter("a"), enter("a")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Enter(ended, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("third request of a namespace: got %v, want that it waits", err)
	}
	other := enter("b")
	if _, err := p.Enter(ended, "c"); !errors.Is(err, context.Canceled) {
		t.Errorf("request while all places are used: got %v, want that it waits", err)
	}
	entered := make(chan func())
	go func() {
		leave, _ := p.Enter(context.WithoutCancel(t.Context()), "a")
		entered <- leave
	}()
	first()
	(<-entered)()
	second()
	other()
	await.Until(t, "all places are free", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return p.used == 0 && len(p.of) == 0 })
	busy := New(0, 1, time.Nanosecond)
	if _, err := busy.Enter(t.Context(), "a"); !errors.Is(err, ErrBusy) {
		t.Errorf("request without a place: got %v, want %v", err, ErrBusy)
	}
}
