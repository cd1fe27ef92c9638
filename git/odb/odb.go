// Package odb stores git objects on disk in git's own format: packs with version 2 indexes in an `objects/pack`
// directory, which git and other processes may read, write and repack at the same time.
//
// Guarantees:
//   - Objects that Get, WriteTo, Ingest and Unpack return have the hash that is their id.
//   - A pack with its final name is complete, on disk and indexed; its index is created last. An Ingest
//     that fails leaves no files. A killed Ingest leaves a temporary file, which the next Open removes.
//   - Objects of a pack that is being received can be read as soon as they were verified.
//   - The memory in use depends on the bytes received, not on the size that a header states.
//
// Terms, as in git's gitformat-pack(5): an *entry* is one object in a pack, either plain or a *delta* against a *base*,
// which is named by its offset (OFS delta) or by its id (REF delta). A *record* describes an entry of a pack that is
// being received: id, offset and CRC. A *view* is the set of packs that an operation reads; the packs stay open until
// the operation ends.
//
// Loose objects are read by the type Loose. This package does not write loose objects.
//
// Lock order: Store.refreshing, then Store.mu, then table.mu and tail.mu. While pack.mu or lru.mu is held, no other
// lock is acquired. Only refreshing and pack.mu are held during disk operations; the goroutines that wait for these
// locks need the result of the operation.
package odb

import (
	"errors"
	"fmt"
)

var (
	// ErrNotFound means that no pack contains the object.
	ErrNotFound = errors.New("object not found")
	// ErrCorrupt means that a pack, an index or a loose object contains invalid bytes.
	ErrCorrupt = errors.New("corrupt pack")
	// ErrTooLarge means that an object is larger than the caller allows. In this case, no memory was allocated for the
	// contents.
	ErrTooLarge = errors.New("object is larger than the limit")
)

const (
	// maxDepth bounds the length of a delta chain. It is four times the longest chain that git writes (4095,
	// pack-objects.c).
	maxDepth = 1 << 14
	// maxInMemory is the size in bytes up to which an object is held in memory. The contents of larger objects are stored
	// in files.
	maxInMemory = 16 << 20
	// firstAlloc is the maximum number of bytes that are allocated before the first bytes of an object have arrived.
	firstAlloc = 64 << 10
	// copyBuffer is the size in bytes of the pieces in which large contents are copied.
	copyBuffer = 64 << 10
)

// corrupt returns an error with this text that wraps ErrCorrupt.
func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrCorrupt, fmt.Errorf(format, args...))
}

// atOffset adds the offset of the pack entry to err.
func atOffset(off int64, err error) error {
	return fmt.Errorf("read pack entry at %d: %w", off, err)
}

// tooLarge returns an error with both sizes, in bytes, that wraps ErrTooLarge.
func tooLarge(size, limit int64) error {
	return fmt.Errorf("%w: %d bytes, limit is %d", ErrTooLarge, size, limit)
}
