package mount

import (
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/host/mount/takeover"
)

// unmountOptions states what an unmount does with the session. The methods may be called from any goroutine.
type unmountOptions struct {
	mu      sync.Mutex
	discard bool          // whether to delete the session; protected by mu
	trash   bool          // whether a deleted session is moved to the trash; protected by mu
	there   bool          // whether to delete the session on its session remote too; protected by mu
	keepFor time.Duration // how long the session is kept; 0: until a user deletes it; protected by mu
}

// The method set stores whether the unmount discards the session, whether a discarded session is moved to the trash, whether it is
// deleted on its session remote, and how long a session is kept. It also stores the options in h for a successor, which may have to
// complete the unmount.
func (o *unmountOptions) set(discard, trash, there bool, keep time.Duration, h *takeover.Handover) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.discard, o.trash, o.there, o.keepFor = discard, discard && trash, there, keep
	h.Update(func(h *takeover.State) { h.Discard, h.Trash, h.Keep = o.discard, o.trash, o.keepFor })
}

// takeOver sets the options that the predecessor has stored in h.
func (o *unmountOptions) takeOver(h takeover.State) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.discard, o.trash, o.keepFor = h.Discard, h.Trash, h.Keep
}

// expiry returns the time at which the session is moved to the trash automatically. It returns the zero time if the session is
// kept until a user deletes it.
func (o *unmountOptions) expiry(now time.Time) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.keepFor <= 0 {
		return time.Time{}
	}
	return now.Add(o.keepFor).UTC()
}

// discards reports whether the unmount deletes the session, with or without moving it to the trash.
func (o *unmountOptions) discards() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.discard
}

// removes reports whether the unmount deletes the session without moving it to the trash.
func (o *unmountOptions) removes() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.discard && !o.trash
}

// deletesThere reports whether the unmount deletes the session on its session remote. A successor learns this when the client repeats its
// request.
func (o *unmountOptions) deletesThere() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.there
}
