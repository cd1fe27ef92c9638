// Package packs joins the packs of a mount when there are many of them.
package packs

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/clock"
	"github.com/artifactfs/artifactfs/internal/proc"
	"github.com/artifactfs/artifactfs/mount/watch"
	"github.com/artifactfs/artifactfs/odb"
)

// Each time git fetches missing objects, it stores a pack, and each batch of objects that the daemon supplies to git becomes
// another pack. Git looks an object up in every pack, so many packs make it slow. Therefore packs are joined in the background
// when there are more than packsAbove.
const (
	// packsAbove is the number of packs above which a directory is joined.
	packsAbove = 12
	// packsKeep is the largest number of packs after a join.
	packsKeep = 5
	// packsCrowd is the number of packs above which the old packs of a join are removed soon, even if a process may still be
	// reading them.
	packsCrowd = 24

	// The time between a change of a directory and the check of that directory. It allows one check to find several new packs.
	packsGather = 100 * time.Millisecond
	// The pause before the next check if nothing changes. It doubles each time. A join that was not possible before may be
	// possible then.
	packsIdle  = 10 * time.Second
	packsRetry = 5 * time.Minute // longest pause, and longest wait after a failure
	packsBlind = 2 * time.Second // longest pause if a directory cannot be watched
)

// Tender keeps the number of packs in the git directory of one mount and in the store small. One goroutine uses it.
type Tender struct {
	Dir   string // root of the mount, for the log
	Log   *zap.Logger
	Watch *watch.Watcher // watches the directories of packs
	Busy  func() bool    // reports whether a caller waits for the remote, so that joins have to be slow
}

// NewDirectory returns the directory of packs in the object directory objects. The function join joins its packs.
func NewDirectory(objects string, join func(context.Context, odb.JoinOptions) (odb.JoinResult, error)) *Directory {
	return &Directory{path: filepath.Join(objects, "pack"), join: join}
}

// Run joins packs in the directories dirs until ctx ends. Several mounts of one store run it concurrently: the first one joins the
// packs of the store, and the others find nothing to join.
func (t *Tender) Run(ctx context.Context, dirs ...*Directory) {
	wake, most := make(chan struct{}, 1), packsRetry
	for _, d := range dirs {
		stop, fresh, err := t.Watch.Add(d.path, wake)
		if err != nil {
			t.Log.Debug("watch packs", zap.String("in", d.path), zap.Error(err))
			// A directory that cannot be watched is polled more often.
			most = packsBlind
			continue
		}
		if fresh {
			defer stop()
		}
	}
	// The first check precedes the first pause, so that packs which an earlier process left are joined too.
	for pause := packsIdle; ; pause = min(2*pause, most) {
		for _, d := range dirs {
			if d.look(time.Now()) {
				d.done(t.joinPacks(ctx, d), time.Now())
			}
		}
		select {
		case <-wake:
			pause = packsIdle / 2
			select {
			case <-time.After(packsGather):
			case <-ctx.Done():
				return
			}
		// A change may have been missed or a join may have failed, so the directories are checked from time to time.
		case <-time.After(min(pause, most)):
		case <-ctx.Done():
			return
		}
	}
}

// joinPacks joins the packs of the directory d and logs the result. It returns nil if ctx has ended.
func (t *Tender) joinPacks(ctx context.Context, d *Directory) error {
	start := time.Now()
	res, err := d.join(ctx, odb.JoinOptions{Above: packsAbove, Keep: packsKeep, Crowd: packsCrowd, Pace: t.paceJoin, Reader: sameProgram})
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		t.Log.Warn("join packs", zap.String("mount", t.Dir), zap.Error(err))
	case res.Removed > 0 || res.Name != "":
		t.Log.Info("joined packs", zap.String("in", d.path), zap.Int("packs", res.Packs), zap.Int("removed", res.Removed),
			zap.Int("objects", res.Objects), zap.Int64("bytes", res.Bytes), zap.Duration("took", time.Since(start)))
	}
	return err
}

const (
	// joinPause is the pause after each piece of a join, so that a join does not occupy a processor.
	joinPause = 2 * time.Millisecond
	// joinPauseBusy replaces joinPause while a caller waits for the remote.
	joinPauseBusy = 20 * time.Millisecond
)

// paceJoin pauses a join between two pieces. It returns the error of ctx.
func (t *Tender) paceJoin(ctx context.Context) error {
	pause := joinPause
	if t.Busy() {
		pause = joinPauseBusy
	}
	clock.Wait(ctx, pause)
	return ctx.Err()
}

// sameProgram reports whether the process pid runs the same executable as this process. Such a process looks for new packs
// before it reports an object as missing, so packs that it has open may be removed.
func sameProgram(pid int) bool {
	own, err := proc.Self.Executable()
	if err != nil {
		return false
	}
	its, err := proc.Of(pid).Executable()
	return err == nil && own == its
}

// Directory is a directory of packs that Tender watches, with the times of its last change and its last join.
type Directory struct {
	path string
	join func(context.Context, odb.JoinOptions) (odb.JoinResult, error)

	modified time.Time // modification time of the directory when it was last seen
	changed  time.Time // when modified was seen to differ
	joined   time.Time // when a join was last tried
	// failures is the number of failed joins since the last one that succeeded.
	failures int
}

// look reports whether a join should be tried now. That is the case if the directory has changed since the last try, or if
// packsIdle has passed. After failures, the wait doubles each time up to packsRetry.
func (d *Directory) look(now time.Time) bool {
	// The directory's modification time changes when an entry is added or removed, which is cheaper to check than its
	// entries.
	st, err := os.Stat(d.path)
	if err != nil {
		return false
	}
	if modified := st.ModTime(); !modified.Equal(d.modified) {
		d.modified, d.changed = modified, now
	}
	// After a failure, changes of the directory do not shorten the wait.
	if d.failures > 0 {
		return now.Sub(d.joined) > min(packsIdle<<min(d.failures, 10), packsRetry)
	}
	return d.changed.After(d.joined) || now.Sub(d.joined) > packsIdle
}

// done records the result of a join. The parameter now is the time at which the join ended.
func (d *Directory) done(err error, now time.Time) {
	d.joined = now
	if d.failures++; err == nil {
		d.failures = 0
	}
}
