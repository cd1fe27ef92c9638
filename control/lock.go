package control

import (
	"context"
	"time"
)

// Locks is a Handler that reads and changes the locks of sessions.
type Locks interface {
	SessionLocks(ctx context.Context, r SessionLocksRequest) (SessionLocksReply, error)
}

// The operations of a SessionLocksRequest.
const (
	LockList    = "list"
	LockAcquire = "lock"
	LockRelease = "unlock"
)

// SessionLocksRequest requests the list of locks on a session remote, and may change locks before.
type SessionLocksRequest struct {
	// directory of a mount, or name of a session; "": none, with SessionRemote
	Of            string `json:"of"`
	SessionRemote string `json:"session_remote,omitempty"` // session remote that has the locks; "": the one of the session
	Op            string `json:"op"`                       // "list", "lock" or "unlock"
	// Patterns are the paths or globs to lock or unlock, relative to the root of the mount; to unlock, also ids of locks.
	Patterns []string `json:"patterns,omitempty"`
	// duration of the locks, which a mount of the session renews; 0: one hour
	TTL    time.Duration `json:"ttl_ns,omitempty"`
	Reason string        `json:"reason,omitempty"` // reason why the paths are locked or unlocked
	Force  bool          `json:"force,omitempty"`  // unlock also locks of other sessions; needs a reason
	Actor  string        `json:"actor,omitempty"`  // user of the command; "": the user of the daemon
}

// SessionLocksReply is the output of `session lock --json`, `session unlock --json` and `session locks --json`.
type SessionLocksReply struct {
	Session string `json:"session,omitempty"` // session of the request
	// reaction of mounts to changes of locked paths: "refuse", "warn" or "ignore"
	Mode  string        `json:"mode"`
	Locks []SessionLock `json:"locks"`          // locks after the change, oldest first
	Done  []SessionLock `json:"done,omitempty"` // locks that the request has acquired or released
	// locks that were removed by force within the last 7 days, oldest first
	Forced []ForcedUnlock `json:"forced,omitempty"`
	// Changed lists files that are covered by the locks in Done, and that differ from the base commit in other mounts
	// of this host with the same session remote.
	Changed []string `json:"changed,omitempty"`
}

// SessionLock is a lock of a session on paths.
type SessionLock struct {
	ID      string    `json:"id"`               // id of the lock
	Session string    `json:"session"`          // session that holds the lock
	Actor   string    `json:"actor"`            // user or program that has acquired the lock
	Host    string    `json:"host"`             // host on which the lock was requested
	Pattern string    `json:"pattern"`          // path or glob; a directory also stands for everything in it
	Since   time.Time `json:"since"`            // time at which the lock was acquired
	Expires time.Time `json:"expires"`          // time at which the lock expires unless it is renewed
	Reason  string    `json:"reason,omitempty"` // reason of the lock
	Mine    bool      `json:"mine"`             // true if the session of the request holds the lock
}

// ForcedUnlock is the record of a lock that a session has removed from another session.
type ForcedUnlock struct {
	Lock    SessionLock `json:"lock"`              // the lock
	Session string      `json:"session,omitempty"` // session of the command that has removed the lock
	Actor   string      `json:"actor"`             // user of that command
	Host    string      `json:"host"`              // host of that command
	Time    time.Time   `json:"time"`              // time of the removal
	Reason  string      `json:"reason"`            // reason
}

func (r SessionLocksRequest) validate() error {
	if (r.Op == LockList) != (len(r.Patterns) == 0) || r.Op != LockList && r.Op != LockAcquire && r.Op != LockRelease {
		return badRequest("want list, or lock or unlock with patterns; got %.20q", r.Op)
	}
	return needEntries(r.Of, r.SessionRemote)
}

// SessionLocks requests the list of locks on a session remote, and may change locks before.
func SessionLocks(ctx context.Context, c *Client, r SessionLocksRequest) (SessionLocksReply, error) {
	return call[SessionLocksReply](ctx, c, opSessionLocks, r, nil)
}
