package gitside

import (
	"context"
	"slices"

	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/internal/proc"
)

// listing has the names of programs that look up ".git" only because they list or search directories. They do not use
// the repository, so their lookups are not delayed.
var listing = []string{"ls", "find", "stat", "tree", "du", "rm", "fd", "rg", "grep", "bash", "sh", "dash",
	"zsh", "fish"}

// Await delays the reply to the process pid, which has looked up ".git", until git works in the mount. It waits until
// the git directory exists; until the history was fetched or could not be fetched, if the command line of the process
// shows that it needs history; and until the objects are fetched that the command will probably need. If the command
// may discard changes, Await creates a checkpoint first. It returns true if later lookups need not wait.
func (s *Side) Await(ctx context.Context, pid uint32) (done bool) {
	// The thread that bind-mounts the git directory also looks up ".git". It must not wait until the directory is mounted.
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
		argv = []string{""} // the command line is empty if the process is exiting
	}
	s.passes.let(pid, argv)
	s.Mount.Agent.BeforeGit(ctx, pid, argv)
	// Without a git directory, the command fails in any case, and the history is not fetched.
	if s.Dir() != nil && gitdir.NeedsHistory(argv) {
		s.Events.historyWanted.Store(true)
		if !s.Events.Await(ctx, s.Events.HistoryTried) {
			return false
		}
	}
	s.mu.Lock()
	objects, ready := s.servers.objects, s.servers.ready
	s.mu.Unlock()
	if !ready || !objects.Foresee(ctx, pid) {
		return false
	}
	select {
	case <-s.Events.HistoryTried:
	default:
		return false
	}
	// Later lookups must be checked if checkpoints are created before commands that discard changes, or if trees are
	// missing, because later commands may need objects of these trees.
	if s.Mount.Agent.Guards() || !s.Contents.Snapshot().Whole() {
		return false
	}
	// If all contents are on this host, and the index contains their data, later lookups do not have to wait. As long as
	// the daemon still completes the index, it must know the running git commands.
	h := s.Contents.View.Counts(ctx)
	return h.Fetched == h.Blobs && s.Index.isFilled()
}
