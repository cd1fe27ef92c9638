package writeback

import (
	"errors"
	"sync"

	"github.com/artifactfs/artifactfs/git/transport"
)

// syncCalls counts the calls of Queue.Sync, and how many of them are answered. A call is answered when a round has
// finished that began after the call, or that has pushed the same values (Queue.answeredCalls). No other lock is
// acquired while mu is held.
type syncCalls struct {
	mu sync.Mutex // protects the fields below
	// asked is the number of calls. answered is the number of calls that have ended because of a finished round.
	asked, answered uint64
	// outcome is the error of the last finished round.
	outcome error
}

// ask counts a new call and returns its number.
func (c *syncCalls) ask() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	return c.asked
}

// open returns the number of calls so far, and whether at least one of them is not answered yet.
func (c *syncCalls) open() (asked uint64, waiting bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked, c.asked > c.answered
}

// isAnswered reports whether call number n is answered, and returns the error of the last finished round.
func (c *syncCalls) isAnswered(n uint64) (answered bool, outcome error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answered >= n, c.outcome
}

// answer ends the calls with numbers up to asked, whose result is err, the error of a round. It does so only if the
// round succeeded, if a retry would return the same error, or if givenUp is set because the next retry is too far in
// the future. Otherwise, for example if the session remote is unreachable, the calls wait for a retry.
func (c *syncCalls) answer(asked uint64, err error, givenUp bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil || givenUp || final(err) {
		c.answered = max(c.answered, asked)
		c.outcome = err
	}
}

// final reports whether a retry would return the same error, because its cause is the configuration, missing access
// rights, or the deletion of the session.
func final(err error) bool {
	var gone *DeletedError
	if errors.As(err, &gone) {
		return true
	}
	for _, is := range []error{errNoBase, transport.ErrAuth, transport.ErrForbidden, transport.ErrNotFound,
		transport.ErrNoPush} {
		if errors.Is(err, is) {
			return true
		}
	}
	return false
}
