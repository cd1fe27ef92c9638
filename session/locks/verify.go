package locks

import (
	"fmt"
	"reflect"
	"slices"
	"time"
)

// Pusher is a user of a server who pushes a new version of the file with the locks.
type Pusher struct {
	Actor    string // name of the user
	Session  string // session for which the user may act; "": all
	Controls bool   // the user may remove the locks of all sessions
}

// clockSkew is the maximum difference between times in a pushed file and the clock of the server. early is the time
// before the end of a lock from which a server lets other users remove it as expired, because their clocks may be
// ahead.
const (
	clockSkew = 5 * time.Minute
	early     = time.Minute
)

// Verify returns an error if a server must refuse that a user replaces the file old by the file next. New locks and
// records of forced removals must name the user. New locks must not overlap with locks of other sessions. Locks of
// other sessions that are in force may only be removed with a record.
func Verify(old, next File, by Pusher, now time.Time) error {
	acts := func(name string) bool { return by.Session == "" || name == by.Session }
	near := func(t time.Time) bool { return t.Sub(now).Abs() <= clockSkew }
	inForce := func(l Lock) bool { return l.InForce(now.Add(early)) }
	find := func(list []Lock, id string) (Lock, bool) {
		i := slices.IndexFunc(list, func(l Lock) bool { return l.ID == id })
		if i < 0 {
			return Lock{}, false
		}
		return list[i], true
	}
	var forced []string // ids of the locks with new records
	for _, r := range next.Forced {
		if slices.ContainsFunc(old.Forced, func(o Forced) bool { return reflect.DeepEqual(o, r) }) {
			continue
		}
		l, ok := find(old.Locks, r.Lock.ID)
		switch {
		case r.Actor != by.Actor || r.Session != "" && !acts(r.Session):
			return fmt.Errorf("forced removal of lock %s names the user %.100q and the session %.100q, but the token belongs to %s",
				r.Lock.ID, r.Actor, r.Session, by.Actor)
		case !ok || !reflect.DeepEqual(l, r.Lock) || !near(r.Time):
			return fmt.Errorf("record of the forced removal of lock %s has wrong data", r.Lock.ID)
		}
		forced = append(forced, l.ID)
	}
	for _, o := range old.Forced {
		kept := slices.ContainsFunc(next.Forced, func(r Forced) bool { return reflect.DeepEqual(o, r) })
		if !kept && !by.Controls && now.Sub(o.Time) < KeepForced-clockSkew && len(next.Forced) < maxForced {
			return fmt.Errorf("record of the forced removal of lock %s is missing", o.Lock.ID)
		}
	}
	for _, l := range old.Locks {
		if _, kept := find(next.Locks, l.ID); !kept && inForce(l) && !acts(l.Session) && !by.Controls &&
			!slices.Contains(forced, l.ID) {
			return fmt.Errorf("%w, and is removed without a record of this", &HeldError{Pattern: l.Pattern, Lock: l})
		}
	}
	for _, l := range next.Locks {
		o, known := find(old.Locks, l.ID)
		renewed := o
		renewed.Expires = l.Expires
		switch {
		case known && reflect.DeepEqual(o, l):
			continue
		case l.Expires.Sub(now) > time.Duration(l.Seconds)*time.Second+clockSkew:
			return fmt.Errorf("lock %s expires too late", l.ID)
		case !acts(l.Session) || known && (o.Session != l.Session || o.Pattern != l.Pattern):
			return fmt.Errorf("lock %s is for session %s, for which the token may not lock", l.ID, l.Session)
		case known && reflect.DeepEqual(renewed, l):
			continue
		case l.Actor != by.Actor:
			return fmt.Errorf("lock %s is by %.100q, but the token is of %s", l.ID, l.Actor, by.Actor)
		case !known && !near(l.Since):
			return fmt.Errorf("lock %s begins at a time that is not within %s of the server's", l.ID, clockSkew)
		}
		for _, other := range old.Locks {
			if _, kept := find(next.Locks, other.ID); kept && other.Session != l.Session && inForce(other) &&
				Overlap(l.Pattern, other.Pattern) {
				return &HeldError{Pattern: l.Pattern, Lock: other}
			}
		}
	}
	return nil
}
