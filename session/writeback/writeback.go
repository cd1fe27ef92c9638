// Package writeback copies a session's work out of the mount. A RefCopier copies the refs that git moved in the mount's
// git directory, and their objects, into the session's Repo. A Queue pushes the refs of the Repo to the session remote.
//
// It promises:
//   - No acknowledged work is lost. A ref of the session remote that only this session writes (session.Layout) is moved by
//     compare-and-swap from the value that this session last pushed; any other ref is moved only from an ancestor of the
//     new value. Old tips of rewritten and removed branches are kept.
//   - Notes refs are shared by all sessions and merged: a note's lines by union, as git notes merge -s cat_sort_uniq does.
//   - Pushes are sent one at a time and in order. Each push contains the newest values and everything between them and
//     the values pushed before.
//   - No clean shutdown is needed. The refs to push are the difference between the Repo's refs and the ledger, a file that
//     records what the session remote acknowledged and which updates were in flight.
//   - A push reads owned objects only, so it requests nothing from the mounted remote. The exception is a session remote
//     that lacks the base commits of the session (ModeSeed): their history is pushed to it first, in one pack.
//
// Terms: a *moved* ref is one that another session changed on the session remote to a value that this session's value
// does not contain; this session's value is then pushed to session.DivergedRef. *Ground* is an older word for the base
// commits: the commits of the mounted remote that owned objects refer to.
package writeback

import (
	"errors"
	"time"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
)

// Mode is the way in which a session remote gets the objects that the session did not create.
type Mode string

const (
	// ModeUnknown means that the mode is not decided yet.
	ModeUnknown Mode = ""
	// ModeEmbedded means that the session remote is the Repo, which borrows the objects from the store.
	ModeEmbedded Mode = "embedded"
	// ModeShared means that the session remote has the objects already, as a fork of the mounted remote has.
	ModeShared Mode = "shared"
	// ModeSeed means that the session pushes the objects to the session remote.
	ModeSeed Mode = "seed"
	// ModeThin means that the session remote refers to the objects by URL and commit: see package thin.
	ModeThin Mode = "thin"
)

var (
	// ErrMoved is returned if another session changed a ref on the session remote.
	ErrMoved = session.ErrMoved
	// ErrRefused is returned if the session remote refused an update of a ref.
	ErrRefused = errors.New("session remote rejected the ref")
	// ErrClosed is returned to a caller that was waiting when the queue was closed.
	ErrClosed = errors.New("queue of pushes was closed")
)

// Status describes which refs are pending and why.
type Status struct {
	// Mode is the way in which the session remote gets the base commits.
	Mode Mode
	// Pending is the number of refs whose values differ between the Repo and the session remote.
	Pending int
	// LastSync is the last time at which no ref was pending; zero: never.
	LastSync time.Time
	// Failure is the error that keeps refs pending; its text holds no secrets.
	Failure error
	// Since is the time of the first failure in a row; zero if Failure is nil.
	Since time.Time
	// Layout maps the names of refs in the Repo to their names on the session remote.
	Layout session.Layout
	// Diverged are the refs whose values were pushed under other names.
	Diverged []Diverged
	// Behind lists, as "REF: ID", the refs whose value ID on the session remote contains the value in the Repo.
	Behind []string
	// Moved lists the session's own refs (meta, checkpoints) that another session moved. They are not pushed any more.
	Moved []string
	// Refused lists refused refs as "REF: REASON", one entry for each reason, the user's refs first.
	Refused []string
	// Notices are messages for the user, such as refs that the session remote had lost.
	Notices []string

	// Traffic counts the bytes of all mounts of the session on this host.
	Traffic Traffic

	// Seeding reports that the base commits are being pushed.
	Seeding bool
	// Seeded and SeedSize are the bytes of that push, done and in all; SeedSize 0: not known yet.
	Seeded, SeedSize int64
}

// Diverged is a branch, tag or notes ref whose value in the mount could not be pushed to its name on the session remote.
// The value was pushed to another name instead.
type Diverged struct {
	// Ref is the name in the mount.
	Ref string
	// There is the name on the session remote. That ref holds commits that Ref does not contain, or cannot be created.
	There string
	// Ours is the name on the session remote that holds the value of Ref.
	Ours string
	// InWay is the ref on the session remote that keeps There from being created (feature, feature/x); "": There has
	// other commits.
	InWay string
}

// Taken reports that a ref of the session's own was moved by another machine, which took the session over.
type Taken struct {
	// Ref is the moved ref; Theirs is its value on the session remote.
	Ref    string
	Theirs object.ID
}
