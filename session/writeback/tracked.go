package writeback

import (
	"context"
	"strings"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
)

// tracker calls QueueOptions.Tracked if a branch of the mounted remote is known to have changed.
type tracker struct {
	conn  *connection
	moved func(ctx context.Context, branch string, old, now object.ID) error // QueueOptions.Tracked
	log   *zap.Logger
}

// follow reports that the mounted remote now has the commit now in the branch ref, so that the remote-tracking ref in
// the mount is updated, as by a git push of the user. Otherwise git status would compare the branch with an older
// commit.
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
