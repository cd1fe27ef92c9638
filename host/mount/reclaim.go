package mount

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/worktree"
)

// reclaimPause is the least interval at which the mount looks for contents in shares that nobody uses any more.
const reclaimPause = 5 * time.Minute

// fullPause is the minimum time between two searches for which a full disk is the reason.
const fullPause = 30 * time.Second

// reclaim removes from the shares of the session, until ctx ends, the contents that the session has replaced since it
// was forked and that no fork uses. Without it, they would use disk space as long as the session exists.
func (a *activity) reclaim(ctx context.Context) {
	homes := a.host.Homes
	sole := homes.Sole(a.home.Dir)
	tick := time.NewTicker(reclaimPause + rand.N(reclaimPause/4)) // the mounts of a new daemon start at the same time
	defer tick.Stop()
	overlay := a.attachment.Tree.Overlay()
	full, paused := overlay.Full(), (<-chan time.Time)(nil)
	dropped := false // shares that this session no longer uses may have to be removed
	for {
		select {
		case <-tick.C:
		case <-full:
			full, paused = nil, time.After(fullPause)
		case <-paused:
			full, paused = overlay.Full(), nil
			continue
		case <-ctx.Done():
			return
		}
		r, err := overlay.Reclaim(ctx, sole)
		if errors.Is(err, worktree.ErrClosed) || ctx.Err() != nil {
			return
		}
		if dropped = dropped || len(r.Dropped) > 0; dropped {
			removeErr := homes.DropShares()
			dropped, err = removeErr != nil, errors.Join(err, removeErr)
		}
		switch {
		case err != nil: // the next round tries again
			a.host.Log.Warn("remove unused shared contents", zap.String("dir", a.dir), zap.Error(err))
		case r.Files > 0 || len(r.Dropped) > 0:
			a.host.Log.Info("removed unused shared contents", zap.String("dir", a.dir), zap.Int64("files", r.Files),
				zap.Int64("bytes", r.Bytes), zap.Int("shares", len(r.Dropped)))
		}
	}
}
