package session

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// A writer that pushes to a session remote holds its lane for the duration of a lease after each sign of life. The
// claim is the first sign of life. Then the writer pushes a new version of the metadata whenever a third of the lease
// has passed (Renew). Other hosts compare the time of the last sign of life with their own clocks, so a writer that can
// push keeps its lane as long as the clocks differ by less than two thirds of the lease. If a lane is taken over
// nevertheless, both writers continue in separate lanes (Yield).

// DefaultLease is the duration of a lease if the user has set no other.
const DefaultLease = 15 * time.Minute

// HeldError means that another writer holds or may hold a lane of a session: the writer has not released the lane, its
// process runs or cannot be checked from this host, and its lease has not expired.
type HeldError struct {
	Session, Lane string    // names of the session and of the lane
	Writer        Writer    // the writer that holds the lane
	Since         time.Time // time at which the writer claimed the lane
	Life          Life      // Lives or Unknown: whether the writer's process runs
	// last sign of life, and end of the lease by the clock of this host; zero if the lane has no lease
	Seen, Until time.Time
}

// Error returns a text that names the process that holds the lane, or its host if the process cannot be checked from
// this host, the time of the claim, and the end of the lease.
func (e *HeldError) Error() string {
	const format = "2006-01-02 15:04:05 MST"
	since := e.Since.UTC().Format(format)
	if e.Life == Lives {
		return fmt.Sprintf("process %d on this host holds session %s since %s", e.Writer.PID, e.Session, since)
	}
	text := fmt.Sprintf("host %s holds session %s since %s and may still use it", e.Writer.Host, e.Session, since)
	if !e.Until.IsZero() {
		text += fmt.Sprintf("; its last sign of life was at %s, and its lease ends at %s", e.Seen.UTC().Format(time.TimeOnly),
			e.Until.UTC().Format(format))
	}
	return text
}

// sign records a sign of life of the lane's writer at the time now, and the duration of its lease. 0 means that the
// lane has no lease.
func (l *Lane) sign(lease time.Duration, now time.Time) {
	l.Seen, l.Lease = time.Time{}, int64(lease/time.Second)
	if l.Lease > 0 {
		l.Seen = now
	}
}

// until returns the time at which the lease of the lane expires, or the zero time if the lane has no lease.
func (l Lane) until() time.Time {
	if l.Lease <= 0 {
		return time.Time{}
	}
	return l.Seen.Add(time.Duration(l.Lease) * time.Second)
}

// Due reports whether the writer of the lane has to renew its lease now, because a third of it has passed.
func (l Lane) Due(now time.Time) bool {
	lease := time.Duration(l.Lease) * time.Second
	return lease > 0 && l.Left == nil && now.Sub(l.Seen).Abs() >= lease/3 // Abs, because the clock may have been set back
}

// Held returns an error that describes the writer of a lane if a writer other than w holds or may hold the lane at the
// time now. It returns nil if the lane does not exist, was released, or belongs to w or to a writer that w replaces;
// and if the process of its writer is known to have ended, or its lease has expired.
func (m Meta) Held(lane string, w Writer, now time.Time) *HeldError {
	l := m.lane(lane)
	// Only one process at a time serves a state directory, so an earlier process with the same state directory has ended.
	if l == nil || l.Left != nil || l.Writer.Same(w) {
		return nil
	}
	life, until := l.Writer.Life(), l.until()
	if over := !until.IsZero() && now.After(until); life == Dead || life == Unknown && (over || l.Writer.replacedBy(w)) {
		return nil
	}
	return &HeldError{Session: m.Session, Lane: lane, Writer: l.Writer, Since: l.Since, Life: life,
		Seen: l.Seen, Until: until}
}

// replacedBy reports whether o continues the work of w, which must have ended: both have the same identity, and only
// one sandbox has an identity at a time.
func (w Writer) replacedBy(o Writer) bool { return w.Identity != "" && w.Identity == o.Identity }

// InUse reports whether a writer holds or may hold a lane of the session at the time now; see Held.
func (m Meta) InUse(now time.Time) bool {
	return m.State == Active && slices.ContainsFunc(m.Lanes,
		func(l Lane) bool { return m.Held(l.Name, Writer{}, now) != nil })
}

// Now returns the state of the session at the time now. It returns Paused for a session that is recorded as active
// although no writer can be using it.
func (m Meta) Now(now time.Time) LifeState {
	if m.Interrupted(now) {
		return Paused
	}
	return m.State
}

// Interrupted reports whether the session is recorded as active although no writer holds a lane of it at the time now.
func (m Meta) Interrupted(now time.Time) bool { return m.State == Active && !m.InUse(now) }

// unleased is the time without a change of the session after which Abandon releases lanes that have no lease.
const unleased = 7 * 24 * time.Hour

// Abandon releases lanes of m that have no lease, because an older version of artifactfs has claimed them, if the last
// change of the session was more than a week ago. The parameter changed is the time of this change. Abandon does not
// store m.
func (m *Meta) Abandon(changed, now time.Time) {
	for i := range m.Lanes {
		if l := &m.Lanes[i]; l.Left == nil && l.Lease <= 0 && now.Sub(changed) > unleased {
			l.Left = &changed
		}
	}
}

// Renew records and stores a sign of life of w at the present time, if w holds the lane and its lease is due for
// renewal. It returns the lane.
func Renew(ctx context.Context, r *Repo, session, lane string, w Writer) (Lane, error) {
	m, err := ChangeMeta(ctx, r, session, func(m *Meta, now time.Time) error {
		if l := m.lane(lane); l != nil && l.Writer.Same(w) && l.Due(now) {
			l.Seen = now
		}
		return nil
	})
	if l := m.lane(lane); l != nil {
		return *l, err
	}
	return Lane{}, err
}
