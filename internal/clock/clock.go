// Package clock waits for time to pass, with a context that can end the wait.
package clock

import (
	"context"
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
