package promisor

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"
)

// movers are the commands that overwrite files of the working tree. git calls lstat on each of them
// before it requests the new contents, and a mount has to read a file of unknown size for that.
var movers = []string{"checkout", "switch", "merge", "pull", "rebase", "cherry-pick", "revert", "restore"}

// Foresee fetches, in one batch, the objects that a process which has just started will look at and
// want, if it is a git command of that kind. It waits for them, as the command would, and returns
// whether it is such a command.
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
	s.log.Debug("foresee git", zap.Any("commands", h.Commands), zap.Int("along", len(along)), zap.Duration("took", time.Since(start)),
		zap.Error(err))
	return true
}

// moves reports whether a git command will change files of the working tree to another commit.
func moves(args []string) bool {
	name, rest := Subcommand(args)
	if name == "reset" {
		return slices.ContainsFunc(rest, func(a string) bool { return a == "--hard" || a == "--keep" || a == "--merge" })
	}
	return slices.Contains(movers, name)
}

// foresees is true once for a process, which looks for its repository several times.
func (o *oracle) foresees(process string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.foreseen == process {
		return false
	}
	o.foreseen = process
	return true
}
