// Package promisor supplies stock git with the objects that a mount's git directory lacks, with one
// request for each git command where possible.
//
// Terms. A mount's git directory is a partial clone with two promisor remotes: ours, which git uses
// first, and the origin, which it uses when ours fails. To request objects git runs `git fetch`,
// which runs our own binary as upload-pack: the *asker*. A *question* is the request of one asker:
// ids on its standard input, and a *hint* that names the git commands that wait for it. The objects
// that the command will want next are a *prediction*. The daemon fetches both as one batch into the
// store, whose objects the git directory uses through alternates, and answers with a pack of only
// the empty blob: git looks through the packs again before it treats an object as missing, and
// again before it sends the next question. So nothing is stored twice, and predicted objects are
// never requested again.
//
// Promises:
//   - A question ends when git does, at the latest after a deadline. Its requests continue in the background.
//   - A failure is one line on git's standard error and makes git ask the origin; it is never retried here.
//   - A wrong or hostile hint costs one download at most. Of its arguments only those known to be harmless
//     are passed to git commands, and these run in a git directory of our own, the *quarantine directory*: it has the refs
//     and objects of the mount's git directory, but none of its configuration that could start programs,
//     and no promisor: a command that lists missing objects must never request them.
//
// The dialogue is that of git's gitprotocol-v2, from the server's side.
//
// Locks are leaves.
package promisor
