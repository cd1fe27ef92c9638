package locks

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// maxRefusals is the maximum number of attempts to change locked paths that a View remembers.
const maxRefusals = 100

// View decides for one mount which paths programs must not change, because other sessions hold locks on them. It uses
// the locks that were passed to the last call of Set, so no decision waits for the network. All methods may be called
// from any goroutine.
type View struct {
	Session string // session of the mount; its own locks do not block its programs
	Log     *zap.Logger

	others atomic.Pointer[others] // nil if no other session has a lock, or if locks are ignored

	mu       sync.Mutex
	refusals []Refusal // oldest first; at most one for each path and lock
}

// others are the locks of other sessions that are in force.
type others struct {
	locks []Lock
	heads []string // for each lock, the beginning of its pattern up to the first special character
	warn  bool     // changes of locked paths are allowed and logged
}

// Refusal describes the attempts of programs to change a path that another session has locked.
type Refusal struct {
	Path    string
	Lock    Lock
	Allowed bool      // the change was allowed and logged, as the policy requires (Warn)
	Count   int64     // number of attempts
	Last    time.Time // time of the last attempt
}

// othersOf returns the locks in f that belong to other sessions and are in force. It returns nil if there are none, or
// if mode is Ignore.
func (v *View) othersOf(f File, mode Mode) *others {
	o := &others{warn: mode == Warn}
	for _, l := range f.Locks {
		if l.Session == v.Session || mode == Ignore || !l.InForce(time.Now()) {
			continue
		}
		head := l.Pattern
		if i := strings.IndexAny(head, `*?[\`); i >= 0 {
			head = head[:i]
		}
		o.locks, o.heads = append(o.locks, l), append(o.heads, head)
	}
	if len(o.locks) == 0 {
		return nil
	}
	return o
}

// New returns the locks of other sessions in f that the View does not contain yet.
func (v *View) New(f File, mode Mode) (added []Lock) {
	before, next := v.others.Load(), v.othersOf(f, mode)
	if next == nil {
		return nil
	}
	for _, l := range next.locks {
		known := func(other Lock) bool { return other.ID == l.ID }
		if before == nil || before.warn != next.warn || !slices.ContainsFunc(before.locks, known) {
			added = append(added, l)
		}
	}
	return added
}

// Set replaces the locks of the View by those in f. It returns the locks of other sessions that the View did not
// contain before.
func (v *View) Set(f File, mode Mode) (added []Lock) {
	added = v.New(f, mode)
	v.others.Store(v.othersOf(f, mode))
	return added
}

// Active reports whether another session may have a lock. It is cheap, and can be called before each change.
func (v *View) Active() bool { return v.others.Load() != nil }

// Locked reports whether programs must not change the path, because another session has locked it and the policy
// refuses such changes.
func (v *View) Locked(path string) bool {
	o := v.others.Load()
	if o == nil || o.warn {
		return false
	}
	_, locked := o.find(path, false)
	return locked
}

// Refuses reports whether a program that wants to change path must get an error. If below is set, the program wants to
// move or remove the whole directory, so locks on paths below it count, too. Refuses records the attempt, and logs the
// first one for each path and lock.
func (v *View) Refuses(path string, below bool) bool {
	o := v.others.Load()
	if o == nil {
		return false
	}
	l, locked := o.find(path, below)
	if locked {
		v.record(path, l, o.warn)
	}
	return locked && !o.warn
}

// Holder returns the lock of another session that covers the path, even if the policy allows changes of locked paths.
// It returns false if there is none.
func (v *View) Holder(path string) (Lock, bool) {
	if o := v.others.Load(); o != nil {
		return o.find(path, false)
	}
	return Lock{}, false
}

// find returns the first lock in force that covers the path. If below is set, it also finds locks on paths below it.
func (o *others) find(path string, below bool) (Lock, bool) {
	now := time.Now()
	for i, l := range o.locks {
		head := o.heads[i]
		n := min(len(head), len(path))
		if head[:n] != path[:n] || len(path) < len(head) && !below {
			continue
		}
		if (Covers(l.Pattern, path) || below && CoversBelow(l.Pattern, path)) && l.InForce(now) {
			return l, true
		}
	}
	return Lock{}, false
}

// record counts an attempt to change a locked path, and logs the first attempt for each path and lock.
func (v *View) record(path string, l Lock, allowed bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	i := slices.IndexFunc(v.refusals,
		func(r Refusal) bool { return r.Path == path && r.Lock.ID == l.ID && r.Allowed == allowed })
	if i < 0 {
		text := "refused to change a path that is locked by another session"
		if allowed {
			text = "a path was changed although another session has locked it"
		}
		v.Log.Warn(text, zap.String("path", path), zap.String("pattern", l.Pattern), zap.String("session", l.Session),
			zap.String("by", l.Actor+"@"+l.Host), zap.Time("expires", l.Expires), zap.String("reason", l.Reason))
		if len(v.refusals) == maxRefusals {
			v.refusals = slices.Delete(v.refusals, 0, 1)
		}
		v.refusals = append(v.refusals, Refusal{Path: strings.Clone(path), Lock: l, Allowed: allowed})
		i = len(v.refusals) - 1
	}
	v.refusals[i].Count++
	v.refusals[i].Last = time.Now()
}

// Refusals returns the recorded attempts to change paths that are still locked, the latest first.
func (v *View) Refusals() []Refusal {
	o := v.others.Load()
	v.mu.Lock()
	defer v.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(v.refusals), func(r Refusal) bool {
		return o == nil || !slices.ContainsFunc(o.locks,
			func(l Lock) bool { return l.ID == r.Lock.ID && l.InForce(time.Now()) })
	})
	slices.SortStableFunc(list, func(a, b Refusal) int { return cmp.Compare(b.Last.UnixNano(), a.Last.UnixNano()) })
	return list
}

// maxNotes is the maximum number of paths that the method Notes names.
const maxNotes = 5

// Notes returns lines for the status of the mount, which state the locked paths that programs tried to change, and the
// sessions that hold the locks.
func (v *View) Notes() (notes []string) {
	list := v.Refusals()
	for i, r := range list {
		if i == maxNotes {
			return append(notes, fmt.Sprintf("%d more paths that other sessions have locked (artifactfs session locks)",
				len(list)-i))
		}
		did := "refused"
		if r.Allowed {
			did = "allowed"
		}
		changes := "a change"
		if r.Count > 1 {
			changes = fmt.Sprintf("%d changes", r.Count)
		}
		text := fmt.Sprintf("%s is locked by %s until %s: %s %s", r.Path, r.Lock.Holder(),
			r.Lock.Expires.Local().Format(time.DateTime), did, changes)
		if r.Lock.Reason != "" {
			text += " (" + r.Lock.Reason + ")"
		}
		notes = append(notes, text)
	}
	return notes
}
