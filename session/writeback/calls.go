package writeback

import (
	"errors"
	"sync"

	"github.com/artifactfs/artifactfs/git/transport"
)

// syncCalls counts the calls of Queue.Sync and the answered calls. A call is answered when a round that began after the start of the
// call is finished, or an earlier round that has pushed the same values (Queue.covered). mu is a leaf lock: no other lock is taken while mu
// is held.
type syncCalls struct {
	mu sync.Mutex // protects the fields below
	// asked is the number of calls so far; answered is the number of those calls that a finished round covers.
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

// open returns the number of calls so far, and reports whether at least one of these calls is not answered yet.
func (c *syncCalls) open() (asked uint64, waiting bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked, c.asked > c.answered
}

// answeredTo reports whether call number n is answered, and returns the error of the last finished round.
func (c *syncCalls) answeredTo(n uint64) (answered bool, outcome error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answered >= n, c.outcome
}

// answer ends the calls with the numbers up to asked, which a round answers. The parameter err is the error
// of the round; it becomes the result of these calls. answer ends the calls only if the round succeeded, if a retry would fail in the
// same way, or if givenUp is set, which means that the next retry is too far in the future. After other errors, for example if the
// session remote is unreachable, the calls continue to wait for a retry.
func (c *syncCalls) answer(asked uint64, err error, givenUp bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil || givenUp || final(err) {
		c.answered = max(c.answered, asked)
		c.outcome = err
	}
}

// final reports whether a retry would fail with the same error, because the cause is the configuration, the access
// rights, or the deletion of the session.
func final(err error) bool {
	var gone *DeletedError
	if errors.As(err, &gone) {
		return true
	}
	for _, is := range []error{errNoBase, transport.ErrAuth, transport.ErrForbidden, transport.ErrNotFound, transport.ErrNoPush} {
		if errors.Is(err, is) {
			return true
		}
	}
	return false
}
