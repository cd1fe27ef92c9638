// Package writeback pushes the commits and checkpoints of a session out of the mount. The package refcopy copies the refs that git moved in
// the mount's git directory into the session's bare repository (session.Repo, "the Repo" below), and package capture writes checkpoints
// there. A Queue pushes the refs of the Repo to the session remote, a git repository elsewhere.
//
// The package guarantees:
//   - No commit that the session remote has acknowledged is lost. A ref of the session remote that only this session writes
//     (session.Layout.Exclusive) is moved by compare-and-swap from the value that this session pushed last; any other ref is
//     moved only if its old value is an ancestor of the new one. Old tips of rewritten and removed branches are kept.
//   - Notes refs are shared by all sessions and merged. Two versions of a note are merged member by member if they are JSON
//     objects; otherwise the result is the union of their lines, as with "git notes merge -s cat_sort_uniq".
//   - Pushes are sent one at a time and in order. Each push contains the newest values of the refs and all commits between
//     these values and the values that were pushed before.
//   - No clean shutdown is needed. The refs to push are the difference between the Repo's refs and the ledger, a file that
//     records which values the session remote has acknowledged and which updates were sent without an answer.
//   - A push reads only owned objects, those that were created in the session, so nothing is fetched from the mounted remote.
//     The exception is a session remote that lacks the base commits of the session (ModeSeed): their history is fetched and
//     pushed first, in one pack.
//
// The way of one commit, which pipeline.go makes from top to bottom:
//
//	event     refcopy.Copier copies the commit and its ref into the Repo, capture.Capturer a checkpoint;
//	          Queue.rest sees Repo.Changed
//	round     Queue.run calls Queue.round, which holds the session remote and calls round.attempt until nothing differs
//	collect   collect reads the refs of the Repo; if ledger.pending finds no difference, the round ends
//	open      connection.open reads those refs of the session remote that requested names; modeChoice.choose and
//	          claimer.decide decide once how the session uses it
//	compare   comparison.run returns the updates; a ref that others have moved goes to a diverged name, or to
//	          movedRefs.follow
//	select    selector.load returns the objects that the session remote lacks, and the base commits (seeder.lacks)
//	pack      packer.pack makes one pack, or a container
//	push      round.send: record.keep writes the values that are sent; connection.send sends them
//	answer    round.answers: the ledger gets the accepted values, refusals.add the refused ones; record.keep writes it
//	notes     notesPusher.push merges and pushes notes, after all other refs
//	base      seeder.push pushes the base commits that the session remote lacks; then the next round
//	schedule  syncCalls.answer ends the calls of Sync; Queue.rest waits for the next change, for a retry
//	          (pauses), or for the time at which a refused update may be sent again
//
// Terms: a *moved* ref is a ref that another session has changed on the session remote to a value that this session's value
// does not contain. This session's value is then pushed under a diverged name, session.DivergedRef. The *base commits* are
// the commits of the mounted remote that owned objects refer to; file and ref names use the older word *ground* for them.
package writeback

import (
	"errors"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
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
	// Pending is the number of refs that are not pushed yet, because their values in the Repo and on the session remote differ.
	Pending int
	// PendingSince is the time since which refs are pending; zero if none is pending, or before the first round.
	PendingSince time.Time
	// LastSync is the last time at which no ref was pending; zero if there was no such time.
	LastSync time.Time
	// Failure is the error that keeps refs pending; its text holds no secrets.
	Failure error
	// Since is the time of the first of the consecutive failures; zero if Failure is nil.
	Since time.Time
	// Layout maps the names of refs in the Repo to their names on the session remote.
	Layout session.Layout
	// Diverged lists the refs whose values were pushed under other names.
	Diverged []Diverged
	// Behind lists, as "REF: ID", the refs whose value ID on the session remote contains the value in the Repo.
	Behind []string
	// Moved lists the refs of metadata and checkpoints, which only this session writes, that another session has moved.
	// These refs are no longer pushed.
	Moved []string
	// Refused lists refused refs as "REF: REASON", one entry for each reason, the user's refs first.
	Refused []string
	// Notices are messages for the user, such as refs that the session remote had lost.
	Notices []string

	// Traffic counts the bytes that all mounts of the session on this host have transferred.
	Traffic Traffic

	// Seeding reports that a push of the base commits is in progress.
	Seeding bool
	// Seeded is the number of bytes that the push of the base commits has transferred. SeedSize is the total number of bytes that
	// this push will transfer; 0 if the number is not known yet.
	Seeded, SeedSize int64
}

// Diverged is a branch, tag or notes ref whose value in the mount could not be pushed to its name on the session remote.
// The value was pushed to another name instead.
type Diverged struct {
	// Ref is the name of the ref in the mount.
	Ref string
	// There is the usual name of the ref on the session remote. Either the ref of that name has commits that Ref does not contain,
	// or a ref of that name cannot be created.
	There string
	// Ours is the name on the session remote to which the value of Ref was pushed instead.
	Ours string
	// InWay is the ref on the session remote that prevents the creation of There, as feature prevents feature/x; it is empty if
	// There exists and has other commits.
	InWay string
}

// Taken reports that another machine, which took the session over, has moved a ref of the session's metadata or of its
// checkpoints.
type Taken struct {
	// Ref is the moved ref; Theirs is its value on the session remote.
	Ref    string
	Theirs object.ID
}
