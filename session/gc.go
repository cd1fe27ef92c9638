package session

import (
	"context"
	"errors"
	"time"
)

// Retention says which points are kept. The newest of a lane, and those that are pinned, always are.
type Retention struct {
	All   time.Duration // younger than this; 0: DefaultAll
	Daily time.Duration // of those that are older, the last of each day in UTC for so long; 0: DefaultDaily
}

const (
	// DefaultAll is how long every point is kept.
	DefaultAll = 7 * 24 * time.Hour
	// DefaultDaily is how long the last point of a day is kept.
	DefaultDaily = 30 * 24 * time.Hour
)

// GCOptions say what GC may drop.
type GCOptions struct {
	Session string
	Keep    Retention
	Now     time.Time
	DryRun  bool
}

// GCResult is what GC has dropped, or would.
type GCResult struct {
	Kept    int
	Dropped []Point // newest first
	Bytes   int64   // that became free; in a dry run 0
}

// GC drops the points that nothing keeps, and all that only they had. No point may be made meanwhile.
func GC(ctx context.Context, r *Repo, o GCOptions) (GCResult, error) {
	return GCResult{}, errors.ErrUnsupported
}

// Working keeps what nothing names from being removed until done is called. Whoever looks for what is there already,
// writes the rest, and then has a ref name it, is in the middle of that. It must not be asked for twice at a time by one
// goroutine.
func (r *Repo) Working() (done func()) {
	r.sweeping.RLock()
	return r.sweeping.RUnlock
}
