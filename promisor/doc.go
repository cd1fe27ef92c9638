// Package promisor gives stock git the objects that a mount's git directory lacks, in one question per git command
// wherever that can be.
//
// Terms. A mount's git directory is a partial clone with two promisor remotes: ours, which git asks first, and the
// origin, which it asks when ours fails. To ask, git runs `git fetch`, and that runs our own binary as upload-pack: the
// *asker*. A *question* is what one asker wants: ids on its standard input, and beside them a *hint*, which says what
// git command stands behind it. What that command is going to want besides is a *prediction*. The daemon brings both
// as one batch, into the store, whose objects the git directory borrows through alternates, and then answers with a
// pack of nothing but the empty blob: git looks through the packs again before it believes that an object is missing, and
// again before it asks the next question. So nothing is stored twice, and what was predicted is never asked for.
//
// Promises:
//   - A question ends when git does, at the latest after a deadline. What is under way for it goes on in the background.
//   - A failure is one line on git's standard error and lets git ask the origin; it is never tried again here.
//   - A wrong or hostile hint costs a download at most. Of its arguments only those known to be harmless reach a git
//     command, as arguments, and that command runs in a git directory of our own making, the *lens*: it shows the refs
//     and objects of the mount's, but nothing of its configuration that could make git start a program, and above all
//     no promisor: what lists missing objects must never ask for them.
//
// The dialogue is that of git's gitprotocol-v2, from the server's side.
//
// Locks are leaves.
package promisor
