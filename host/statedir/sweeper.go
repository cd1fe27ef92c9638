package statedir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"
)

// Sweeper removes the files of shares that no home uses any more, so that an unmount does not wait for that. The shares
// were renamed before. If the process is killed, the next one, or cache gc, removes the remaining files.
type Sweeper struct {
	homes Homes
	wake  chan struct{} // receives a value when there are files to remove
}

// NewSweeper returns a Sweeper for a state directory. It does nothing until Run is called.
func NewSweeper(state string, log *zap.Logger) *Sweeper {
	return &Sweeper{Homes{State: state, Log: log}, make(chan struct{}, 1)}
}

// Run removes files after each call of Homes.DropShares, until ctx ends.
func (s *Sweeper) Run(ctx context.Context) {
	for {
		select {
		case <-s.wake:
			if err := removeDropped(ctx, s.homes); err != nil && ctx.Err() == nil { // the next call tries again
				s.homes.Log.Warn("remove unused shares", zap.Error(err))
			}
		case <-ctx.Done():
			return
		}
	}
}

// sweepTime is the time for which a process removes files at its end.
const sweepTime = 5 * time.Second

// Finish removes files that Run has not removed, until ctx ends, and for at most sweepTime.
func (s *Sweeper) Finish(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, sweepTime)
	defer cancel()
	if err := removeDropped(ctx, s.homes); err != nil {
		s.homes.Log.Info("files of unused shares are removed later", zap.Error(err))
	}
}

// removeDropped removes the files of the shares that this process, or one that was killed, has dropped, until ctx ends.
func removeDropped(ctx context.Context, h Homes) error {
	_, dropped, err := h.shareDirs()
	for _, dir := range dropped {
		parts, _ := os.ReadDir(filepath.Join(dir, "contents")) // directories of at most 1024 files each
		for _, part := range parts {
			if ctx.Err() != nil {
				return errors.Join(err, ctx.Err())
			}
			_ = os.RemoveAll(filepath.Join(dir, "contents", part.Name()))
		}
		err = errors.Join(err, os.RemoveAll(dir))
	}
	if err != nil {
		err = fmt.Errorf("remove share: %w", err)
	}
	return err
}
