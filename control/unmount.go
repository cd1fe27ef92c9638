package control

import "time"

// UnmountRequest asks to end the mount at Dir.
type UnmountRequest struct {
	Dir     string `json:"dir"`     // absolute
	Discard bool   `json:"discard"` // delete the changes

	Trash bool          `json:"trash,omitempty"`   // with Discard: `session undelete` can restore it for 7 days
	Keep  time.Duration `json:"keep_ns,omitempty"` // without Discard: the session goes to the trash after this time; 0: it is kept until it is discarded

	// Timeout bounds the wait for the session remote; 0: the daemon's default, negative: none at
	// all.
	Timeout time.Duration `json:"timeout_ns,omitempty"`

	// Detach takes a mount that is in use out of the directory tree. What its users do with it from
	// then on fails.
	Detach bool `json:"detach,omitempty"`
}

// UnmountReply is what `unmount --json` prints for each directory.
type UnmountReply struct {
	ID         string `json:"id"`
	Dir        string `json:"dir"`
	Session    string `json:"session"`                         // that keeps the work; "" if there was none to keep
	Pending    int64  `json:"pending"`                         // of its refs that are not on the session remote yet
	Why        string `json:"why,omitempty"`                   // leftovers of deleted work on the session remote, and why they remain
	Kept       int64  `json:"kept"`                            // changed paths in it
	NotRemoved string `json:"not_removed,omitempty" v5:"left"` // what the session remote still has of work that was thrown away, and why

	Trashed string    `json:"trashed,omitempty"` // session that `session undelete` brings back; "": there was nothing to discard
	Until   time.Time `json:"until,omitzero"`    // so long: the session in the trash, or one that Keep is for

	SessionRemote string        `json:"session_remote,omitempty"` // without secrets
	DivergedRefs  []DivergedRef `json:"diverged_refs,omitempty"`

	Submodules []UnmountReply `json:"submodules,omitempty"` // that were unmounted with it
}
