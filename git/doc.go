// Package git is the folder of what belongs to git itself: formats, objects, protocol, git directories, commands. It knows nothing of the
// product.
//
// In:  answers of git servers (transport), files that git and programs write (odb, index, gitdir), questions of git commands (promisor,
// credential, gitdir/fsmonitor).
//
// Out: objects whose hash was verified (odb), parsed trees and commits (object), contents as checkout writes them (convert, filter).
//
// The way of a fetch: transport.Remote.Fetch sends the wants and returns a stream of a pack; odb.Unpack or Store.Ingest inflates each
// entry, applies its delta, hashes it, and hands the object on; the pack is renamed to its final name when it is complete, and the index
// after it. Bytes of others are parsed with limits, and end as an error that wraps odb.ErrCorrupt, never as a panic.
package git
