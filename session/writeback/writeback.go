// Package writeback pushes the commits and checkpoints of a session to its session remote. Package refcopy copies the
// refs that git has changed in the mount's git directory into the session's bare repository (session.Repo, "the Repo"
// below), and package capture writes checkpoints there. A Queue pushes the refs of the Repo to the session remote.
//
// The package guarantees:
//   - No commit that the session remote has acknowledged is lost. A ref of the session remote that only this session
//     writes (session.Layout.Exclusive) is moved by compare-and-swap from the value that this session pushed last; any
//     other ref is moved only if its old value is an ancestor of the new one. Old tips of rewritten and removed
//     branches are kept.
//   - Notes refs are shared by all sessions and merged. Two versions of a note are merged member by member if they are
//     JSON objects; otherwise the result is the union of their lines, as with "git notes merge -s cat_sort_uniq".
//   - Pushes are sent one at a time and in order. Each push contains the newest values of the refs and all commits
//     between these values and the values that were pushed before.
//   - No clean shutdown is needed. The refs to push are the difference between the Repo's refs and the ledger, a file
//     that records which values the session remote has acknowledged and which updates were sent without an answer.
//   - A push reads only owned objects, those that were created in the session, so nothing is fetched from the mounted
//     remote. The exception is a session remote that lacks the base commits of the session (ModeSeed): their history is
//     fetched and pushed first, in one pack.
//
// A commit or checkpoint is pushed in the following steps; pipeline.go contains most of them in this order:
//
//	event     refcopy.Copier copies the commit and its ref into the Repo, capture.Capturer a checkpoint;
//	          Queue.waitForRound receives from Repo.Changed
//	round     Queue.run calls Queue.round, which holds remoteToken and calls round.attempt until nothing differs
//	collect   collect reads the refs of the Repo; if ledger.pending finds no difference, the round ends
//	open      connection.open reads those refs of the session remote that requested names; modeChoice.choose and
//	          claimer.decide decide once how the session uses it
//	erase     round.eraseFirst repeats what other hosts have erased from the transcript
//	compare   comparison.run finds the updates; a ref that others have changed goes to a diverged name, or to
//	          movedRefs.follow
//	select    selector.load returns the objects that the session remote lacks, and the base commits
//	          (seeder.missingBases)
//	pack      packer.pack makes one pack, or a container
//	push      round.send: record.keep writes the values that are sent; connection.send sends them
//	answer    round.answers records accepted updates in the ledger, and refused ones by refusals.add; record.keep writes
//	notes     notesPusher.push merges and pushes notes, after all other refs
//	base      seeder.push pushes base commits that the session remote lacks; then the next round begins
//	schedule  syncCalls.answer ends the calls of Sync; Queue.rest waits for the next change, for a retry
//	          (pauses), or for the time at which a refused update may be sent again
//
// Terms: a *moved* ref is a ref that another session has set, on the session remote, to a commit that is not an
// ancestor of this session's commit. This session's commit is then pushed to a diverged name (session.DivergedRef). The
// *base commits* are the commits of the mounted remote to which owned objects refer; names of files and refs use the
// older word *ground* for them.
package writeback

import (
	"errors"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
)

var (
	// ErrMoved means that another session has changed a ref on the session remote.
	ErrMoved = session.ErrMoved
	// ErrRefused means that the session remote has refused an update of a ref.
	ErrRefused = errors.New("session remote rejected the ref")
	// ErrClosed is returned to callers that wait when the queue is closed.
	ErrClosed = errors.New("queue of pushes was closed")
)

// Status describes which refs of a session are pending, and why.
type Status struct {
	// Mode is the way in which the session remote gets the base commits.
	Mode Mode
	// Pending is the number of refs that are not pushed yet, because they differ between the Repo and the session
	// remote.
	Pending int
	// PendingSince is the time since which at least one ref is pending; zero if none is pending, or before the first
	// round.
	PendingSince time.Time
	// LastSync is the last time at which no ref was pending; zero if there was no such time.
	LastSync time.Time
	// Failure is the error that keeps refs pending; its text holds no secrets.
	Failure error
	// Since is the time of the first of the consecutive failures; zero if Failure is nil.
	Since time.Time
	// Layout maps the names of refs in the Repo to their names on the session remote.
	Layout session.Layout
	// Diverged lists the refs that were pushed to their diverged names.
	Diverged []Diverged
	// Behind lists the refs whose commit in the Repo is an ancestor of their commit on the session remote, as "REF: ID"
	// with the latter commit.
	Behind []string
	// Moved lists refs that only this session writes, those of its metadata and checkpoints, but that another machine
	// has changed. They are no longer pushed.
	Moved []string
	// Refused lists refused refs as "REF: REASON", one entry for each reason, first those of the user.
	Refused []string
	// Notices are messages for the user, such as refs that the session remote had lost.
	Notices []string

	// Traffic counts the bytes that all mounts of the session on this host have transferred.
	Traffic Traffic

	// Seeding states that a push of the base commits is in progress.
	Seeding bool
	// Seeded is the number of bytes of base commits that were transferred. SeedSize is the total number of bytes to
	// transfer; 0 if it is not known yet.
	Seeded, SeedSize int64
}

// Diverged is a branch, tag or notes ref that could not be pushed to its usual name on the session remote, and was
// pushed to another name instead.
type Diverged struct {
	// Ref is the name of the ref in the mount.
	Ref string
	// There is the usual name of the ref on the session remote. It has commits there that Ref lacks, or it cannot be
	// created.
	There string
	// Ours is the name on the session remote to which Ref was pushed instead.
	Ours string
	// InWay is the ref on the session remote that prevents the creation of There, as feature prevents feature/x; "" if
	// There exists and has other commits.
	InWay string
}

// Taken describes a ref of the session's metadata or checkpoints that another machine, which has taken the session
// over, has changed on the session remote.
type Taken struct {
	// Ref is the name of the ref. Theirs is its commit on the session remote.
	Ref    string
	Theirs object.ID
}
