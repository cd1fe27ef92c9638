// Package promisor supplies stock git with the objects that the git directory of a mount lacks. It fetches all objects
// that one git command needs with one request to the remote where possible.
//
// The git directory of a mount is a partial clone with two promisor remotes: the daemon, which git uses first, and the
// origin, which git uses if the daemon fails. To obtain missing objects git runs `git fetch`, which runs the artifactfs
// binary as upload-pack: this process is the *asker*. It passes the request on to the daemon: the ids from its standard
// input, and a *hint* that names the git commands that wait for the objects. The objects that these commands will
// probably need next are the *prediction*. The daemon fetches the requested and the predicted objects as one batch into
// the store, whose objects the git directory uses through alternates. It answers with a pack that contains only the
// empty blob: git searches all packs again before it treats an object as missing, and before it sends the next request.
// So no object is stored twice, and a predicted object is not requested again.
//
// Guarantees:
//   - A request ends when git ends, or at the latest after a deadline. Requests to the remote continue in the
//     background.
//   - After a failure git prints one line on standard error and asks the origin. This package does not retry.
//   - A wrong or malicious hint costs at most one superfluous download. Arguments in the hint that are known to be
//     harmless are passed to git commands; all others are dropped. These commands run in a guarded directory (package
//     guard), which has no promisor remote, because a command that lists missing objects must not request these
//     objects.
//
// The conversation with git follows the server's side of git's gitprotocol-v2.
//
// Locks: while a goroutine holds a lock of this package, it acquires no other lock.
package promisor
