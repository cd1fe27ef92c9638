package promisor

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"
)

// movers are the git commands that overwrite files of the working tree. git calls lstat on each of these files before
// it requests the new contents. To answer lstat for a file of unknown size, a mount must fetch the file.
var movers = []string{"checkout", "switch", "merge", "pull", "rebase", "cherry-pick", "revert", "restore"}

// Foresee fetches, in one batch, the objects that the process pid will need, if the process is a git command that
// overwrites files of the working tree. Foresee is called when the process has just started, and returns after the
// objects were fetched. The wait costs no time, because the command itself would have to wait for these objects.
// Foresee returns false if it has fetched nothing.
func (s *Server) Foresee(ctx context.Context, pid uint32) bool {
	h := ancestors(int(pid))
	if len(h.Commands) == 0 || !moves(h.Commands[0].Args) || !s.oracle.foresees(h.Commands[0].Process) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, questionTime)
	defer cancel()
	start := time.Now()
	h.Commands = h.Commands[:1]
	along := s.oracle.predict(ctx, h, nil)
	var err error
	if len(along) > 0 {
		err = s.provider.Provide(ctx, nil, along)
	}
	s.log.Debug("predict objects for git", zap.Any("commands", h.Commands), zap.Int("along", len(along)),
		zap.Duration("took", time.Since(start)),
		zap.Error(err))
	return true
}

// moves reports whether a git command with these arguments will replace files of the working tree by the files of
// another commit.
func moves(args []string) bool {
	name, rest := Subcommand(args)
	if name == "reset" {
		return slices.ContainsFunc(rest, func(a string) bool { return a == "--hard" || a == "--keep" || a == "--merge" })
	}
	return slices.Contains(movers, name)
}

// foresees returns true at the first call for a process, and false at later calls. A process looks for its repository
// several times, and one prediction is enough.
func (o *oracle) foresees(process string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.foreseen == process {
		return false
	}
	o.foreseen = process
	return true
}
