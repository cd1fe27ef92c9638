package session

import (
	"slices"
	"time"

	"github.com/artifactfs/artifactfs/control/profile"
)

// Meta is the metadata of a session. It is stored as the file session.json in the tree of the commit to which MetaRef
// points. The parent of this commit is the previous version of the metadata.
type Meta struct {
	Version int    `json:"version"` // version of the format: metaVersion
	Session string `json:"session"` // name of the session
	Remote  string `json:"remote"`  // URL of the mounted remote, without secrets
	Ref     string `json:"ref"`     // full name of the branch or tag that was mounted; "" for a commit
	// commit that the session started from; "" for a branch without a commit
	Base       string    `json:"base"`
	Format     string    `json:"format"`                // object format: "sha1" or "sha256"
	Began      time.Time `json:"began"`                 // time at which the session was created
	State      LifeState `json:"state"`                 // state of the session
	From       string    `json:"from,omitempty"`        // "SESSION CHECKPOINT": checkpoint from which it was forked
	FromRemote string    `json:"from_remote,omitempty"` // URL of the parent session's session remote, without secrets
	// link to the original, if the session was copied by the fork of a repository
	CopyOf string `json:"copy_of,omitempty"`
	// pattern of branch names on the session remote; see Layout.Branches
	Branches string `json:"branches,omitempty"`
	Lanes    []Lane `json:"lanes"` // chains of checkpoints; see Lane
	profile.Profile
	// Erased lists the records that were erased from the transcript. Forks of the session erase the same records from
	// their copies.
	Erased      []Erasure    `json:"erased,omitempty"`
	Transitions []Transition `json:"-"` // changes of the state, oldest first; stored in transitions.jsonl
}

// Erasure describes records that were erased from the transcript of a session: the records with the listed IDs, or all
// records that are older than the time Before, but none that were made in the sessions Except.
type Erasure struct {
	IDs    []string  `json:"ids,omitempty"`   // IDs of the erased records
	Before time.Time `json:"before,omitzero"` // if set, all records older than this time were erased
	// sessions of which Before has erased no records: forks of the session for which the records were erased
	Except []string  `json:"except,omitempty"`
	Time   time.Time `json:"time"`          // time of the erasure
	By     string    `json:"by"`            // actor who erased the records
	Why    string    `json:"why,omitempty"` // reason that the actor stated
}

// Same reports whether e and o describe the same erasure.
func (e Erasure) Same(o Erasure) bool {
	return e.Time.Equal(o.Time) && e.By == o.By && e.Before.Equal(o.Before) && slices.Equal(e.IDs, o.IDs) &&
		slices.Equal(e.Except, o.Except)
}

// covers reports whether e has erased everything that o has erased.
func (e Erasure) covers(o Erasure) bool {
	return slices.Equal(e.IDs, o.IDs) && !e.Before.Before(o.Before) &&
		!slices.ContainsFunc(e.Except, func(name string) bool { return !slices.Contains(o.Except, name) })
}

// Lane is a chain of checkpoints. One writer at a time adds checkpoints to it.
type Lane struct {
	Name   string    `json:"name"`   // name of the lane, which is a part of the names of its refs; see SegmentRef
	Writer Writer    `json:"writer"` // writer that holds the lane, or held it last
	Since  time.Time `json:"since"`  // time at which Writer claimed the lane
	// first segment to which Writer writes; increased by each claim of another state directory
	Segment int `json:"segment"`
	// Left is the time at which the writer released the lane. If Left is nil, the writer still holds the lane, or its
	// process has ended without a release.
	Left *time.Time `json:"left,omitempty"`
	// Seen is the time of the writer's last sign of life. The writer holds the lane for Lease seconds after that. If
	// Lease is 0, as in metadata of older versions, the writer holds the lane until it releases the lane.
	Seen  time.Time `json:"seen,omitzero"`
	Lease int64     `json:"lease_seconds,omitempty"`
}

// Writer identifies the daemon that makes the checkpoints of a lane, by its state directory, machine and process. The
// method Life reports whether the process still runs, if it is on the same machine.
type Writer struct {
	Machine string `json:"machine"` // keyed hash of machine-id(5); "" if unknown
	Host    string `json:"host"`    // name of the machine, shown to people
	Boot    string `json:"boot"`    // boot ID of that machine
	State   string `json:"state"`   // random name of the state directory, from writerFile
	PIDs    string `json:"pids"`    // name of the PID namespace in which PID is valid
	PID     int    `json:"pid"`     // ID of the process of the daemon that runs as long as the daemon
	Started uint64 `json:"started"` // start time of PID in clock ticks since boot (proc_pid_stat(5), field 22)
	// Identity is a name that at most one running daemon has at a time, such as the name of a container; the user
	// guarantees this. It is "" if the user has set none.
	Identity string `json:"identity,omitempty"`
}

// Transition records one change of a session's state.
type Transition struct {
	State  LifeState `json:"state"`  // state after the change
	Time   time.Time `json:"time"`   // time of the change
	Actor  string    `json:"actor"`  // user, or user and host, that requested the change; see the function Actor
	Reason string    `json:"reason"` // reason as a text for people
}
