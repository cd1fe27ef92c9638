// Package promisor predicts which blobs a git command will read, and fetches them with one request to the remote where possible.
//
// The git directory of a mount has an alternate object directory in the mount, in which all blobs seem to exist that trees name (package
// fuse). When a git command opens one of them, the process of the command shows what comes next: its arguments select a *plan*, which
// lists the blobs that the command will read. These are the *prediction*. Together with the opened blob they are fetched as one batch
// into the store, whose packs the git directory uses through another alternate.
//
// Guarantees:
//   - A request ends when the process is interrupted, or at the latest after a deadline. Requests to the remote continue in the background.
//   - A process with wrong or malicious arguments costs at most one superfluous download. Arguments that are known to be harmless are
//     passed to git commands; all others are dropped. These commands run in a separate git directory, the *quarantine directory*. It has
//     the refs and the objects of the mount's git directory, but none of its configuration that could start programs. It does not have the
//     object directory in the mount, because a command that lists missing objects must not find them.
//
// Locks: while a goroutine holds a lock of this package, it acquires no other lock.
package promisor
