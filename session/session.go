// Package session stores the work in a mount, so that another mount, on this or another machine, can resume it:
// checkpoints of the working tree, the state of git at each checkpoint, the user's commits, and the metadata of the
// session. All of them are stored as git objects and refs in a bare repository of the session (Repo), which stock git
// can read.
//
// # Terms
//
//   - A checkpoint is a commit whose tree is the working tree at one moment. Making a checkpoint does not change the
//     user's index, branches or files.
//   - The state of a checkpoint is a second commit, which is a parent of the checkpoint. It stores the rest of git's
//     data: index, HEAD, refs, stashes, and the files of an unfinished git operation, such as a rebase.
//   - A writer is a daemon that mounts the session, identified by its state directory. A lane is the chain of
//     checkpoints that one writer makes. A lane is divided into segments, each of which can be dropped as a whole,
//     because the first checkpoint of a segment does not have the last checkpoint of the previous segment as a parent.
//   - The session remote is the repository to which the refs below are pushed. If the user names no session remote, the
//     Repo itself is the session remote.
//   - An object is owned if it was created in the session; all other objects can be fetched from the mounted remote
//     again. A Repo stores the owned objects, and reads the other objects from the store, which the mounts of one
//     remote share.
//
// # Refs
//
//	refs/afs/meta/SESSION               metadata of the session, and its history (Meta)
//	refs/afs/j/SESSION/LANE/SEGMENT     the newest checkpoint of a segment
//	refs/afs/pin/SESSION/NAME           the pinned checkpoint NAME, which GC keeps
//	refs/afs/carried/SESSION/...        branches, tags and notes as the session last pushed them (CarriedRef)
//	refs/afs/base/SESSION               checkpoint, or commit of a clone, that the mount started from (BaseRef)
//	refs/afs/adopted/SESSION/ULID       checkpoints of other sessions that were restored or merged (AdoptedRef)
//	refs/afs/restored/SESSION/ULID      trees of restored checkpoints (RestoredRef)
//	refs/afs/restored/SESSION/worktrees-ID  trees of restored linked worktrees (RestoredWorktreesRef)
//	refs/afs/kept/SESSION/ULID          old commits of branches that were rewritten or removed
//	refs/afs/diverged/SESSION/...       branches, tags and notes that another session has moved on the session remote (DivergedRef)
//	refs/afs/transcript/SESSION         records of the work in the session: prompts, answers, commands (TranscriptRef)
//	refs/afs/facts/SESSION              facts and handoff, texts for those who resume the session (FactsRef)
//	refs/afs/ann/SESSION                annotations of the session (AnnotationsRef)
//	refs/afs/profile/NAME               read profile of all sessions: the files that programs read after a mount (ProfilePrefix)
//	refs/heads/*, refs/tags/*, refs/notes/*   the user's refs with their names in the mount; Layout maps these to a session remote
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

// SegmentRef returns the name of the ref that points to the newest checkpoint of a segment of a lane. The name contains
// the number of the segment with six digits, so that names sort in the order of the numbers.
func SegmentRef(session, lane string, segment int) string {
	return fmt.Sprintf("%s%s/%06d", LanePrefix(session), lane, segment)
}

// PinPrefix returns the prefix of the refs of a session's pins, which keep checkpoints. The name of the pin follows the
// prefix.
func PinPrefix(session string) string { return Prefix + "pin/" + session + "/" }

// KeptPrefix returns the prefix of the refs that keep the old commits of branches that were rewritten or removed, so
// that they are not lost. A ULID follows the prefix.
func KeptPrefix(session string) string { return Prefix + "kept/" + session + "/" }

// CarriedRef returns the name of the ref that records which commit the session has pushed last for ref, a branch, tag
// or notes ref of the user. While ref still has this commit on the session remote, no other session has changed it.
func CarriedRef(session, ref string) string {
	return CarriedPrefix(session) + strings.TrimPrefix(ref, "refs/")
}

// CarriedPrefix returns the prefix of the names that CarriedRef returns for a session.
func CarriedPrefix(session string) string { return Prefix + "carried/" + session + "/" }

// DivergedRef returns the name under which a session pushes ref, a branch, tag or notes ref of the user, if another
// session has changed the ref that has the usual name on the session remote.
func DivergedRef(session, ref string) string {
	return DivergedPrefix + session + "/" + strings.TrimPrefix(ref, "refs/")
}

// DivergedPrefix is the prefix of the names that DivergedRef returns, for all sessions.
const DivergedPrefix = Prefix + "diverged/"

// FactsRef returns the name of the ref that stores the facts and the handoff of a session: short texts for the person
// or agent that resumes the session.
func FactsRef(session string) string { return Prefix + "facts/" + session }

// AnnotationsRef returns the name of the ref that stores the annotations of a session; see package annotate. Reviewers
// change it on the session remote, so the ref in a Repo may be older.
func AnnotationsRef(session string) string { return Prefix + "ann/" + session }

// TranscriptRef returns the name of the ref that stores the transcript of a session: prompts, answers and commands.
func TranscriptRef(session string) string { return Prefix + "transcript/" + session }

// Reason is the reason why a checkpoint was made. It is stored in the checkpoint's commit message.
type Reason string

// Reasons of checkpoints.
const (
	Manual     Reason = "manual"      // a user or a program requested the checkpoint
	Idle       Reason = "idle"        // nothing was written for some time after a change
	Interval   Reason = "interval"    // the configured interval between checkpoints has passed
	Git        Reason = "git"         // a branch, HEAD or a stash has moved
	BeforeRisk Reason = "before-risk" // a git command is about to discard changes
	Unmount    Reason = "unmount"     // the mount is about to be unmounted
	Shutdown   Reason = "shutdown"    // the daemon is about to end
	Discard    Reason = "discard"     // the mount is about to be unmounted, and its session is moved to the trash
	Turn       Reason = "turn"        // a user's prompt was recorded in the transcript
	Removal    Reason = "removal"     // many files were removed or overwritten; the checkpoint contains the removed files
	Restore    Reason = "restore"     // another checkpoint is about to be restored
	Merging    Reason = "merge"       // result of a merge of two sessions; stored on this host only
	Forking    Reason = "fork"        // another session starts from this checkpoint
)

// LifeState is the state of a session as a whole. See Meta.Become for the changes of the state that a user can request.
type LifeState string

// States of a session.
const (
	Open     LifeState = "open"     // the session was created, but never mounted
	Active   LifeState = "active"   // the session is mounted
	Paused   LifeState = "paused"   // the session is not mounted, and can be resumed
	Resumed  LifeState = "resumed"  // the session became Active again; recorded in a Transition, never in Meta.State
	Closed   LifeState = "closed"   // the session cannot be resumed until it is reopened
	Archived LifeState = "archived" // like Closed; GC keeps only pinned checkpoints and the newest one of each lane
)

// Interrupted is the value of Transition.Reason if a session became paused because the process of its mount ended
// without an unmount.
const Interrupted = "interrupted"
