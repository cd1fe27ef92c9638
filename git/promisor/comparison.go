package promisor

import (
	"bufio"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
)

// git 2.27 to 2.52 have a bug in a `git diff` that compares the working tree. git first removes from its list of
// changes the files whose times have changed, but not their contents. For this it needs the sizes of blobs, and at the
// first missing blob it goes through the whole list, including the changes that it has removed and freed, to request
// all missing blobs at once (fixed by git's commit 56d388e6ad). It reads freed memory, and usually crashes. If the
// output contains patches or statistics of lines, git requests the blobs before it removes anything.
//
// So the blobs that git reads in this step are fetched when git opens them. After a failed open, git searches for new
// packs before it treats an object as missing, so it finds the blob and does not go through the list.

// openTime is the maximum time for which Opened waits for an object. Only the thread that has opened the object waits.
const openTime = 30 * time.Second

// crashes reports whether a git command with these arguments may be a `git diff` with that bug.
func crashes(args []string) bool {
	name, rest := Subcommand(args)
	if end := slices.Index(rest, "--"); end >= 0 {
		rest = rest[:end]
	}
	has := func(names ...string) bool {
		return slices.ContainsFunc(rest, func(a string) bool { return slices.Contains(names, a) })
	}
	return name == "diff" && !has("--cached", "--staged", "--no-index") &&
		has("--name-only", "--name-status", "--raw", "--quiet", "--summary", "--check", "-s", "--no-patch")
}

// Opened records that the process of the thread tid has opened the object for which the thread has called Find most
// recently. If the request for the object could make the process crash, Opened fetches the object, together with those
// that the process will need next. The function changed returns the paths that may differ from an unchanged working
// tree; a path that ends in a slash stands for everything below it. If the objects are not fetched within openTime, the
// process requests them as any other missing object.
func (s *Server) Opened(ctx context.Context, tid uint32, changed func() []string) {
	id, supply := s.existence.noteOpened(tid)
	if !supply || len(s.oracle.lacking([]object.ID{id})) == 0 {
		return
	}
	h := ancestors(int(tid))
	if len(h.Commands) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	start := time.Now()
	along, needed := s.oracle.unmatched(ctx, h.Commands[0], id, changed())
	if !needed {
		return
	}
	err := s.provider.Provide(ctx, []object.ID{id}, along)
	s.log.Debug("supplied object to git diff", zap.Any("command", h.Commands[0]), zap.Stringer("id", id),
		zap.Int("along", len(along)), zap.Duration("took", time.Since(start)), zap.Error(err))
}

// unmatched returns the missing blobs that the command c, a git diff, will compare with files of the working tree. It
// returns false if the command does not need the blob id for that: if it compares two commits, or if only its search
// for renames needs the blob. For that search, git requests all blobs at once, and does not crash.
func (o *oracle) unmatched(ctx context.Context, c Command, id object.ID, changed []string) (along []object.ID,
	needed bool) {
	ctx, cancel := context.WithTimeout(ctx, predictTime)
	defer cancel()
	if err := errors.Join(o.git.update(ctx), o.own.Refresh(), o.provider.Refresh()); err != nil {
		o.log.Warn("predict objects that git diff compares", zap.Error(err))
		return nil, true
	}
	q := o.question(ctx, maxPredicted)
	q.repo.command, q.wants, q.round = c, []object.ID{id}, o.round(c.Process)
	_, args := Subcommand(c.Args)
	revs, paths := q.repo.resolve(walkOptions.parse(args))
	if len(revs) > 1 {
		return nil, false
	}
	rev := "HEAD"
	if len(revs) == 1 {
		rev = revs[0]
		err := q.repo.compare(rev, "HEAD", paths, func(c change) error {
			if c.status != "M" && slices.ContainsFunc(c.sides(), func(s side) bool { return s.id == id }) {
				return errEnough
			}
			return nil
		})
		if errors.Is(err, errEnough) {
			return nil, false
		}
	}
	own, err := q.changedIn(rev, id, changed)
	// If the user has not changed the file, git's index lacks its size or its time, and probably those of other files.
	if err == nil && !own {
		err = q.neighbours()
	}
	if err != nil && !errors.Is(err, errEnough) {
		o.log.Debug("end prediction early", zap.Error(err))
	}
	return q.found, true
}

// changedIn adds the blobs of a commit at the paths in changed. It returns true if id is one of these blobs.
func (q *question) changedIn(rev string, id object.ID, changed []string) (own bool, err error) {
	files, dirs := map[string]bool{}, []string{}
	for _, p := range changed {
		if strings.HasSuffix(p, "/") {
			dirs = append(dirs, p)
		}
		files[p] = true
	}
	err = q.repo.git.stream(q.repo.ctx, "", []string{"ls-tree", "-r", "-z", rev}, func(r *bufio.Reader) error {
		return readTree(r, func(path string, s side) error {
			if !files[path] && !slices.ContainsFunc(dirs, func(d string) bool { return strings.HasPrefix(path, d) }) {
				return nil
			}
			if s.id == id {
				own = true
				return nil
			}
			return q.add(s)
		})
	})
	return own, err
}
