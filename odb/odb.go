// Package odb stores git objects on disk in git's own layout: packs and their version 2 indexes in
// one `objects/pack` directory that git and other processes read, write and repack at the same
// time.
//
// It promises:
//   - Objects from Get, WriteTo, Ingest and Unpack have the hash under which they are returned.
//   - A pack under its final name is complete, on disk and indexed; its index appears last. An Ingest
//     that fails leaves nothing, and one that was killed leaves a temporary file that the next Open removes.
//   - Objects of a pack that is being received can be read as soon as they were verified.
//   - Memory grows with the bytes received, never with a size that a header claims.
//
// Terms, as in git's gitformat-pack(5): an *entry* is one object in a pack, plain or as a *delta*
// against a *base* named by offset (OFS) or by id (REF). A *record* describes an entry of a pack
// that is being received: id, offset, CRC. A *view* is the set of packs that a reader started with;
// it keeps them open.
//
// Loose objects are read by a separate type, Loose, and never written.
//
// Lock order: Store.refreshing > Store.mu > table.mu, tail.mu. pack.mu and lru.mu are acquired
// alone. Only refreshing and pack.mu are held across disk operations, by goroutines that need the
// result of that operation.
package odb

import (
	"errors"
	"fmt"
)

var (
	// ErrNotFound means that no pack holds the object.
	ErrNotFound = errors.New("object not found")
	// ErrCorrupt means that bytes of a pack or an index are not valid.
	ErrCorrupt = errors.New("corrupt pack")
	// ErrTooLarge means that an object is over the caller's limit; nothing was allocated for it.
	ErrTooLarge = errors.New("object over size limit")
)

const (
	// maxDepth bounds a chain of deltas: four times the longest that git writes (pack-objects.c,
	// 4095).
	maxDepth = 1 << 14
	// maxInMemory bounds one object in memory, in bytes; larger ones go through files.
	maxInMemory = 16 << 20
	// firstAlloc is the size, in bytes, up to which memory is allocated for a claimed size.
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
