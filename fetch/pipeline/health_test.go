package pipeline

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
)

// awaitHealth waits until the pipeline's health is as wanted.
func awaitHealth(t *testing.T, p *Pipeline, failing bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if _, err := p.health.Failure(); (err != nil) == failing {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("health: failing is not %v", failing)
		}
	}
}

func TestFailureMendsItself(t *testing.T) {
	var up atomic.Bool
	p, r := testPipeline(t, func(ctx context.Context, n int, b *Batch, arrived func(object.ID, []byte)) error {
		if up.Load() {
			return deliver(ctx, n, b, arrived)
		}
		return transport.ErrForbidden
	})
	if _, err := p.Wait(context.Background(), want(1), Neighbours{Patience: HedgeAfter}); !errors.Is(err,
		transport.ErrForbidden) {
		t.Fatalf("wait: got %v", err)
	}
	awaitHealth(t, p, true)
	up.Store(true)
	awaitHealth(t, p, false) // no reader waits
	if n := len(r.sent()); n < 2 {
		t.Errorf("requests: got %d", n)
	}
}

func TestServerThatWantsToBeLeftAloneIs(t *testing.T) {
	p, _ := testPipeline(t, func(context.Context, int, *Batch, func(object.ID, []byte)) error { return nil })
	asked := make(chan struct{}, 1)
	p.health.ReportFailure(transport.RateLimited{After: time.Hour}, func() { asked <- struct{}{} })
	p.shared.mu.Lock()
	timer := p.health.timer
	p.shared.mu.Unlock()
	if timer == nil || !timer.Stop() {
		t.Error("the probe was not sent, or was sent without a pause")
	}
	p.health.ReportSuccess() // the response to a request that was sent before the failure
	if _, err := p.health.Failure(); err == nil {
		t.Error("the response to an earlier request ended the pause that the server requested")
	}
	p.shared.mu.Lock()
	p.health.probing = true
	p.shared.mu.Unlock()
	p.health.ReportSuccess()
	if _, err := p.health.Failure(); err != nil || len(asked) > 0 {
		t.Errorf("after the probe succeeded: failure %v, asked %d times; want none, 0", err, len(asked))
	}
}

// A lane may be waiting for further wants when a request of another lane is refused. It sends nothing then.
func TestServerThatWantsToBeLeftAloneIsByLanesThatLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var asked []time.Time
		var refused time.Time
		p, _ := testPipeline(t, func(ctx context.Context, n int, b *Batch, arrived func(object.ID, []byte)) error {
			mu.Lock()
			asked = append(asked, time.Now())
			mu.Unlock()
			if n > 1 {
				return deliver(ctx, n, b, arrived)
			}
			time.Sleep(gatherTime / 2)
			refused = time.Now()
			return transport.RateLimited{After: time.Second}
		})
		read := func(i int) {
			if _, err := p.Wait(t.Context(), want(i), Neighbours{Patience: HedgeAfter}); err != nil {
				t.Errorf("blob %d: %v", i, err)
			}
		}
		var first sync.WaitGroup
		first.Go(func() { read(1) })
		time.Sleep(gatherTime + gatherTime/4) // the first request is in flight
		read(2)
		first.Wait()
		if len(asked) < 2 || asked[1].Sub(refused) < time.Second {
			t.Errorf("requests at %v after a refusal at %v, want none for a second", asked, refused)
		}
	})
}

// If the server refuses several concurrent requests, the longest requested pause applies.
func TestLongestPauseAskedForCounts(t *testing.T) {
	p, _ := testPipeline(t, func(context.Context, int, *Batch, func(object.ID, []byte)) error { return nil })
	start := time.Now()
	p.health.ReportFailure(transport.ErrUnreachable, nil)
	p.health.ReportFailure(transport.RateLimited{After: time.Hour}, nil)
	p.health.ReportFailure(transport.RateLimited{After: time.Minute}, nil)
	p.shared.mu.Lock()
	defer p.shared.mu.Unlock()
	if pause := p.health.next.Sub(start); pause < time.Hour {
		t.Errorf("pause before the next request: got %v, want an hour", pause)
	}
}

// Objects that a response lacks count as lost for the prefetch that wanted them.
func TestLossesAreCounted(t *testing.T) {
	p, _ := testPipeline(t, func(context.Context, int, *Batch, func(object.ID, []byte)) error { return nil })
	p.Queue(wants(0, 3, 0))
	for deadline := time.Now().Add(20 * time.Second); p.Lost() < 3; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("lost objects: got %d", p.Lost())
		}
	}
	if n := p.Prefetching(); n > 0 {
		t.Errorf("wants in flight: got %d", n)
	}
	if _, err := p.health.Failure(); !errors.Is(err, ErrNotFound) {
		t.Errorf("health: got %v", err)
	}
}
