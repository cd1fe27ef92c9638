package writeback

import (
	"context"
	"strings"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
)

// tracked reports a branch that the mounted remote now has, as a git push by the user would do it: without it, git status compares the
// branch with a value of the time before the push.
func (q *Queue) tracked(ctx context.Context, ref string, old, now object.ID, l *ledger) {
	user, own := l.layout().Here(ref)
	branch, isBranch := strings.CutPrefix(ref, "refs/heads/")
	if q.o.Tracked == nil || !own || !isBranch || user != ref || !q.conn.isOrigin(l.meta.Remote) {
		return
	}
	if err := q.o.Tracked(ctx, branch, old, now); err != nil && ctx.Err() == nil {
		q.log.Warn("move remote-tracking ref", zap.String("branch", branch), zap.Error(err))
	}
}
