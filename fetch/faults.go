package fetch

import (
	"github.com/artifactfs/artifactfs/fetch/pipeline"
)

// The errors of a Store, and the types in which it reports failures of its remote, are those of package pipeline.
var (
	// ErrNotFound is returned if the remote does not have an object to which a tree refers.
	ErrNotFound = pipeline.ErrNotFound
	// ErrDeadline is returned if contents or a tree did not arrive within Config.Deadline.
	ErrDeadline = pipeline.ErrDeadline
	// ErrClosed is returned if the store was closed during the call.
	ErrClosed = pipeline.ErrClosed
)

type (
	// Readers records when a reader of any store of the process last began to wait; see pipeline.Readers.
	Readers = pipeline.Readers
	// Refusal describes an object whose answers were invalid; see pipeline.Refusal.
	Refusal = pipeline.Refusal
)

// IsUnreachable reports whether err means that the remote cannot be reached, so that a later request may succeed.
func IsUnreachable(err error) bool { return pipeline.IsUnreachable(err) }
