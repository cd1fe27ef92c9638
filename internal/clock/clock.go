// Package clock waits for time to pass, with a context that can end the wait.
package clock

import (
	"context"
	"math/rand/v2"
	"time"
)

// Wait waits for the duration d. It returns true after that time, and false if ctx ends first.
func Wait(ctx context.Context, d time.Duration) bool {
	// Unlike the timer of time.After, this timer is stopped at once if ctx ends.
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Backoff returns the delay before the next retry after a number of consecutive failures. The delay doubles with each
// failure from first up to most. Half of it is random, so that several processes do not retry at the same time.
func Backoff(failures int, first, most time.Duration) time.Duration {
	d := min(first<<min(failures-1, 10), most)
	return d/2 + rand.N(d/2)
}
