package turns

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// One has its turn at a time, whoever came first; who is waited for needs none.
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
			t.Errorf("what is waited for took %s", took)
		}
		for range 5 {
			<-ended
		}
		if took := time.Since(start); most.Load() != 1 || took != 5*time.Second {
			t.Errorf("%d at a time, %s for all", most.Load(), took)
		}
		for i, n := range order {
			if i != n {
				t.Errorf("turns came in the order %v", order)
				break
			}
		}
	})
}

// Nobody has a turn while mounts are being made, nor between those of a row, but not for ever.
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
				t.Error("nobody waits")
			}
			time.Sleep(turnPause / 2)
			ended()
			ended() // once is enough
			time.Sleep(turnPause / 4)
		}
		start := time.Now()
		take()()
		if took := time.Since(start); took < turnPause/2 || took > turnPause {
			t.Errorf("the turn came %s after the last mount", took)
		}
		defer turns.StartMount()()
		start = time.Now()
		take()()
		if took := time.Since(start); took != turnLimit {
			t.Errorf("beside a mount that is not made the turn came after %s", took)
		}
	})
}
