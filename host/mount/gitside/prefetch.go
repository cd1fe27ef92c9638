package gitside

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/promisor"
	"github.com/artifactfs/artifactfs/host/fault"
)

// Prefetch fetches the contents of the paths that match r.Paths, with a higher priority than the background prefetch.
// If r names commits, it fetches their objects instead.
func (s *Side) Prefetch(ctx context.Context, r control.PrefetchRequest,
	progress func(control.Progress)) (control.PrefetchReply, error) {
	var reply control.PrefetchReply
	// Objects of commits are fetched into git's object store, contents of paths into the cache of contents.
	if len(r.Commits) > 0 {
		return s.prefetchCommits(ctx, r, progress)
	}
	h, err := s.Contents.View.Want(ctx, matcher(r.Paths), r.Wait, func(h fetch.Counts) {
		progress(control.Progress{Phase: "prefetch", Done: int64(h.Fetched), Total: int64(h.Blobs), Unit: "blobs"})
	})
	if err != nil {
		return reply, fault.Explain("prefetch", r.Dir, err)
	}
	return control.PrefetchReply{Matched: int64(h.Blobs), Fetched: int64(h.Fetched), Bytes: h.Bytes}, nil
}

// matcher returns a function that reports whether a path matches one of specs. A spec matches its path and everything
// below it, or is a pattern of path.Match. If specs is empty, every path matches.
func matcher(specs []string) func(string) bool {
	if len(specs) == 0 {
		return func(string) bool { return true }
	}
	return func(p string) bool {
		for _, spec := range specs {
			spec = strings.Trim(path.Clean(spec), "/")
			if spec == "." || p == spec || strings.HasPrefix(p, spec+"/") {
				return true
			}
			if ok, _ := path.Match(spec, p); ok {
				return true
			}
			// As in .gitignore, a pattern without a slash matches the name in every directory.
			if ok, _ := path.Match(spec, path.Base(p)); ok && !strings.Contains(spec, "/") {
				return true
			}
		}
		return false
	}
}

// prefetchCommits fetches the objects of the commits in r.Commits into git's object store. It waits for the git
// directory and, if r.Commits names other commits than HEAD, for the history, which contains these commits.
func (s *Side) prefetchCommits(ctx context.Context, r control.PrefetchRequest,
	progress func(control.Progress)) (control.PrefetchReply, error) {
	ready := s.Events.AwaitGit(ctx)
	if ready && slices.ContainsFunc(r.Commits, func(c string) bool { return c != "HEAD" }) {
		// A user waits for the history, so its fetch is no longer delayed for readers.
		s.Events.historyWanted.Store(true)
		ready = s.Events.Await(ctx, s.Events.HistoryTried)
	}
	s.mu.Lock()
	objects, made := s.servers.objects, s.servers.ready
	s.mu.Unlock()
	if !ready || !made {
		return control.PrefetchReply{}, &control.Error{Code: control.ExitFailed, Kind: control.CodeBusy, Verb: "prefetch",
			Object: r.Dir,
			Cause:  "git directory is not ready", Hint: "run artifactfs status " + r.Dir + " to see the reason"}
	}
	done, err := objects.Prefetch(ctx, r.Commits, matcher(r.Paths), func(p promisor.Prefetched) {
		progress(control.Progress{Phase: "fetch", Done: int64(p.Present), Total: int64(p.Wanted), Unit: "objects"})
	})
	if err != nil {
		e := fault.Explain("prefetch", r.Dir, err)
		if errors.Is(err, promisor.ErrRevision) {
			e.Code, e.Kind, e.Hint = control.ExitUsage, control.CodeNotFound,
				"run git log --all to list the commits; with --history none, there are none before the mounted one"
		}
		return control.PrefetchReply{}, e
	}
	return control.PrefetchReply{Matched: int64(done.Wanted), Fetched: int64(done.Present)}, nil
}
