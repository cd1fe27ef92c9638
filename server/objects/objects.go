// Package objects stores the files of packs: in a directory, or in a bucket of an S3 service. A file is written once under a key
// that is never used again, and never changes. The two implementations pass the same tests.
package objects

import (
	"context"
	"errors"
)

var (
	// ErrNotFound means that no file is stored under a key.
	ErrNotFound = errors.New("object not found")
	// ErrUnavailable means that the store did not answer. The caller may try again.
	ErrUnavailable = errors.New("object store is unavailable")
	// ErrFull means that the store has no space left.
	ErrFull = errors.New("object store is full")
)

// Store stores files under keys. A key consists of components of letters, digits, '-' and '.', which are separated by slashes.
// The methods may be called from any goroutine.
type Store interface {
	// Put stores a copy of the file at path, which does not change any more. When it returns nil, the file survives a power cut.
	Put(ctx context.Context, key, path string) error
	// Get creates the file at path with the stored contents. A file at path never has incomplete contents.
	Get(ctx context.Context, key, path string) error
	// Delete removes the file. It returns nil if there is none.
	Delete(ctx context.Context, key string) error
	// Ready returns nil if the store can be used, and ErrUnavailable otherwise.
	Ready(ctx context.Context) error
	// Shared reports whether other hosts use the store too, so that Get transfers bytes.
	Shared() bool
}
