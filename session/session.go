// Package session stores the work of a mount so that another mount, here or on another machine, can continue it: checkpoints of
// the working tree, the state of git around them, the user's own commits, and the metadata of the session. All of it is git
// objects and refs, in a bare repository of the session (Repo) that stock git can read.
//
// # Terms
//
//   - A checkpoint is a commit whose tree is the working tree at one moment. It touches nothing of the user's.
//   - The state of a checkpoint is a second commit, a parent of the checkpoint's, with what git had beside the files: index, HEAD,
//     refs, stashes, and the files of an operation under way.
//   - A lane is the chain of checkpoints that one writer makes; a segment is a part of it that can be dropped as a whole: its
//     first checkpoint has no parent in the segment before.
//   - The session remote is the repository that all of that is pushed to; the embedded one is the Repo itself.
//   - An object is owned if it was made in the session; all others can be fetched from the mounted remote again. A Repo
//     stores owned objects only, and reads the rest from the store.
//
// # Refs
//
//	refs/afs/meta/SESSION               metadata of the session, and its history (Meta)
//	refs/afs/j/SESSION/LANE/SEGMENT     the newest checkpoint of a segment
//	refs/afs/pin/SESSION/NAME           a checkpoint kept by name
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

// Prefix begins the names of all refs that are not the user's.
const Prefix = "refs/afs/"

// MetaRef returns the ref of a session's metadata.
func MetaRef(session string) string { return Prefix + "meta/" + session }

// LanePrefix returns the prefix of the segments of all lanes of a session.
func LanePrefix(session string) string { return Prefix + "j/" + session + "/" }

// SegmentRef returns the ref of a segment's newest checkpoint.
func SegmentRef(session, lane string, segment int) string {
	return fmt.Sprintf("%s%s/%06d", LanePrefix(session), lane, segment)
}

// PinPrefix returns the prefix of the pins of a session; behind it is the name of the pin.
func PinPrefix(session string) string { return Prefix + "pin/" + session + "/" }

// KeptPrefix returns the prefix of refs that keep the tips of branches which were rewritten or removed; behind it is a ULID.
func KeptPrefix(session string) string { return Prefix + "kept/" + session + "/" }

// CarriedRef returns the ref that records the value which a session has last pushed of a ref of the user. While the session
// remote's ref has that value, no other session has moved it.
func CarriedRef(session, ref string) string {
	return CarriedPrefix(session) + strings.TrimPrefix(ref, "refs/")
}

// CarriedPrefix returns the prefix of a session's CarriedRefs.
func CarriedPrefix(session string) string { return Prefix + "carried/" + session + "/" }

// DivergedRef returns the ref to which a ref of the user is pushed if another session has moved it on the session remote.
func DivergedRef(session, ref string) string {
	return DivergedPrefix + session + "/" + strings.TrimPrefix(ref, "refs/")
}

// DivergedPrefix begins the DivergedRefs of all sessions.
const DivergedPrefix = Prefix + "diverged/"

// FactsRef returns the ref of the facts and the handoff, for the next person or agent to work in the session.
func FactsRef(session string) string { return Prefix + "facts/" + session }

// TranscriptRef returns the ref of a session's transcript.
func TranscriptRef(session string) string { return Prefix + "transcript/" + session }

// Reason is why a checkpoint was made. It is stored in the checkpoint.
type Reason string

const (
	Manual     Reason = "manual"      // requested by a user or program
	Idle       Reason = "idle"        // writes have stopped
	Interval   Reason = "interval"    // the interval is over
	Git        Reason = "git"         // a branch, HEAD or a stash was moved
	BeforeRisk Reason = "before-risk" // a git command was about to throw changes away
	Unmount    Reason = "unmount"     // the mount ends
	Shutdown   Reason = "shutdown"    // the daemon ends
	Discard    Reason = "discard"     // the mount ends, and the session goes to the trash
	Turn       Reason = "turn"        // a person's prompt was recorded
	Removal    Reason = "removal"     // many files were removed or overwritten: it holds the removed files
	Restore    Reason = "restore"     // before a restore of another checkpoint
	Merging    Reason = "merge"       // the merge of two sessions; on this host only
	Forking    Reason = "fork"        // another session begins with it
)

// LifeState is the state of a session.
type LifeState string

const (
	Open     LifeState = "open"     // created, and never worked in
	Active   LifeState = "active"   // it is mounted
	Paused   LifeState = "paused"   // not mounted, and can be resumed
	Resumed  LifeState = "resumed"  // a transition, after which it is active
	Closed   LifeState = "closed"   // not to be resumed
	Archived LifeState = "archived" // closed, and only pinned checkpoints are kept
)

// Interrupted is the reason of a Paused session whose mount died.
const Interrupted = "interrupted"
