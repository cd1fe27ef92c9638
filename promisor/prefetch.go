package promisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/artifactfs/artifactfs/object"
)

// prefetchBatch is how many objects are fetched between two reports of progress.
const prefetchBatch = 18_000

// ErrRevision means that the git directory has no such commit or range.
var ErrRevision = errors.New("no such commit or range of commits")

// Prefetched counts versions of files.
type Prefetched struct {
	Wanted  int // distinct versions that the commits name
	Present int // versions of them that are in the object store
}

// Prefetch returns when the versions of files that commits name are in packs of git's object store,
// for programs that read this store without asking a promisor remote. Of one commit these are all
// files of its tree; of a range (A..B) they are both versions of every file that a commit of the
// range changed. Only paths that match are fetched. It calls progress after each batch.
func (s *Server) Prefetch(ctx context.Context, commits []string, match func(path string) bool,
	progress func(Prefetched)) (Prefetched, error) {
	var done Prefetched
	// git and other processes may have added commits and packs since the last question.
	if err := errors.Join(s.oracle.quarantine.update(ctx), s.oracle.own.Refresh(), s.provider.Refresh()); err != nil {
		return done, err
	}
	q := &question{oracle: s.oracle, ctx: ctx, seen: map[object.ID]bool{}, limit: math.MaxInt}
	for _, c := range commits {
		if err := q.files(c, match); err != nil {
			return done, err
		}
	}
	// seen holds all versions that match, found those of them that are missing.
	done = Prefetched{Wanted: len(q.seen), Present: len(q.seen) - len(q.found)}
	progress(done)
	for missing := q.found; len(missing) > 0; {
		batch := missing[:min(len(missing), prefetchBatch)]
		missing = missing[len(batch):]
		// Named twice, they are known to be blobs, which need no history.
		if err := s.provider.Provide(ctx, batch, batch); err != nil {
			return done, err
		}
		done.Present += len(batch)
		progress(done)
	}
	return done, nil
}

// files adds the versions of files that a commit, or a range of commits, names.
func (q *question) files(commits string, match func(path string) bool) error {
	add := func(c change) error {
		if !match(c.path) {
			return nil
		}
		return q.addSides(c)
	}
	// The part after ".." may be empty, and means HEAD then. Three dots are not supported: the
	// second part would start with one.
	from, to, isRange := strings.Cut(commits, "..")
	if !isRange {
		commit, err := q.commit(commits)
		if err != nil {
			return err
		}
		empty, err := q.emptyTree()
		if err != nil {
			return err
		}
		return q.compare(empty, commit, nil, add)
	}
	first, err := q.commit(from)
	if err != nil {
		return err
	}
	last, err := q.commit(to)
	if err != nil {
		return err
	}
	// With -m, log lists the changes of a merge against each parent.
	args := []string{"log", "-m", "--raw", "-z", "--no-renames", "--no-abbrev", "--no-notes",
		"--no-show-signature", logFormat, "^" + first, last, "--"}
	return q.quarantine.stream(q.ctx, "", args, func(r *bufio.Reader) error {
		return readChanges(r, func(string) error { return nil }, add)
	})
}

// commit returns the id of the commit with a name; HEAD if the name is empty.
func (q *question) commit(name string) (string, error) {
	if name == "" {
		name = "HEAD"
	}
	id := q.quarantine.rev(q.ctx, name+"^{commit}")
	if id == "" {
		return "", fmt.Errorf("find %q: %w", name, ErrRevision)
	}
	return id, nil
}
