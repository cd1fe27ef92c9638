// Package packs joins the packs of a mount into fewer, larger ones when there are many.
package packs

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/host/mount/watch"
	"github.com/artifactfs/artifactfs/internal/clock"
	"github.com/artifactfs/artifactfs/internal/proc"
)

// Each time git fetches missing objects, it stores a pack, and each batch of objects that the daemon supplies to git is
// stored as a pack too. Git searches every pack for an object, so many packs make git slow. Therefore packs are joined
// in the background when a directory contains more than packsAbove.
const (
	// packsAbove is the number of packs above which the packs of a directory are joined.
	packsAbove = 12
	// packsKeep is the maximum number of packs after a join.
	packsKeep = 5
	// packsCrowd is the number of packs above which the packs that a join has replaced are removed soon, even if a process
	// may still be reading them.
	packsCrowd = 24

	// packsGather is the time between a change of a directory and the check of the directory, so that one check finds
	// several new packs.
	packsGather = 100 * time.Millisecond
	// packsIdle is the pause before the next check if nothing changes. It doubles after each check. The check may start
	// a join that was not possible before.
	packsIdle  = 10 * time.Second
	packsRetry = 5 * time.Minute // maximum pause between checks, and maximum wait after a failed join
	packsBlind = 2 * time.Second // maximum pause between checks if a directory cannot be watched
)

// Tender joins the packs in the git directory of one mount and in the store, so that their number stays small. Only one
// goroutine uses it.
type Tender struct {
	Dir   string // root of the mount, for the log
	Log   *zap.Logger
	Watch *watch.Watcher // reports new files in the directories of packs
	Busy  func() bool    // reports whether a reader waits for the remote, so that joins must be slow
}

// NewDirectory returns a Directory for the packs in the object directory objects. join joins these packs.
func NewDirectory(objects string, join func(context.Context, odb.JoinOptions) (odb.JoinResult, error)) *Directory {
	return &Directory{path: filepath.Join(objects, "pack"), join: join}
}

// Run joins packs in the directories dirs until ctx ends. Several mounts may run it for the same store: one of them
// joins the packs of the store, and the others find nothing to join.
func (t *Tender) Run(ctx context.Context, dirs ...*Directory) {
	wake, most := make(chan struct{}, 1), packsRetry
	for _, d := range dirs {
		stop, fresh, err := t.Watch.Add(d.path, wake)
		if err != nil {
			t.Log.Debug("watch packs", zap.String("in", d.path), zap.Error(err))
			// A directory that cannot be watched is checked more often.
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
		// The directories are also checked without a notification, because a notification may be lost, and because a join may
		// have failed.
		case <-time.After(min(pause, most)):
		case <-ctx.Done():
			return
		}
	}
}

// joinPacks joins the packs of the directory d and logs the result. It returns nil if ctx has ended.
func (t *Tender) joinPacks(ctx context.Context, d *Directory) error {
	start := time.Now()
	res, err := d.join(ctx, odb.JoinOptions{Above: packsAbove, Keep: packsKeep, Crowd: packsCrowd, Pace: t.paceJoin,
		Reader: sameProgram})
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
	// joinPause is the pause after each step of a join, so that a join does not use all of a processor's time.
	joinPause = 2 * time.Millisecond
	// joinPauseBusy is used instead of joinPause while a reader waits for the remote.
	joinPauseBusy = 20 * time.Millisecond
)

// paceJoin waits between two steps of a join. It returns the error of ctx if ctx ends.
func (t *Tender) paceJoin(ctx context.Context) error {
	pause := joinPause
	if t.Busy() {
		pause = joinPauseBusy
	}
	clock.Wait(ctx, pause)
	return ctx.Err()
}

// sameProgram reports whether the process pid runs the same executable as this process. Such a process searches for new
// packs before it reports an object as missing, so packs that it has open may be removed.
func sameProgram(pid int) bool {
	own, err := proc.Self.Executable()
	if err != nil {
		return false
	}
	its, err := proc.Of(pid).Executable()
	return err == nil && own == its
}

// Directory is a directory of packs that a Tender checks and watches.
type Directory struct {
	path string
	join func(context.Context, odb.JoinOptions) (odb.JoinResult, error)

	modified time.Time // modification time that the directory had at the last check
	changed  time.Time // time of the check that found a new modification time
	joined   time.Time // time of the last attempt to join
	// failures is the number of joins that have failed since the last successful one.
	failures int
}

// look reports whether a join should be tried at the time now: the directory has changed since the last attempt, or
// packsIdle has passed. After a failed join, the time until the next attempt doubles each time, up to packsRetry.
func (d *Directory) look(now time.Time) bool {
	// The modification time of a directory changes when an entry is added or removed. Reading it is cheaper than listing
	// the entries.
	st, err := os.Stat(d.path)
	if err != nil {
		return false
	}
	if modified := st.ModTime(); !modified.Equal(d.modified) {
		d.modified, d.changed = modified, now
	}
	// After a failed join, a change of the directory does not make the next attempt earlier.
	if d.failures > 0 {
		return now.Sub(d.joined) > min(packsIdle<<min(d.failures, 10), packsRetry)
	}
	return d.changed.After(d.joined) || now.Sub(d.joined) > packsIdle
}

// done records err as the result of a join that has ended at the time now.
func (d *Directory) done(err error, now time.Time) {
	d.joined = now
	if d.failures++; err == nil {
		d.failures = 0
	}
}
