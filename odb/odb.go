// Package odb keeps git objects on disk in git's own layout: packs beside their version 2 indexes in one
// `objects/pack` directory that git and other processes read, write and repack at the same time.
//
// It promises:
//   - What Get, WriteTo, Ingest and Unpack hand out hashes to the id it is handed out under.
//   - A pack under its final name is complete, on disk and indexed; its index appears last. An Ingest that fails
//     leaves nothing behind, and one that was killed leaves a temporary file that the next Open removes.
//   - Objects of a pack that is still streaming in can be read as soon as they were verified.
//   - Memory follows what the bytes prove, never what a header claims.
//
// Terms, as in git's gitformat-pack(5): an *entry* is one object as the pack holds it, plain or as a *delta*
// against a *base* named by offset (OFS) or by id (REF). A *record* is what is known of an entry while its pack
// streams: id, offset, CRC. A *view* is the set of packs that a reader started with; it keeps them open.
//
// Loose objects are read apart (see Loose), and never written.
//
// Lock order: Store.refreshing > Store.mu > table.mu, tail.mu. pack.mu and lru.mu are taken alone. Only refreshing and
// pack.mu are held across disk operations, by those who need the outcome of just that operation.
package odb

import (
	"errors"
	"fmt"
)

var (
	// ErrNotFound says that no pack holds the object.
	ErrNotFound = errors.New("object not found")
	// ErrCorrupt says that bytes of a pack or an index are not what git writes.
	ErrCorrupt = errors.New("corrupt pack")
	// ErrTooLarge says that an object is over the caller's limit; nothing was allocated for it.
	ErrTooLarge = errors.New("object over size limit")
)

const (
	// maxDepth bounds a chain of deltas: four times the longest that git writes (pack-objects.c, 4095).
	maxDepth = 1 << 14
	// maxInMemory is what one content may take in memory, in bytes; larger ones pass through files.
	maxInMemory = 16 << 20
	// firstAlloc is what a size in a header is believed without proof, in bytes.
	firstAlloc = 64 << 10
	// copyBuffer is the piece in which large contents move, in bytes.
	copyBuffer = 64 << 10
)

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrCorrupt, fmt.Errorf(format, args...))
}

// atOffset names the entry that err is about.
func atOffset(off int64, err error) error {
	return fmt.Errorf("read pack entry at %d: %w", off, err)
}

func tooLarge(size, limit int64) error {
	return fmt.Errorf("%w: %d bytes, limit is %d", ErrTooLarge, size, limit)
}
