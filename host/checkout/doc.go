// Package checkout changes a mounted working tree from one git tree to another: to the tree of another commit when HEAD
// is switched, and to the tree of a checkpoint when files are restored. It reads no file contents.
//
// Both are the same operation with different rules. A plan compares tree A, which the working tree showed before, tree
// B, which it must show afterwards, and the paths that the working tree has now. The plan lists the paths to change,
// the files and directories to remove first because a path of B needs their place, and the paths that stay unchanged. A
// switch refuses to overwrite changes of the user, as git-read-tree does with two trees (PlanSwitch). A restore first
// makes a checkpoint of everything, and then leaves only those paths unchanged whose files a checkpoint does not store
// (Restore). The same steps then carry out the plan.
//
// # Steps, and the state that a kill after each leaves
//
// Below, the successor is the next process that serves the mount, or the next mount of the session. If a kill
// interrupts a checkout, the successor repeats it as a whole. A step whose changes were already made has no effect. The
// intent is the record of the checkout in the file checkout.json, and a graft is the change of a path to its entry in
// tree B. The mount's home is its directory below the state directory.
//
//	step             state after a kill                                how the successor completes it
//	index.lock       a lock with the mark of this program              gitdir.Dir.BreakLocks removes it, and a half-written index
//	plan             the same; nothing was changed                     nothing has to be done
//	intent           checkout.json in the mount's home                 Journal.Pending lists it; the checkout is repeated
//	mark kernel      Stale in the state that the supervisor holds      the kernel's cache of the paths is invalidated (staleAfter)
//	graft            some paths of B; the change journal listed all    the checkout is repeated: paths that show B's blobs stay
//	                 of them before the first one was changed          unchanged, directories that became empty are removed
//	unmark kernel    every path of B                                   the checkout is repeated
//	index            B's index; index.lock, and a link to A's index    the checkout is repeated: the entries are B's already
//	refs (switch)    a branch or HEAD that git was changing            BreakLocks removes the locks of the killed git, which are
//	                                                                   listed in a note; HEAD is moved if it was not moved yet
//	shown (switch)   everything is done, but the intent is recorded    the checkout is repeated, without effect
//	unlock           the same; index.lock and the link are removed     the checkout is repeated, without effect
//	end of intent    everything is done                                nothing has to be done
//
// If a step fails, for example because the disk is full, the previous steps are undone: refs were not moved, A's index
// is renamed back, and the graft is reversed (worktree.GraftResult.TakeBack). Then nothing has changed, and the intent
// is ended. If that fails too, the intent stays in Journal.Unfinished: the status names it, and the next switch,
// restore or merge, or the next start, completes it first.
//
// An intent that cannot be repeated, because git refuses or a checkpoint was removed, is ended: the working tree stays
// as the killed process left it, git status shows the difference, and a note names the cause. It is not repeated later,
// because that would surprise the user. If a repetition fails for another reason, for example because a git command
// holds the index lock or the disk is full, the intent stays in Journal.Unfinished, as above. If the process is shut
// down while it repeats an intent, the intent stays for the next successor.
//
// # Other records that outlive a process
//
// The following records are not intents. Each of these records has one owner, which keeps the record up to date. Unlike
// an intent, none of them describes an operation that is repeated:
//   - the state that the daemon passes to its successor: Stale, as above. It exists as long as the kernel's mount,
//     while an intent exists as long as the session.
//   - the file "shown" in the mount's home: the tree that is prefetched. It is written before the intent ends.
//   - the file "follow.json" in the mount's home: the commit to which following the remote branch has moved HEAD, and
//     during a move also the commit to which it moves HEAD.
//   - the redirects in the session's record: a successor compares them with the mount table and mounts the missing
//     ones.
//
// # Locks
//
// The index lock is held from before the plan until the refs are moved. It serializes the checkouts of a mount, and
// keeps git commands from changing the index. The journal's mutex is a leaf: no other lock is taken while it is held.
// This package holds no mutex during a call of the working tree, the kernel or git.
package checkout
