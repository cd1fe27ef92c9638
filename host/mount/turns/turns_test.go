package turns

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestTurnsAreTakenOneAtATime checks that one caller at a time has its turn, in the order of arrival. A caller whose
// result another process waits for starts immediately without a turn.
func TestTurnsAreTakenOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns, start := New(), time.Now()
		var at, most atomic.Int32
		var order []int
		ended := make(chan struct{})
		for i := range 5 {
			go func() {
				done := turns.Take(t.Context(), nil, nil)
				most.Store(max(most.Load(), at.Add(1)))
				order = append(order, i)
				time.Sleep(time.Second)
				at.Add(-1)
				done()
				ended <- struct{}{}
			}()
			synctest.Wait()
		}
		wanted := make(chan struct{})
		close(wanted)
		turns.Take(t.Context(), wanted, nil)()
		turns.Take(t.Context(), nil, wanted)()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		turns.Take(ctx, nil, nil)()
		if took := time.Since(start); took > 0 {
			t.Errorf("urgent work took %s", took)
		}
		for range 5 {
			<-ended
		}
		if took := time.Since(start); most.Load() != 1 || took != 5*time.Second {
			t.Errorf("got %d turns at a time, and %s for all", most.Load(), took)
		}
		for i, n := range order {
			if i != n {
				t.Errorf("order of the turns: got %v", order)
				break
			}
		}
	})
}

// TestMountsCatchUpOneAfterTheOther checks that after a takeover only a few mounts at a time do their delayed work, and
// that a mount that is used does not wait.
func TestMountsCatchUpOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns, start := New(), time.Now()
		limit := cap(turns.catching)
		var at, most atomic.Int32
		ended := make(chan struct{})
		for range 4 * limit {
			go func() {
				done := turns.CatchUp(t.Context())
				most.Store(max(most.Load(), at.Add(1)))
				time.Sleep(time.Second)
				at.Add(-1)
				done()
				done() // a second call has no effect
				ended <- struct{}{}
			}()
		}
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		turns.CatchUp(ctx)()
		if took := time.Since(start); took > 0 {
			t.Errorf("urgent work took %s", took)
		}
		for range 4 * limit {
			<-ended
		}
		if took := time.Since(start); int(most.Load()) != limit || took != 4*time.Second {
			t.Errorf("got %d turns at a time, want %d; %s for all, want 4s", most.Load(), limit, took)
		}
	})
}

// TestTurnsLetMountsGoFirst checks that no turn starts while mounts are being made or in the short pauses between them,
// but that turns start after a time limit.
func TestTurnsLetMountsGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := New()
		var had atomic.Bool
		take := func() (done func()) {
			done = turns.Take(t.Context(), nil, nil)
			had.Store(true)
			return done
		}
		for range 5 {
			ended := turns.StartMount()
			if !had.Load() && turns.rest() == 0 {
				t.Error("the turn did not wait for the mount")
			}
			time.Sleep(turnPause / 2)
			ended()
			ended() // a second call has no effect
			time.Sleep(turnPause / 4)
		}
		start := time.Now()
		take()()
		if took := time.Since(start); took < turnPause/2 || took > turnPause {
			t.Errorf("the turn started %s after the last mount", took)
		}
		defer turns.StartMount()()
		start = time.Now()
		take()()
		if took := time.Since(start); took != turnLimit {
			t.Errorf("the turn started %s after the start of a mount that does not finish", took)
		}
	})
}
