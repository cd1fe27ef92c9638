// Package session stores the work of a mount so that another mount, here or on another machine, can continue it: checkpoints of
// the working tree, the state of git around them, the user's own commits, and the metadata of the session. All of it is git
// objects and refs, in a bare repository of the session (Repo) that stock git can read.
//
// # Terms
//
//   - A checkpoint is a commit whose tree is the working tree at one moment. Making it changes no index, branch or file.
//   - The state of a checkpoint is a second commit, a parent of the checkpoint's, that stores the rest of git's data:
//     index, HEAD, refs, stashes, and the files of an operation under way, such as a rebase.
//   - A lane is the chain of checkpoints that one writer makes; a segment is a part of it that can be dropped as a whole: its
//     first checkpoint has no parent in the segment before.
//   - The session remote is the repository that all of that is pushed to. If none is named, it is the Repo itself.
//   - An object is owned if it was made in the session; all others can be fetched from the mounted remote again. A Repo
//     stores owned objects only, and reads the rest from the store.
//
// # Refs
//
//	refs/afs/meta/SESSION               metadata of the session, and its history (Meta)
//	refs/afs/j/SESSION/LANE/SEGMENT     the newest checkpoint of a segment
//	refs/afs/pin/SESSION/NAME           a checkpoint kept by name
//	refs/afs/carried/SESSION/...        branches, tags and notes as the session last pushed them (CarriedRef)
//	refs/afs/base/SESSION               checkpoint of another session that the mount started from (BaseRef)
//	refs/afs/adopted/SESSION/ULID       checkpoints of other sessions that were restored or merged (AdoptedRef)
//	refs/afs/restored/SESSION/ULID      trees of restored checkpoints (RestoredRef)
//	refs/afs/kept/SESSION/ULID          tips of branches that were rewritten or removed
//	refs/afs/diverged/SESSION/...       branches, tags and notes that another session has moved on the session remote
//	refs/afs/transcript/SESSION         records of the work in it
//	refs/afs/facts/SESSION              facts and handoff, kept apart from the transcript
//	refs/heads/*, refs/tags/*, refs/notes/*   the user's, as they are in the mount; see Layout for their names on a session remote
package session

import (
	"fmt"
	"strings"
)

// Prefix is the prefix of all refs that belong to artifactfs and not to the user.
const Prefix = "refs/afs/"

// MetaRef returns the name of the ref that stores the metadata of a session; see Meta.
func MetaRef(session string) string { return Prefix + "meta/" + session }

// LanePrefix returns the prefix of the refs of all segments of all lanes of a session.
func LanePrefix(session string) string { return Prefix + "j/" + session + "/" }

// SegmentRef returns the name of the ref that points to the newest checkpoint of a segment. The number of the segment
// has six digits, so that the names sort like the numbers.
func SegmentRef(session, lane string, segment int) string {
	return fmt.Sprintf("%s%s/%06d", LanePrefix(session), lane, segment)
}

// PinPrefix returns the prefix of the pins of a session; the name of the pin follows it.
func PinPrefix(session string) string { return Prefix + "pin/" + session + "/" }

// KeptPrefix returns the prefix of the refs that keep the tips of branches which were rewritten or removed; a ULID
// follows it.
func KeptPrefix(session string) string { return Prefix + "kept/" + session + "/" }

// CarriedRef returns the name of the ref that records the value of a user's ref at the last push of the session. As
// long as the ref on the session remote still has that value, no other session has moved it.
func CarriedRef(session, ref string) string {
	return CarriedPrefix(session) + strings.TrimPrefix(ref, "refs/")
}

// CarriedPrefix returns the prefix of all refs that CarriedRef returns for a session.
func CarriedPrefix(session string) string { return Prefix + "carried/" + session + "/" }

// DivergedRef returns the name under which a user's ref is pushed if another session has moved that ref on the
// session remote.
func DivergedRef(session, ref string) string {
	return DivergedPrefix + session + "/" + strings.TrimPrefix(ref, "refs/")
}

// DivergedPrefix is the prefix of the refs that DivergedRef returns for all sessions.
const DivergedPrefix = Prefix + "diverged/"

// FactsRef returns the name of the ref that stores the facts and the handoff, which the next person or agent in the
// session reads.
func FactsRef(session string) string { return Prefix + "facts/" + session }

// TranscriptRef returns the name of the ref that stores the transcript of a session.
func TranscriptRef(session string) string { return Prefix + "transcript/" + session }

// Reason states why a checkpoint was made. It is stored in the checkpoint.
type Reason string

// Reasons of checkpoints.
const (
	Manual     Reason = "manual"      // a user or a program requested it
	Idle       Reason = "idle"        // no write for some time
	Interval   Reason = "interval"    // the configured interval has passed
	Git        Reason = "git"         // a branch, HEAD or a stash has moved
	BeforeRisk Reason = "before-risk" // a git command is about to discard changes
	Unmount    Reason = "unmount"     // the mount is about to be unmounted
	Shutdown   Reason = "shutdown"    // the daemon is about to end
	Discard    Reason = "discard"     // the mount is about to be unmounted, and the session is moved to the trash
	Turn       Reason = "turn"        // a user's prompt was recorded in the transcript
	Removal    Reason = "removal"     // many files were removed or overwritten; the checkpoint contains the removed files
	Restore    Reason = "restore"     // another checkpoint is about to be restored
	Merging    Reason = "merge"       // result of a merge of two sessions; stored on this host only
	Forking    Reason = "fork"        // another session starts from this checkpoint
)

// LifeState is the state of a session as a whole; see Transit for the changes that a user can request.
type LifeState string

// States of a session.
const (
	Open     LifeState = "open"     // created, but never mounted
	Active   LifeState = "active"   // mounted
	Paused   LifeState = "paused"   // not mounted; can be resumed
	Resumed  LifeState = "resumed"  // state of a Transition only: the session became Active again
	Closed   LifeState = "closed"   // cannot be resumed until it is reopened
	Archived LifeState = "archived" // closed; GC keeps only its pinned checkpoints and the newest of each lane
)

// Interrupted is the reason of the transition to Paused if the mount ended without an unmount.
const Interrupted = "interrupted"
