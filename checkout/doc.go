// Package checkout changes a mounted working tree from one git tree to another: to the tree of another commit when HEAD
// is switched, and to the tree of a checkpoint when files are restored. It reads no file contents.
//
// Both are one operation with different rules. A plan compares tree A, which the working tree showed before, tree B, which
// it is to show, and the paths that the working tree has now. It lists the paths to change, the files and directories to
// remove first because they are in the way, and the paths that stay. A switch refuses to overwrite changes of the user, as
// git-read-tree does with two trees (PlanSwitch). A restore first makes a checkpoint of everything, and then leaves out only
// paths that a checkpoint does not store (Restore). The same steps then carry out the plan.
//
// # Steps, and the state that a kill after each leaves
//
// A step that a kill interrupts is always repeated as a whole by the successor: the next process that serves the mount,
// or the next mount of the session. Every step has no effect where its work is done already.
//
//	step             state after a kill                                how it is finished
//	index.lock       a lock with the mark of this program              gitdir.Dir.BreakLocks removes it, and a half-written index
//	plan             the same; nothing was changed                     nothing to finish
//	intent           checkout.json in the mount's home                 Journal.Pending lists it; the successor repeats it
//	mark kernel      Stale in the state that the supervisor holds      the successor first invalidates the paths (staleAfter)
//	graft            some paths of B; the change journal listed all    the intent: paths that show B's blobs are left unchanged;
//	                 of them before the first one was changed          directories that removals left empty are removed
//	unmark kernel    every path of B                                   the intent
//	index            B's index; index.lock is removed                  the intent: entries are B's already
//	refs (switch)    a branch or HEAD that git was changing            BreakLocks removes the locks of the killed git, which are
//	                                                                   listed in a note; the intent moves HEAD if it did not move
//	shown (switch)   everything but the end of the intent              the intent, without effect
//	end of intent    nothing
//
// An intent that cannot be repeated, because git refuses or a checkpoint was removed, ends: the working tree stays as the
// killed process left it, and git status shows the difference. A later repetition would surprise the user. An intent whose
// process is shut down stays for the next successor.
//
// # Other records that outlive a process
//
// These records are not intents, and each has one owner. Each states a fact that is brought up to date, not an operation
// that is repeated:
//   - the daemon's handover: Stale, as above. It lives as long as the kernel's mount, the intent as long as the session.
//   - "shown" in the mount's home: the tree that is prefetched. It is written before the intent ends.
//   - "follow.json" in the mount's home: the commit to which following has moved HEAD. A kill between the end of the intent
//     and the update of this file leaves the previous commit in it; the next check of the remote finds HEAD at the branch, or
//     behind it, and corrects the file.
//   - the redirects in the session's record: a successor compares them with the mount table and binds the missing ones.
//
// # Locks
//
// The index lock is held from before the plan until the new index is in its place. It orders all checkouts of a mount,
// and keeps git commands from changing the index. The journal's mutex is a leaf. No lock of this package is held during a
// call of the working tree, the kernel or git.
package checkout
