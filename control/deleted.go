package control

import "time"

// SessionDeleteRequest requests that a session which is not mounted is deleted.
type SessionDeleteRequest struct {
	Of string `json:"of"` // name of the session
	// Remote is the URL (which may contain a secret) or the absolute path of the session remote; "": the session remote
	// that this host records for the session.
	Remote   string `json:"remote,omitempty"`
	TakeOver bool   `json:"take_over,omitempty"` // delete the session even if another machine holds its claim
}

// SessionDeleteReply is the output of `session delete --json` and `session undelete --json`.
type SessionDeleteReply struct {
	Session string    `json:"session"`        // name of the session
	Local   bool      `json:"local"`          // true if the session was on this host
	Refs    int64     `json:"refs"`           // number of refs that were changed on the session remote
	Kept    []string  `json:"kept,omitempty"` // refs on the session remote that were left unchanged
	Until   time.Time `json:"until,omitzero"` // time until which the session can be restored
}

// SessionUndeleteRequest requests that a deleted session is restored. If several deleted sessions have the same name,
// the session that was deleted last is restored, unless Deleted is set.
type SessionUndeleteRequest struct {
	Session string `json:"session"` // name of the session
	// Remote is the URL (which may contain a secret) or the absolute path of the session remote; "": the session remote
	// that the trash of this host records for the session.
	Remote string `json:"remote,omitempty"`
	// Deleted is the time at which the session was deleted, in whole seconds; zero: the last time.
	Deleted time.Time `json:"deleted,omitzero"`
}

// SessionTrashRequest requests a list of the deleted sessions of the state directory, or of a session remote.
type SessionTrashRequest struct {
	// Remote is the URL (which may contain a secret) or the absolute path of the session remote; "": the trash of this
	// state directory is listed.
	Remote string `json:"remote,omitempty"`
}

// SessionTrashReply is the output of `session list --deleted --json`.
type SessionTrashReply struct {
	Deleted []DeletedSession `json:"deleted"` // deleted sessions, newest first
}

// DeletedSession is a deleted session that can be restored.
type DeletedSession struct {
	Name   string    `json:"name"`           // name of the session
	Remote string    `json:"session_remote"` // session remote without secrets
	At     time.Time `json:"deleted_at"`     // time of the deletion
	Until  time.Time `json:"until"`          // time until which the session can be restored
}

func (r SessionUndeleteRequest) validate() error {
	if err := ValidSession(r.Session); err != nil {
		return err
	}
	return nil
}

// needs returns the names of the fields without which a daemon must not carry out the request.
func (r SessionUndeleteRequest) needs() []string {
	if !r.Deleted.IsZero() {
		return []string{"deleted"}
	}
	return nil
}

func (r SessionTrashRequest) validate() error { return nil }

func (r SessionDeleteRequest) validate() error { return needOf(r.Of) }
