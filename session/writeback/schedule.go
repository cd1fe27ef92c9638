package writeback

import (
	"context"
	"time"

	"github.com/artifactfs/artifactfs/internal/backoff"
	"github.com/artifactfs/artifactfs/internal/clock"
)

const (
	// gatherDelay is the delay between a change of the Repo and the round that pushes it, so that refs that change
	// shortly after each other are pushed together.
	gatherDelay = 10 * time.Millisecond
	// syncRetry is the maximum delay between retries while a caller waits in Sync.
	syncRetry = time.Second
	// forgetIdle is the idle time after which the set of pushed objects (selector.sent) is dropped to save memory. The
	// next push computes the set again.
	forgetIdle = 30 * time.Second
)

// pauses are the delays before retries after consecutive failures.
var pauses = backoff.Backoff{First: 200 * time.Millisecond, Longest: 30 * time.Second}

// covered returns the number of calls of Sync that the last round answers. There were asked calls when the round began.
// Later calls are answered too if the last push of the round has succeeded, and the refs have not moved since. So a
// call that begins while its checkpoint is being pushed needs no further request.
func (q *Queue) answeredCalls(asked uint64) uint64 {
	late, _ := q.calls.open() // before the refs are read, so that they contain what the callers wait for
	if late == asked || !q.pipeline.whole {
		return asked
	}
	if st := q.Status(); st.Pending > 0 || st.Failure != nil {
		return asked
	}
	return late
}

// waitForRound waits until the next round has to start, and returns true; it returns false if ctx ends before. failures
// is the number of consecutive failed rounds, which determines the delay of the retry. After a success, wait is the
// delay until the next round; if it is 0, the next round starts when the Repo changes.
func (q *Queue) waitForRound(ctx context.Context, failures int, wait time.Duration) bool {
	var retry <-chan time.Time
	// Wake up for the first refused update that may be sent again.
	if refused := q.refusalsEnd(ctx); wait == 0 || refused > 0 && refused < wait {
		wait = refused
	}
	if failures > 0 {
		b := pauses
		// If a caller waits in Sync, retry more often.
		if _, waiting := q.calls.open(); waiting {
			b.Longest = syncRetry
		}
		retry = time.After(b.Pause(failures))
	} else if wait > 0 {
		retry = time.After(wait)
	}
	forget := time.After(forgetIdle)
	changed := q.o.Repo.Changed()
	if failures > 0 {
		changed = nil // a change of the Repo does not make an unreachable session remote reachable
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-q.wake:
			return true
		case <-retry:
			return true
		// The set of pushed objects may be large. Drop the set, unless a push is in progress, which needs it.
		case <-forget:
			select {
			case q.remoteToken <- struct{}{}:
				q.pipeline.selector.forget()
				<-q.remoteToken
			default:
			}
		case <-changed:
			return clock.Wait(ctx, gatherDelay)
		}
	}
}

// refusalsEnd returns the time until the first refused update is repeated, or 0 if there is none or ctx has ended. The
// caller must not hold remoteToken.
func (q *Queue) refusalsEnd(ctx context.Context) time.Duration {
	release, err := q.take(ctx)
	if err != nil {
		return 0
	}
	defer release()
	return q.pipeline.refusals.next()
}
