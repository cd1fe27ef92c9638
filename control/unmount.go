package control

import "time"

// UnmountRequest requests that the mount at Dir is unmounted.
type UnmountRequest struct {
	Dir     string `json:"dir"`     // absolute directory of the mount
	Discard bool   `json:"discard"` // delete the session with all changes

	// with Discard: move the session to the trash, from which it can be restored for 7 days
	Trash bool `json:"trash,omitempty"`
	// Keep is the time after which the session is moved to the trash, if Discard is not set. 0: the session is kept until
	// it is deleted.
	Keep time.Duration `json:"keep_ns,omitempty"`

	// Timeout is the maximum time to wait until everything in the session is on the session remote; 0: the daemon's
	// default; negative: do not wait.
	Timeout time.Duration `json:"timeout_ns,omitempty"`

	// Detach also unmounts a mount that is in use. The mount disappears from the directory tree immediately, and later
	// accesses by the processes that use the mount fail.
	Detach bool `json:"detach,omitempty"`

	// RemoveDir also removes Dir if it is empty after the unmount, even if the daemon has not created it. With
	// RemoveDir, it is not an error if nothing is mounted at Dir, or if Dir does not exist.
	RemoveDir bool `json:"remove_dir,omitempty"`
}

// UnmountReply is the output of `unmount --json` for one directory.
type UnmountReply struct {
	ID      string `json:"id"`            // id of the mount
	Dir     string `json:"dir"`           // absolute directory of the mount
	Session string `json:"session"`       // session that stores the changes; "": there were no changes
	Pending int64  `json:"pending"`       // number of refs of the session that are not on the session remote yet
	Why     string `json:"why,omitempty"` // reason why refs are pending
	Kept    int64  `json:"kept"`          // number of changed paths in the session
	// NotRemoved describes which parts of a discarded session remain on the session remote, and why.
	NotRemoved string `json:"not_removed,omitempty"`

	// name under which `session undelete` restores the session; "": nothing was discarded
	Trashed string `json:"trashed,omitempty"`
	// end of the time for which the session is kept, or can be restored from the trash
	Until time.Time `json:"until,omitzero"`

	// session remote, without secrets; set only if there are DivergedRefs
	SessionRemote string        `json:"session_remote,omitempty"`
	DivergedRefs  []DivergedRef `json:"diverged_refs,omitempty"` // refs that have diverged on the session remote

	Submodules []UnmountReply `json:"submodules,omitempty"` // mounts of submodules that were unmounted with this one
}
