// Package backoff determines the pauses between attempts of an operation that fails.
package backoff

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/internal/clock"
)

// Backoff describes pauses that double from failure to failure, between First and Longest. Half of each pause is
// random, so that processes whose attempts have failed together do not repeat them together.
type Backoff struct{ First, Longest time.Duration }

// Limit returns the longest duration that Pause returns for a number of failures in a row.
func (b Backoff) Limit(failures int) time.Duration {
	d := b.First
	for n := 1; n < min(failures, 64) && d < b.Longest; n++ {
		d *= 2
	}
	return min(d, b.Longest)
}

// Pause returns the pause, partly random, after a number of failures in a row.
func (b Backoff) Pause(failures int) time.Duration {
	d := b.Limit(failures)
	return d - rand.N(d/2+1)
}

// Wait waits for the pause after a number of failures in a row. It returns false if ctx ends first.
func (b Backoff) Wait(ctx context.Context, failures int) bool {
	return clock.Wait(ctx, b.Pause(failures))
}

// RetryAfter returns the pause that the value of a header Retry-After asks for at the time now, but at most the
// duration longest. The value is a number of seconds or a date (RFC 9110, 10.2.3). RetryAfter returns 0 for any other
// value.
func RetryAfter(value string, now time.Time, longest time.Duration) time.Duration {
	value = strings.TrimSpace(value)
	if n, err := strconv.ParseInt(value, 10, 32); err == nil {
		return min(max(0, time.Duration(n)*time.Second), longest)
	}
	if t, err := http.ParseTime(value); err == nil {
		return min(max(0, t.Sub(now)), longest)
	}
	return 0
}
