package session

import (
	"time"
)

// Meta is session.json, a file of the tree of MetaRef; that commit's history is append-only.
type Meta struct {
	Version     int          `json:"version"`
	Session     string       `json:"session"`
	Remote      string       `json:"remote"` // that was mounted, without secrets
	Ref         string       `json:"ref"`    // full name; "" of a commit
	Base        string       `json:"base"`   // commit that the session began with; "" of an unborn branch
	Format      string       `json:"format"` // of ids
	Began       time.Time    `json:"began"`
	State       LifeState    `json:"state"`
	From        string       `json:"from,omitempty"`        // "SESSION POINT" that it was forked from
	FromRemote  string       `json:"from_remote,omitempty"` // session remote of that session, without secrets
	Branches    string       `json:"branches,omitempty"`    // Layout.Branches
	Lanes       []Lane       `json:"lanes"`
	Erased      []Erasure    `json:"erased,omitempty"` // for forks of the session, which erase the same records
	Transitions []Transition `json:"-"`                // oldest first; a file of its own, transitions.jsonl, to which lines are only added
}

// Erasure lists the records that were erased from the session's transcript, by id or for their age.
type Erasure struct {
	IDs    []string  `json:"ids,omitempty"`
	Before time.Time `json:"before,omitzero"`
	Time   time.Time `json:"time"`
	By     string    `json:"by"`
	Why    string    `json:"why,omitempty"`
}

// Lane is a chain of checkpoints with one writer.
type Lane struct {
	Name    string    `json:"name"`
	Writer  Writer    `json:"writer"`
	Since   time.Time `json:"since"`
	Segment int       `json:"segment"` // that it writes to, at least: a take-over begins a new one
	// Left is when the writer let go; nil: it has not, and works or has died.
	Left *time.Time `json:"left,omitempty"`
}

// Writer makes checkpoints: a state directory on a machine, and the process there, so that on the same machine it can be
// told whether it lives.
type Writer struct {
	Machine string `json:"machine"` // machine-id(5), hashed; "" is not known
	Host    string `json:"host"`
	Boot    string `json:"boot"`    // of that machine
	State   string `json:"state"`   // names the state directory, hashed
	PIDs    string `json:"pids"`    // namespace that PID is of
	PID     int    `json:"pid"`     // of the process that outlives workers
	Started uint64 `json:"started"` // of it, in clock ticks since boot (proc_pid_stat(5), field 22)
}

// Transition is one change of a session's state.
type Transition struct {
	State  LifeState `json:"state"`
	Time   time.Time `json:"time"`
	Actor  string    `json:"actor"`
	Reason string    `json:"reason"`
}
