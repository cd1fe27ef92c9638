package writeback

import (
	"context"
	"strings"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
)

// tracker reports the branches that the mounted remote has to QueueOptions.Tracked.
type tracker struct {
	conn  *connection
	moved func(ctx context.Context, branch string, old, now object.ID) error // QueueOptions.Tracked
	log   *zap.Logger
}

// follow reports a branch that the mounted remote now has, as a git push by the user would do it: without it, git
// status compares the branch with a value of the time before the push.
func (t tracker) follow(ctx context.Context, ref string, old, now object.ID, l *ledger) {
	user, own := l.layout().Here(ref)
	branch, isBranch := strings.CutPrefix(ref, "refs/heads/")
	if t.moved == nil || !own || !isBranch || user != ref || !t.conn.isOrigin(l.meta.Remote) {
		return
	}
	if err := t.moved(ctx, branch, old, now); err != nil && ctx.Err() == nil {
		t.log.Warn("move remote-tracking ref", zap.String("branch", branch), zap.Error(err))
	}
}
