package locks

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/session"
)

// HeldError means that a path cannot be locked or unlocked because another session holds a lock on it.
type HeldError struct {
	Pattern string // requested pattern or id
	Lock    Lock   // lock of the other session
}

func (e *HeldError) Error() string {
	text := "locked by " + e.Lock.Holder() + " until " + e.Lock.Expires.Local().Format(time.DateTime)
	if e.Lock.Pattern != e.Pattern {
		text = e.Lock.Pattern + " is " + text
	}
	if e.Lock.Reason != "" {
		text += " (" + e.Lock.Reason + ")"
	}
	return text
}

// Caller names the session, the user and the host that change locks.
type Caller struct {
	Session string // session of the command; may be "" if locks are removed
	Actor   string
	Host    string
}

// InForce reports whether other sessions must respect the lock at the time now.
func (l Lock) InForce(now time.Time) bool { return now.Before(l.Expires.Add(Skew)) }

// extend sets the time at which the lock expires to its duration after now.
func (l *Lock) extend(now time.Time) {
	l.Expires = now.UTC().Truncate(time.Millisecond).Add(time.Duration(l.Seconds) * time.Second)
}

// Prune removes the locks that are not in force any more, and the records of forced removals that are older than
// KeepForced.
func (f *File) Prune(now time.Time) {
	f.Locks = slices.DeleteFunc(slices.Clone(f.Locks), func(l Lock) bool { return !l.InForce(now) })
	f.Forced = slices.DeleteFunc(slices.Clone(f.Forced), func(r Forced) bool { return now.Sub(r.Time) > KeepForced })
}

// Acquire adds locks of the session by.Session on the patterns, and returns them. If the session already has a lock
// with the same pattern, that lock gets the new duration and reason. If another session has a lock that overlaps with
// one of the patterns, Acquire returns a *HeldError and locks nothing.
func (f *File) Acquire(by Caller, patterns []string, ttl time.Duration, reason string, now time.Time) ([]Lock, error) {
	f.Prune(now)
	after := session.CheckpointID("")
	for _, l := range f.Locks {
		after = max(after, session.CheckpointID(l.ID))
	}
	list := slices.Clone(f.Locks)
	var made []Lock
	for _, pattern := range patterns {
		for _, other := range f.Locks {
			if other.Session != by.Session && CheckPattern(pattern) == nil && Overlap(pattern, other.Pattern) {
				return nil, &HeldError{Pattern: pattern, Lock: other}
			}
		}
		l := Lock{Session: by.Session, Actor: by.Actor, Host: by.Host, Pattern: pattern, Seconds: int64(ttl / time.Second),
			Reason: reason,
			Since:  now.UTC().Truncate(time.Millisecond)}
		i := slices.IndexFunc(list, func(l Lock) bool { return l.Session == by.Session && l.Pattern == pattern })
		if i >= 0 {
			l.ID, l.Since = list[i].ID, list[i].Since
		} else {
			after = session.NewCheckpointIDAfter(now, after)
			l.ID = string(after)
		}
		l.extend(now)
		if err := l.check(); errors.Is(err, ErrInvalid) {
			return nil, err
		} else if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		if i >= 0 {
			list[i] = l
		} else if list = append(list, l); len(list) > maxLocks {
			return nil, ErrFull
		}
		made = append(made, l)
	}
	f.Locks = list
	return made, nil
}

// Release removes locks and returns them. Each name is a pattern, or the id of a lock or its beginning. A lock of
// another session is removed only if force is true; this adds a record of the forced removal, and needs a reason. If
// one of the locks does not exist, or must not be removed, Release removes nothing.
func (f *File) Release(by Caller, names []string, force bool, reason string,
	now time.Time) (removed []Lock, err error) {
	f.Prune(now)
	list, forced := f.Locks, slices.Clone(f.Forced)
	for _, name := range names {
		i, err := find(list, by.Session, name)
		if err != nil {
			return nil, err
		}
		l := list[i]
		if l.Session != by.Session {
			record := Forced{Lock: l, Session: by.Session, Actor: by.Actor, Host: by.Host, Reason: reason,
				Time: now.UTC().Truncate(time.Millisecond)}
			if !force {
				return nil, &HeldError{Pattern: name, Lock: l}
			}
			if err := record.check(); err != nil {
				return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
			}
			forced = append(forced, record)
		}
		removed = append(removed, l)
		list = slices.Delete(slices.Clone(list), i, i+1)
	}
	f.Locks, f.Forced = list, forced[max(0, len(forced)-maxForced):]
	return removed, nil
}

// find returns the index of the lock whose pattern is name, or whose id begins with name. Locks of the session own take
// precedence. It returns ErrNone if there is no such lock, or more than one.
func find(list []Lock, own, name string) (int, error) {
	for _, mine := range []bool{true, false} {
		for i, l := range list {
			if (l.Session == own) == mine && l.Pattern == name {
				return i, nil
			}
		}
	}
	found := -1
	for i, l := range list {
		if len(name) >= 4 && strings.HasPrefix(l.ID, strings.ToUpper(name)) {
			if found >= 0 {
				return 0, fmt.Errorf("%w: several locks have ids that begin with %s", ErrNone, name)
			}
			found = i
		}
	}
	if found < 0 {
		return 0, fmt.Errorf("%w: %.200q", ErrNone, name)
	}
	return found, nil
}

// ReleaseAll removes all locks of the session name, and reports whether it had any.
func (f *File) ReleaseAll(name string) bool {
	before := len(f.Locks)
	f.Locks = slices.DeleteFunc(slices.Clone(f.Locks), func(l Lock) bool { return l.Session == name })
	return len(f.Locks) < before
}

// Renew extends all locks of the session name that are in force, and reports whether it had any.
func (f *File) Renew(name string, now time.Time) (renewed bool) {
	f.Prune(now)
	for i := range f.Locks {
		if f.Locks[i].Session == name {
			f.Locks[i].extend(now)
			renewed = true
		}
	}
	return renewed
}

// RenewAt returns the time at which the mount should renew the locks of the session with this name: the time at which a
// third of the duration of a lock is over. It returns the zero time if the session has no locks.
func (f *File) RenewAt(name string) (at time.Time) {
	for _, l := range f.Locks {
		due := l.Expires.Add(-2 * time.Duration(l.Seconds) * time.Second / 3)
		if l.Session == name && (at.IsZero() || due.Before(at)) {
			at = due
		}
	}
	return at
}
