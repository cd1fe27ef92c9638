package gitside

import (
	"context"
	"slices"

	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/internal/proc"
)

// listing names programs that look up .git because they list or search directories, and that do not use the repository.
var listing = []string{"ls", "find", "stat", "tree", "du", "rm", "fd", "bash", "sh", "dash", "zsh", "fish"}

// Await is called when the process pid has looked up .git, and delays the reply until git works in the mount. It waits until
// the git directory exists; until the history is fetched or has failed, if the command line needs history; and until the objects
// are fetched that the command is predicted to need. If the command discards changes, Await creates a checkpoint first. It
// returns true if no further lookup has to wait.
func (s *Side) Await(ctx context.Context, pid uint32) (done bool) {
	// The thread that bind-mounts the git directory looks up .git too. It must not wait for itself.
	if s.Inside.Mounts(pid) {
		return false
	}
	caller := proc.Of(int(pid))
	name, err := caller.Name()
	if err == nil && slices.Contains(listing, name) {
		return false
	}
	if !s.Events.AwaitGit(ctx) {
		return false
	}
	argv, err := caller.Args()
	if err != nil {
		return false
	}
	if len(argv) == 0 {
		argv = []string{""} // the process is exiting
	}
	s.passes.let(pid, argv)
	s.Mount.Agent.BeforeGit(ctx, pid, argv)
	if gitdir.NeedsHistory(argv) {
		s.Events.historyWanted.Store(true)
		if !s.Events.Await(ctx, s.Events.HistoryTried) {
			return false
		}
	}
	s.mu.Lock()
	objects, ready := s.servers.objects, s.ready
	s.mu.Unlock()
	if !ready || !objects.Foresee(ctx, pid) {
		return false
	}
	select {
	case <-s.Events.HistoryTried:
	default:
		return false
	}
	// Checkpoints before commands that discard changes depend on every lookup. While trees are missing, later commands may want
	// them.
	if s.Mount.Agent.Guards() || !s.Snapshot().Whole() {
		return false
	}
	// If all contents are on this host, a later lookup has nothing to wait for.
	h := s.Index.View.Counts(ctx)
	return h.Fetched == h.Blobs
}
