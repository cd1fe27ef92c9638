// Package checkout changes a mounted working tree from one git tree to another: to the tree of another commit when HEAD
// is switched, and to the tree of a checkpoint when files are restored. It reads no file contents.
//
// Both are one operation with different rules. A plan compares tree A, which the working tree came from, tree B, which it
// is to show, and the paths that the working tree has now. It lists the paths that change, the files and directories that
// make room for them, and the paths that stay. A switch refuses to overwrite changes of the user, as git-read-tree does
// with two trees (PlanSwitch); a restore first makes a checkpoint of everything and then only leaves out paths that a
// checkpoint does not store (Restore). The same steps then carry out the plan.
//
// # Steps, and what a kill after each leaves
//
// A step that a kill interrupts is always done again as a whole by the successor: the next process that serves the mount,
// or the next mount of the session. Every step has no effect where its work is done already.
//
//	step             a kill afterwards leaves                          who finishes, and how
//	index.lock       a lock that holds this program's mark             gitdir.Dir.BreakLocks removes it, and a half-written index
//	plan             the same; nothing was changed                     nobody has to
//	intent           checkout.json in the mount's home                 Journal.Pending lists it; the successor plans and applies again
//	mark kernel      Stale in the state that the supervisor holds      the successor invalidates the paths before it plans (staleAfter)
//	graft            some paths of B, noted as changed in the change   the intent: paths that show B's blobs are left as they are;
//	                 journal before the first one was changed          directories that removals left empty are removed
//	unmark kernel    every path of B                                   the intent
//	index            B's index; index.lock is gone                     the intent: entries are B's already
//	refs (switch)    a branch or HEAD that git was changing            BreakLocks removes the locks that the killed git held, by its
//	                                                                   note; the intent moves HEAD, unless HEAD is there already
//	shown (switch)   everything but the end of the intent              the intent, without effect
//	end of intent    nothing
//
// An intent that cannot be carried out again, because git refuses or a checkpoint is gone, ends: the working tree stays as
// the killed process left it, and git status shows the difference. It must not be done later, behind the user's back.
// An intent whose process is told to stop stays for the next successor.
//
// # Other records that outlive a process
//
// These are not intents, and each has one owner. All of them state a fact and are brought up to date, not done again:
//   - the daemon's handover: Stale, as above. It lives as long as the kernel's mount, the intent as long as the session.
//   - "shown" in the mount's home: the tree that is prefetched. It is written before the intent ends.
//   - "follow.json" in the mount's home: the commit that following put HEAD on. A kill between the end of the intent and its
//     update leaves the commit before; the next look at the remote finds HEAD at the branch, or behind it, and corrects it.
//   - the redirects in the session's record: a successor compares them with the mount table and binds the ones that are missing.
//
// # Locks
//
// The index lock is held from before the plan until the new index is in its place. It orders all checkouts of a mount,
// and keeps git commands from changing the index. The journal's mutex is a leaf. No lock of this package is held while the
// working tree, the kernel or git is called.
package checkout
