package fetch

import (
	"context"

	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/object"
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

// Forgive makes refused objects eligible for requests again.
func (s *Store) Forgive() { s.blobPipe.Forgive() }

// Refusals returns the refused objects in the order of their paths.
func (s *Store) Refusals() []Refusal { return s.blobPipe.Refusals() }

// probe requests the remote's HEAD in the background: something small that shows whether the remote
// answers again.
func (s *Store) probe() {
	s.background(func(ctx context.Context) {
		s.blobPipe.Probe(ctx, func() error {
			_, err := s.remote.Refs(ctx, []string{"HEAD"})
			return err
		})
	})
}

// Retry runs work, which sends requests to the remote, and repeats it while the remote is
// unreachable, at most for Config.Deadline.
func (s *Store) Retry(ctx context.Context, work func() error) error {
	return s.blobPipe.Retry(ctx, nil, work)
}

// Recovered returns a channel that is closed when the remote next answers after a failure.
func (s *Store) Recovered() <-chan struct{} { return s.blobPipe.Recovered() }

// Reachable reports whether the remote answered the last request.
func (s *Store) Reachable() bool { return s.blobPipe.Reachable() }

// requestFailure returns why something was not fetched: the last failure of the remote, else a
// refusal, else ErrNotFound.
func (s *Store) requestFailure() error {
	if _, err := s.blobPipe.Failure(); err != nil {
		return err
	}
	if refused := s.Refusals(); len(refused) > 0 {
		return refused[0]
	}
	return ErrNotFound
}

// contentsFailure returns why the contents of blob id were not fetched.
func (s *Store) contentsFailure(id object.ID) error {
	if err := s.blobPipe.Refused(id); err != nil {
		return err
	}
	return s.requestFailure()
}
