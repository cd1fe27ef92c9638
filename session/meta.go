package session

import (
	"time"
)

// Meta is the metadata of a session. It is stored as session.json in the tree of MetaRef's commit, and every version
// is a commit whose parent is the version before.
type Meta struct {
	Version     int          `json:"version"`               // version of the format: metaVersion
	Session     string       `json:"session"`               // name of the session
	Remote      string       `json:"remote"`                // URL of the mounted remote, without secrets
	Ref         string       `json:"ref"`                   // full name of the branch or tag that was mounted; "" for a commit
	Base        string       `json:"base"`                  // commit that the session started from; "" for a branch without a commit
	Format      string       `json:"format"`                // object format: "sha1" or "sha256"
	Began       time.Time    `json:"began"`                 // time of creation
	State       LifeState    `json:"state"`                 // state of the session
	From        string       `json:"from,omitempty"`        // "SESSION POINT" of the checkpoint that the session was forked from
	FromRemote  string       `json:"from_remote,omitempty"` // URL of the parent session's session remote, without secrets
	Branches    string       `json:"branches,omitempty"`    // pattern of branch names on the session remote; see Layout.Branches
	Lanes       []Lane       `json:"lanes"`                 // one for each writer so far
	Erased      []Erasure    `json:"erased,omitempty"`      // erased records; forks of the session erase their copies of them
	Transitions []Transition `json:"-"`                     // oldest first; stored in transitions.jsonl, one per line
}

// Erasure describes records that were erased from the transcript of a session: those with the listed IDs, or all
// before a time.
type Erasure struct { // IDs of the records
	IDs    []string  `json:"ids,omitempty"`   // records older than this
	Before time.Time `json:"before,omitzero"` // time of the erasure
	Time   time.Time `json:"time"`            // actor who erased them
	By     string    `json:"by"`              // reason that the actor stated
	Why    string    `json:"why,omitempty"`
}

// Lane is the chain of checkpoints of one writer.
type Lane struct {
	Name    string    `json:"name"`    // part of the names of its refs; see SegmentRef
	Writer  Writer    `json:"writer"`  // writer that holds the lane, or held it last
	Since   time.Time `json:"since"`   // time since when Writer has held it
	Segment int       `json:"segment"` // lowest segment of Writer; higher after a takeover by another state directory
	// Left is the time of the release; nil: the writer is at work, or died without a release.
	Left *time.Time `json:"left,omitempty"`
}

// Writer identifies what makes checkpoints: a state directory on a machine, and the process that serves it. Life
// finds out whether the process still runs, if it is on the same machine.
type Writer struct {
	Machine string `json:"machine"` // keyed hash of machine-id(5); "": not known
	Host    string `json:"host"`    // hostname, for people
	Boot    string `json:"boot"`    // boot ID of that machine
	State   string `json:"state"`   // random name of the state directory (writerFile)
	PIDs    string `json:"pids"`    // PID namespace of PID
	PID     int    `json:"pid"`     // process that outlives workers
	Started uint64 `json:"started"` // start time of PID in clock ticks since boot (proc_pid_stat(5), field 22)
}

// Transition records one change of a session's state.
type Transition struct {
	State  LifeState `json:"state"` // new state
	Time   time.Time `json:"time"`
	Actor  string    `json:"actor"`  // user, or user and host; see Actor
	Reason string    `json:"reason"` // for people
}
