// Package writeback has a session's work follow it out of the mount: a RefCopier brings what git did in the mount's git
// directory into the session's Repo, a Queue brings what is in the Repo to the session remote.
//
// It promises:
//   - What is acknowledged is not lost: a ref of the session remote that only this session writes (session.Layout) moves by
//     compare-and-swap from what this session is known to have put there, any other ref from an ancestor of the new value, and
//     never otherwise. Old tips of rewritten and removed branches are kept.
//   - Notes belong to all sessions: they are merged, a note's lines by union, as git notes merge -s cat_sort_uniq does.
//   - In order and once: one push at a time carries the newest values, with all between them.
//   - Nothing needs a clean end. What is to be sent is what the Repo's refs say less what the session remote has
//     acknowledged, which is a file; what was under way is in it too.
//   - A push reads owned objects only, so it never asks the mounted remote for anything. The exception is a session remote
//     that lacks the history that the session stands on (ModeSeed), which is brought there first, in one piece.
//
// Terms: a *moved* ref is one that somebody else has changed on the session remote to something that ours does not
// contain; ours then goes to session.DivergedRef. *Ground* is the commits of the mounted remote that owned objects stand
// on.
package writeback

import (
	"errors"
	"time"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
)

// Mode says how a session remote comes to the objects that the session did not make.
type Mode string

const (
	ModeUnknown  Mode = ""         // it was not reached yet
	ModeEmbedded Mode = "embedded" // it is the Repo, which borrows them
	ModeShared   Mode = "shared"   // it has them
	ModeSeed     Mode = "seed"     // they were, or are being, sent there
	ModeThin     Mode = "thin"     // it does without: see package thin
)

var (
	// ErrMoved says that somebody else has moved a ref on the session remote.
	ErrMoved = session.ErrMoved
	// ErrRefused says that the session remote refused a ref.
	ErrRefused = errors.New("the session remote refuses it")
	// ErrClosed says that the queue was closed while somebody waited.
	ErrClosed = errors.New("closed")
)

// Status is how far the session remote is behind.
type Status struct {
	Mode     Mode
	Pending  int       // refs that are not on the session remote as they are here
	LastSync time.Time // when all was there last; zero: never
	Failure  error     // why what is pending is not there; its text holds no secrets
	Since    time.Time // since when there is Failure
	Layout   session.Layout
	Diverged []Diverged
	Behind   []string // "REF: ID" of refs of which the session remote has all that is here, and more
	Moved    []string // the session's own refs (meta, checkpoints) that somebody else has moved; they are not sent any more
	Refused  []string // "REF: WHY" of refs that the session remote does not want, those for the same reason in one, the user's first
	Notices  []string // what is worth telling, such as refs that the session remote had lost

	Traffic Traffic

	Seeding          bool  // the ground is on its way
	Seeded, SeedSize int64 // bytes of it; SeedSize 0: not known yet
}

// Diverged is a branch, tag or notes ref that could not be moved on the session remote to what it is here. What it is here is
// on the session remote all the same, under another name.
type Diverged struct {
	Ref   string // in the mount
	There string // its name on the session remote, which has commits that ours does not contain, or cannot exist
	Ours  string // name on the session remote of what Ref is here
	InWay string // ref on the session remote because of which There cannot exist; "": There has other commits
}

// Taken tells that somebody else has moved a ref of the session's own: another machine has taken it over.
type Taken struct {
	Ref    string
	Theirs object.ID
}
