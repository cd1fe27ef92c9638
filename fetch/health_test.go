package fetch

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/transport"
)

// awaitHealth waits until the pipeline's health is as wanted.
func awaitHealth(t *testing.T, p *pipeline, failing bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if err, _ := p.health(); (err != nil) == failing {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("failing is not %v", failing)
		}
	}
}

func TestFailureMendsItself(t *testing.T) {
	var up atomic.Bool
	p, r := testPipeline(t, func(ctx context.Context, n int, b *batch, arrived func(object.ID, []byte)) error {
		if up.Load() {
			return deliver(ctx, n, b, arrived)
		}
		return transport.ErrForbidden
	})
	if _, err := p.wait(context.Background(), want(1), company{patience: hedgeAfter}); !errors.Is(err, transport.ErrForbidden) {
		t.Fatalf("got %v", err)
	}
	awaitHealth(t, p, true)
	up.Store(true)
	awaitHealth(t, p, false) // nobody reads
	if n := len(r.sent()); n < 2 {
		t.Errorf("%d requests", n)
	}
}

func TestServerThatWantsToBeLeftAloneIs(t *testing.T) {
	p, _ := testPipeline(t, func(context.Context, int, *batch, func(object.ID, []byte)) error { return nil })
	asked := make(chan struct{}, 1)
	p.failed(transport.RateLimited{After: time.Hour}, func() { asked <- struct{}{} })
	p.mu.Lock()
	timer := p.state.timer
	p.mu.Unlock()
	if timer == nil || !timer.Stop() {
		t.Error("it is not asked again at all, or was at once")
	}
	p.succeeded() // a request that was sent before
	if err, _ := p.health(); err == nil {
		t.Error("the answer to an earlier request ended the pause that the server asked for")
	}
	p.mu.Lock()
	p.state.probing = true
	p.mu.Unlock()
	p.succeeded()
	if err, _ := p.health(); err != nil || len(asked) > 0 {
		t.Errorf("after the probe succeeded: failure %v, asked %d times; want none, 0", err, len(asked))
	}
}

// What left the answer out is lost, and counted for who wanted it all.
func TestLossesAreCounted(t *testing.T) {
	p, _ := testPipeline(t, func(context.Context, int, *batch, func(object.ID, []byte)) error { return nil })
	p.ask(wants(0, 3, 0))
	for deadline := time.Now().Add(20 * time.Second); p.losses() < 3; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d losses", p.losses())
		}
	}
	if n := p.kept(); n > 0 {
		t.Errorf("%d still under way", n)
	}
	if err, _ := p.health(); !errors.Is(err, ErrNotFound) {
		t.Errorf("health is %v", err)
	}
}
