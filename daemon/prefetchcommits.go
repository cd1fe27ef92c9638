package daemon

import (
	"context"
	"errors"
	"slices"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/promisor"
)

// prefetchCommits fetches the objects of the commits in r.Commits, so that they are in git's object store when it returns. It
// waits for the git directory. If r.Commits names other commits than HEAD, it also waits for the history, in which these are
// found.
func (m *mount) prefetchCommits(ctx context.Context, r control.PrefetchRequest,
	progress func(control.Progress)) (control.PrefetchReply, error) {
	ready := m.triedGit(ctx)
	if ready && slices.ContainsFunc(r.Commits, func(c string) bool { return c != "HEAD" }) {
		// The history, which is otherwise fetched in the background, becomes urgent.
		m.historyWanted.Store(true)
		ready = m.tried(ctx, m.historyTried)
	}
	m.mu.Lock()
	objects, made := m.git.objects, m.gitReady
	m.mu.Unlock()
	if !ready || !made {
		return control.PrefetchReply{}, &control.Error{Code: control.ExitFailed, Kind: control.CodeBusy, Verb: "prefetch", Object: r.Dir,
			Cause: "its git directory is not ready", Hint: "artifactfs status " + r.Dir + " says why"}
	}
	done, err := objects.Prefetch(ctx, r.Commits, matcher(r.Paths), func(p promisor.Prefetched) {
		progress(control.Progress{Phase: "fetch", Done: int64(p.Present), Total: int64(p.Wanted), Unit: "objects"})
	})
	if err != nil {
		e := fault.Explain("prefetch", r.Dir, err)
		if errors.Is(err, promisor.ErrRevision) {
			e.Code, e.Kind, e.Hint = control.ExitUsage, control.CodeNotFound,
				"git log --all lists commits; --history none leaves out those behind the mounted one"
		}
		return control.PrefetchReply{}, e
	}
	return control.PrefetchReply{Matched: int64(done.Wanted), Fetched: int64(done.Present)}, nil
}
