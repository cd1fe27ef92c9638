// Package objects stores the files of packs: in a directory, or in a bucket of an S3 service. A file is written once
// under a key that is never used again, and never changes. The two implementations pass the same tests.
package objects

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
)

var (
	// ErrNotFound means that no file is stored under a key.
	ErrNotFound = errors.New("object not found")
	// ErrUnavailable means that the store did not answer. The caller may try again.
	ErrUnavailable = errors.New("object store is unavailable")
	// ErrFull means that the store has no space left.
	ErrFull = errors.New("object store is full")
)

// Store stores files under keys. A key consists of components of letters, digits, '-' and '.', which are separated by
// slashes. The methods may be called from any goroutine.
type Store interface {
	// Put stores a copy of the file at path, which is not empty and does not change any more. When it returns nil, the
	// file survives a power cut. A Put that failed may be repeated with the same file.
	Put(ctx context.Context, key, path string) error
	// Get creates the file at path with the stored contents. A file at path never has incomplete contents. If there is a
	// file at path already, it must have the same contents. A process that dies may leave a file with the suffix ".tmp"
	// beside path.
	Get(ctx context.Context, key, path string) error
	// Delete removes the file. It returns nil if there is none.
	Delete(ctx context.Context, key string) error
	// Ready returns nil if the store can be used, and ErrUnavailable otherwise.
	Ready(ctx context.Context) error
	// Shared reports whether other hosts use the store too, so that Get transfers bytes.
	Shared() bool
}

// Open returns the store at a URL: s3://BUCKET/PREFIX (see openS3), file://PATH, or the path of a directory.
func Open(location string) (Store, error) {
	scheme, rest, found := strings.Cut(location, "://")
	switch {
	case !found:
		return OpenDir(location)
	case scheme == "file":
		path, err := url.PathUnescape(rest)
		if err != nil {
			return nil, fmt.Errorf("open object store: %w", err)
		}
		return OpenDir(path)
	case scheme == "s3":
		return openS3(location)
	}
	return nil, fmt.Errorf("open object store: scheme %q is not supported: use a directory or s3://BUCKET/PREFIX", scheme)
}

// checkKey returns an error if key is not of the form that Store requires. A key is a part of paths and of URLs.
func checkKey(key string) error {
	for part := range strings.SplitSeq(key, "/") {
		valid := part != "" && part[0] != '.'
		for _, c := range part {
			valid = valid && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.')
		}
		if !valid {
			return fmt.Errorf("invalid key of an object: %q", key)
		}
	}
	return nil
}
