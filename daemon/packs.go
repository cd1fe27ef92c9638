package daemon

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/clock"
	"github.com/artifactfs/artifactfs/internal/proc"
	"github.com/artifactfs/artifactfs/odb"
)

// Each fetch by git for missing objects stores a pack, and each batch of objects that the daemon provides to git stores
// another one. Every pack makes git's lookups slower, so packs are joined in the background, long before there are
// thirty.
const (
	// packsAbove is the number of packs above which a directory is joined.
	packsAbove = 12
	// packsKeep is the largest number of packs after a join.
	packsKeep = 5
	// packsCrowd is the number of packs above which joined packs are removed soon, even if a process may still read
	// them.
	packsCrowd = 24

	// Delay between a change of a directory and the look into it, so that one look sees several new packs.
	packsGather = 100 * time.Millisecond
	// First pause before the next look without a change; it doubles, because what blocked a join may be over.
	packsIdle  = 10 * time.Second
	packsRetry = 5 * time.Minute // longest pause, and longest wait after a failure
	packsBlind = 2 * time.Second // longest pause if a directory cannot be watched
)

// tendPacks keeps the number of packs small, in the mount's git directory and in the store, until ctx ends. Mounts of
// one store run it side by side: the first one joins the packs, and the others find nothing to join.
func (m *mount) tendPacks(ctx context.Context) {
	if !m.tried(ctx, m.gitTried) { // the pack directories exist from then on
		return
	}
	dirs := []*tended{
		{path: filepath.Join(m.gitPath(), "objects", "pack"), join: m.local.Join},
		{path: filepath.Join(m.store.GitDir(), "objects", "pack"), join: m.store.Join},
	}
	wake, most := make(chan struct{}, 1), packsRetry
	for _, d := range dirs {
		stop, fresh, err := m.daemon.watch.Add(d.path, wake)
		if err != nil {
			m.daemon.log.Debug("watch packs", zap.String("in", d.path), zap.Error(err))
			// A directory that cannot be watched is polled more often.
			most = packsBlind
			continue
		}
		if fresh {
			defer stop()
		}
	}
	// The first look precedes the first wait, so that packs which an earlier process left are joined too.
	for pause := packsIdle; ; pause = min(2*pause, most) {
		for _, d := range dirs {
			if d.look(time.Now()) {
				d.done(m.joinPacks(ctx, d), time.Now())
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
		// A change or a failure may have been missed, so the directory is looked at from time to time.
		case <-time.After(min(pause, most)):
		case <-ctx.Done():
			return
		}
	}
}

// joinPacks joins the packs of a directory and logs the result. It returns no error if ctx has ended.
func (m *mount) joinPacks(ctx context.Context, d *tended) error {
	start := time.Now()
	res, err := d.join(ctx, odb.JoinOptions{Above: packsAbove, Keep: packsKeep, Crowd: packsCrowd, Pace: m.paceJoin, Reader: sameProgram})
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		m.daemon.log.Warn("join packs", zap.String("mount", m.dir), zap.Error(err))
	case res.Removed > 0 || res.Name != "":
		m.daemon.log.Info("joined packs", zap.String("in", d.path), zap.Int("packs", res.Packs), zap.Int("removed", res.Removed),
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
func (m *mount) paceJoin(ctx context.Context) error {
	pause := joinPause
	if m.store.Busy() {
		pause = joinPauseBusy
	}
	clock.Wait(ctx, pause)
	return ctx.Err()
}

// sameProgram reports whether a process runs the executable of this process. The stores that such a process has open
// look for new packs before they report an object as missing.
func sameProgram(pid int) bool {
	own, err := proc.Self.Executable()
	if err != nil {
		return false
	}
	its, err := proc.Of(pid).Executable()
	return err == nil && own == its
}

// tended is a directory of packs, and what tendPacks saw of it.
type tended struct {
	path string
	join func(context.Context, odb.JoinOptions) (odb.JoinResult, error)

	modified time.Time // modification time of the directory when it was last seen
	changed  time.Time // when modified was seen to differ
	joined   time.Time // when a join was last tried
	// failures is the number of failed joins since the last one that succeeded.
	failures int
}

// look reports whether to try a join now: the directory has changed, or packsIdle has passed since the last try. After
// failures it waits longer, at most packsRetry.
func (d *tended) look(now time.Time) bool {
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

// done records the result of a join at now.
func (d *tended) done(err error, now time.Time) {
	d.joined = now
	if d.failures++; err == nil {
		d.failures = 0
	}
}
