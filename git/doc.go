// Package git is the parent directory of all packages about git itself: its file formats, objects and protocol, git
// directories, and git commands. These packages do not depend on the rest of the program. This package contains only
// documentation.
//
// Input: answers of git servers (transport), files that git and other programs write (odb, index, gitdir), and requests
// of git commands (promisor, credential, gitdir/fsmonitor).
//
// Output: objects whose hash was verified (odb), parsed trees and commits (object), and contents as a checkout writes
// them (convert, filter).
//
// A fetch works as follows. transport.Remote.Fetch sends the ids of the wanted objects and returns the pack as a
// stream. odb.Unpack or Store.Ingest decompresses each entry, applies its delta, verifies its hash, and passes the
// object on. When the pack is complete, first the pack and then its index are renamed to their final names. Data from
// servers and other programs are parsed with limits. Invalid data result in an error that wraps odb.ErrCorrupt, never
// in a panic.
package git
