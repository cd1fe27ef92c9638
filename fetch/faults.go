package fetch

import (
	"github.com/artifactfs/artifactfs/fetch/pipeline"
)

// Errors of a Store, and the types in which it reports faults of its remote.
var (
	// ErrNotFound is returned if the remote does not have an object that a tree names.
	ErrNotFound = pipeline.ErrNotFound
	// ErrDeadline is returned if contents did not arrive within Config.Deadline.
	ErrDeadline = pipeline.ErrDeadline
	// ErrClosed is returned if the store was closed during the call.
	ErrClosed = pipeline.ErrClosed
)

type (
	// Readers is shared by the stores of a process; see pipeline.Readers.
	Readers = pipeline.Readers
	// Refusal is an object whose answers were invalid; see pipeline.Refusal.
	Refusal = pipeline.Refusal
)

// IsUnreachable reports whether err means that the remote cannot be reached. A later request may then succeed.
func IsUnreachable(err error) bool { return pipeline.IsUnreachable(err) }
