package writeback

import (
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
)

// maxNotices is the maximum number of messages for the user that a report keeps.
const maxNotices = 20

// report contains the results of the rounds, which Status returns, and wakes the goroutines that wait for a change. No
// other lock is acquired while mu is held.
type report struct {
	session string // name of the session
	log     *zap.Logger

	mu sync.Mutex // protects the fields below
	// failure is the error of the last round; nil if it succeeded. since is the time of the first of the consecutive
	// failures.
	failure  error
	since    time.Time
	diverged []Diverged // refs that were pushed to their diverged names
	// behind maps refs to their commits on the session remote, for refs whose commit in the Repo is an ancestor of that
	// commit.
	behind map[string]object.ID
	// declined lists the refused refs, first the branches, tags and notes of the user.
	declined []refusedRef
	notices  []string // messages for the user, oldest first
	// next is closed and replaced whenever the report, the ledger or a call of Sync changes.
	next   chan struct{}
	closed bool // whether the queue was closed
	// pendingSince is the time since which at least one ref is pending; zero if none is pending.
	pendingSince time.Time
	compares     bool // whether a round has compared the refs with the ledger
}

// await records whether refs are pending. synced is the last time at which no ref was pending, according to the ledger:
// in the first round of a queue, refs that an earlier queue has not pushed count as pending since then.
func (r *report) await(pending bool, synced time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := !r.compares
	r.compares = true
	switch {
	case !pending:
		r.pendingSince = time.Time{}
	case r.pendingSince.IsZero() && first && !synced.IsZero():
		r.pendingSince = synced
	case r.pendingSince.IsZero():
		r.pendingSince = time.Now()
	}
}

// refusedRef is a ref whose update the session remote has refused, with the reason.
type refusedRef struct{ name, text string }

// changed returns a channel that is closed at the next change. A caller that waits for a condition gets the channel
// before it checks the condition, so that it misses no change. closed states that the queue was closed.
func (r *report) changed() (next <-chan struct{}, closed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next, r.closed
}

// wakeWaiters wakes the goroutines that wait for a change. The caller must not hold mu.
func (r *report) wakeWaiters() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.next)
	r.next = make(chan struct{})
}

// close records that the queue was closed. It returns true at the first call.
func (r *report) close() (first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first = !r.closed
	r.closed = true
	return first
}

// fail records err as the result of the last round; nil means that it succeeded. It logs an error, unless the previous
// round returned an error with the same text, and the first success after an error.
func (r *report) fail(err error) {
	r.mu.Lock()
	before := r.failure
	r.failure = err
	if err != nil && before == nil {
		r.since = time.Now()
	}
	r.mu.Unlock()
	switch {
	case err != nil && (before == nil || before.Error() != err.Error()):
		r.log.Warn("push to session remote", zap.String("session", r.session), zap.Error(err))
	case err == nil && before != nil:
		r.log.Info("reached session remote again", zap.String("session", r.session))
	}
}

// compared records the diverged and behind refs of a comparison, and records and logs its notices.
func (r *report) compared(c *comparison) {
	r.mu.Lock()
	r.diverged, r.behind = c.diverged, c.behind
	r.mu.Unlock()
	for _, text := range c.notices {
		r.notice(text)
		r.log.Info(text, zap.String("session", r.session))
	}
}

// notice adds a message for the user, unless the report has it already. It removes the oldest message if there are more
// than maxNotices.
func (r *report) notice(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.Contains(r.notices, text) {
		return
	}
	r.notices = append(r.notices, text)
	if extra := len(r.notices) - maxNotices; extra > 0 {
		r.notices = slices.Delete(r.notices, 0, extra)
	}
}

// decline replaces the list of refused refs.
func (r *report) decline(refs []refusedRef) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.declined = refs
}

// refused reports whether the session remote has refused ref, and returns the error of the last round.
func (r *report) refused(ref string) (refused bool, failure error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.declined, func(d refusedRef) bool { return d.name == ref }), r.failure
}

// fill sets the fields of s that the report contains.
func (r *report) fill(s *Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.Pending > 0 {
		s.PendingSince = r.pendingSince
	}
	s.Failure, s.Since, s.Refused = r.failure, r.since, groupRefusals(r.declined)
	s.Diverged, s.Notices = slices.Clone(r.diverged), slices.Clone(r.notices)
	for _, ref := range slices.Sorted(maps.Keys(r.behind)) {
		s.Behind = append(s.Behind, ref+": "+r.behind[ref].String())
	}
}
