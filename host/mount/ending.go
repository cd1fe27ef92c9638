package mount

import (
	"slices"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/host/mount/home"
	"github.com/artifactfs/artifactfs/host/mount/takeover"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/trash"
)

// ending states what an unmount does with the session of a mount and, after that, what was kept of the user's changes.
// The methods may be called from any goroutine.
//
//	zero value: the session is kept -- set --> what the user wants -- close --> the outcome is known
//	               ^                              |
//	               +-- set, if the unmount fails -+
type ending struct {
	mu      sync.Mutex    // protects all fields
	discard bool          // whether to delete the session
	trash   bool          // whether a deleted session is moved to the trash
	there   bool          // whether to delete the session on its session remote, too
	keepFor time.Duration // time for which the session is kept; 0 to keep it until a user deletes it
	outcome home.Outcome  // which changes were kept; does not change after the mount has ended
}

// set stores whether the unmount discards the session, whether a discarded session is moved to the trash, whether it is
// deleted on its session remote, and how long a session is kept. It also stores these options in h for a successor,
// which may have to complete the unmount.
func (e *ending) set(discard, trash, there bool, keep time.Duration, h *takeover.Handover) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.discard, e.trash, e.there, e.keepFor = discard, discard && trash, there, keep
	h.Update(func(h *takeover.State) { h.Discard, h.Trash, h.Keep = e.discard, e.trash, e.keepFor })
}

// takeOver sets the options that the predecessor has stored in h.
func (e *ending) takeOver(h takeover.State) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.discard, e.trash, e.keepFor = h.Discard, h.Trash, h.Keep
}

// expiry returns the time at which the session is moved to the trash automatically. It returns the zero time if the
// session is kept until a user deletes it.
func (e *ending) expiry(now time.Time) time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.keepFor <= 0 {
		return time.Time{}
	}
	return now.Add(e.keepFor).UTC()
}

// discards reports whether the unmount deletes the session, with or without moving it to the trash.
func (e *ending) discards() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.discard
}

// removes reports whether the unmount deletes the session without moving it to the trash.
func (e *ending) removes() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.discard && !e.trash
}

// deletesOnRemote reports whether the unmount deletes the session on its session remote. A successor gets this option
// when the client repeats its request.
func (e *ending) deletesOnRemote() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.there
}

// reason returns the reason that the last checkpoint of the mount records. shutdown states whether the daemon is being
// closed.
func (e *ending) reason(shutdown bool) session.Reason {
	switch {
	case e.discards():
		return session.Discard
	case shutdown:
		return session.Shutdown
	}
	return session.Unmount
}

// close records what was kept of the user's changes.
func (e *ending) close(kept home.Outcome) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.outcome = kept
}

// result returns what was kept of the user's changes. It is zero until close is called.
func (e *ending) result() home.Outcome {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.outcome
}

// outcomeInTrash returns the outcome of a mount whose predecessor was killed after it had moved the session to the
// trash. It is zero if the trash does not have the session. A session with this name that was deleted before since, the
// start of the mount, is another one.
func outcomeInTrash(homes statedir.Homes, session string, since time.Time) home.Outcome {
	all, err := homes.Trash()
	i := slices.IndexFunc(all, func(t statedir.Trashed) bool {
		return t.Session == session && t.At.Unix() >= since.Unix()
	})
	if err != nil || i < 0 {
		return home.Outcome{}
	}
	return home.Outcome{Trashed: session, Until: all[i].At.Add(trash.Keep)}
}
