// Package session holds what is carried away from a mount so that the work in it goes on elsewhere: points of the
// working tree, the state of git around them, the user's own commits, and what is to be known of the session itself.
// All of it is git objects and refs, in a bare repository of the session (Repo) that stock git can read.
//
// # Terms
//
//   - A point is a checkpoint: a commit whose tree is the working tree at one moment. It touches nothing of the user's.
//   - The state of a point is a second commit, a parent of the point's, with what git had beside the files: index, HEAD,
//     refs, stashes, and the files of an operation under way.
//   - A lane is the chain of points that one writer makes; a segment is a part of it that can be dropped as a whole: its
//     first point has no parent in the segment before.
//   - The session remote is where all of that is sent; the embedded one is the Repo itself.
//   - An object is owned if it was made in the session; all others the mounted remote can give again. A Repo holds owned
//     objects alone, and borrows the rest.
//
// # Refs
//
//	refs/afs/meta/SESSION               what the session is, and its history (Meta)
//	refs/afs/j/SESSION/LANE/SEGMENT     the newest point of a segment
//	refs/afs/pin/SESSION/NAME           a point kept by name
//	refs/afs/kept/SESSION/ULID          tips of branches that were rewritten or removed
//	refs/afs/diverged/SESSION/...       branches, tags and notes that somebody else has moved on the session remote
//	refs/afs/transcript/SESSION         what was recorded of who worked in it
//	refs/afs/facts/SESSION              facts and handoff, kept apart from the transcript
//	refs/heads/*, refs/tags/*, refs/notes/*   the user's, as he has moved them; see Layout for their names on a session remote
package session

import (
	"fmt"
	"strings"
)

// Prefix is where refs lie that are not the user's.
const Prefix = "refs/afs/"

// MetaRef holds what a session is.
func MetaRef(session string) string { return Prefix + "meta/" + session }

// LanePrefix is that of all refs of points of a session.
func LanePrefix(session string) string { return Prefix + "j/" + session + "/" }

// SegmentRef is the ref of a segment's newest point.
func SegmentRef(session, lane string, segment int) string {
	return fmt.Sprintf("%s%s/%06d", LanePrefix(session), lane, segment)
}

// PinPrefix is that of the points of a session that are kept by name.
func PinPrefix(session string) string { return Prefix + "pin/" + session + "/" }

// KeptPrefix is that of what the session's branches were before they were rewritten or removed.
func KeptPrefix(session string) string { return Prefix + "kept/" + session + "/" }

// CarriedRef says what a session has last made of a ref of the user's on its session remote. While that is as the session
// left it, nobody else's work is there.
func CarriedRef(session, ref string) string {
	return CarriedPrefix(session) + strings.TrimPrefix(ref, "refs/")
}

// CarriedPrefix is that of a session's CarriedRefs.
func CarriedPrefix(session string) string { return Prefix + "carried/" + session + "/" }

// DivergedRef is where a ref of the user's goes if another session has moved it on the session remote.
func DivergedRef(session, ref string) string {
	return DivergedPrefix + session + "/" + strings.TrimPrefix(ref, "refs/")
}

// DivergedPrefix is that of the DivergedRefs of all sessions.
const DivergedPrefix = Prefix + "diverged/"

// FactsRef names the ref of the facts and the handoff, for the next person or agent to work in the session.
func FactsRef(session string) string { return Prefix + "facts/" + session }

// TranscriptRef holds what was recorded of a session.
func TranscriptRef(session string) string { return Prefix + "transcript/" + session }

// Reason says why a point was made.
type Reason string

const (
	Manual     Reason = "manual"      // somebody asked
	Idle       Reason = "idle"        // writes had settled
	Interval   Reason = "interval"    // it was time
	Git        Reason = "git"         // a branch, HEAD or a stash was moved
	BeforeRisk Reason = "before-risk" // a git command was about to throw changes away
	Unmount    Reason = "unmount"     // the mount ends
	Shutdown   Reason = "shutdown"    // the daemon ends
	Discard    Reason = "discard"     // the mount ends, and the session goes to the trash
	Turn       Reason = "turn"        // a person's prompt was recorded
	Removal    Reason = "removal"     // many files were removed or overwritten: it has what was there
	Restore    Reason = "restore"     // files are about to be brought back to another point
	Merging    Reason = "merge"       // what git made of the work of two sessions; on this host alone
	Forking    Reason = "fork"        // another session begins here
)

// LifeState is the state of a session.
type LifeState string

const (
	Open     LifeState = "open"     // it is there, and was never worked in
	Active   LifeState = "active"   // it is mounted
	Paused   LifeState = "paused"   // it is not, and can go on
	Resumed  LifeState = "resumed"  // it went on; a transition, after which it is active
	Closed   LifeState = "closed"   // nobody means to go on with it
	Archived LifeState = "archived" // and only what is pinned is kept
)

// Interrupted is the reason of a Paused that nobody has asked for: whoever was at work died.
const Interrupted = "interrupted"
