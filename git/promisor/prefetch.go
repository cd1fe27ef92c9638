package promisor

import (
	"bufio"
	"context"
	"errors"
	"math"
	"strings"
)

// prefetchBatch is the number of objects that are fetched between two calls of progress.
const prefetchBatch = 18_000

// ErrRevision means that the git directory does not contain the commit or the range.
var ErrRevision = errors.New("no such commit or range of commits")

// Prefetched is the progress of Prefetch.
type Prefetched struct {
	Wanted  int // number of distinct versions of files in the commits
	Present int // number of these versions that are in the object store
}

// Prefetch fetches the versions of files in commits into packs of git's object store, for programs that read this store
// but cannot request objects from a promisor remote. For a single commit, it fetches all files of the commit's tree.
// For a range (A..B), it fetches the versions before and after each change of a commit in the range. Prefetch leaves
// out the paths for which the function match returns false. It calls progress after each batch, and returns after all
// versions were fetched.
func (s *Server) Prefetch(ctx context.Context, commits []string, match func(path string) bool,
	progress func(Prefetched)) (Prefetched, error) {
	var done Prefetched
	// git and other processes may have added commits and packs since the last request.
	if err := errors.Join(s.oracle.git.update(ctx), s.oracle.own.Refresh(), s.provider.Refresh()); err != nil {
		return done, err
	}
	q := s.oracle.question(ctx, math.MaxInt)
	for _, c := range commits {
		if err := q.files(c, match); err != nil {
			return done, err
		}
	}
	// q.seen contains all versions that match, and q.found contains the missing versions.
	done = Prefetched{Wanted: len(q.seen), Present: len(q.seen) - len(q.found)}
	progress(done)
	for missing := q.found; len(missing) > 0; {
		batch := missing[:min(len(missing), prefetchBatch)]
		missing = missing[len(batch):]
		// The objects are passed in both arguments, which means that they are blobs, so that Provide does not fetch history
		// for them.
		if err := s.provider.Provide(ctx, batch, batch); err != nil {
			return done, err
		}
		done.Present += len(batch)
		progress(done)
	}
	return done, nil
}

// files adds the versions of files in a commit, or in a range of commits, for all paths for which the function match
// returns true.
func (q *question) files(commits string, match func(path string) bool) error {
	add := func(c change) error {
		if !match(c.path) {
			return nil
		}
		return q.addSides(c)
	}
	// An empty side of a range stands for HEAD. Ranges with three dots are not supported. Their second side would begin
	// with a dot here.
	from, to, isRange := strings.Cut(commits, "..")
	if !isRange {
		commit, err := q.repo.commit(commits)
		if err != nil {
			return err
		}
		empty, err := q.repo.emptyTree()
		if err != nil {
			return err
		}
		return q.repo.compare(empty, commit, nil, add)
	}
	first, err := q.repo.commit(from)
	if err != nil {
		return err
	}
	last, err := q.repo.commit(to)
	if err != nil {
		return err
	}
	// With -m, git log prints the changes of a merge against each of its parents.
	args := []string{"log", "-m", "--raw", "-z", "--no-renames", "--no-abbrev", "--no-notes",
		"--no-show-signature", logFormat, "^" + first, last, "--"}
	return q.repo.git.stream(q.repo.ctx, "", args, func(r *bufio.Reader) error {
		return readChanges(r, func(string) error { return nil }, add)
	})
}
