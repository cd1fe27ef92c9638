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

// Every fetch of git's own for objects that are missing leaves a pack, and so does what it is provided with. Each pack
// makes every look-up of git's a little slower, so they are joined behind the mount, before there are thirty.
const (
	packsAbove = 12
	packsKeep  = 5
	packsCrowd = 24

	packsGather = 100 * time.Millisecond // that packs may take to come before they are looked at
	packsIdle   = 10 * time.Second       // before they are looked at once more: what was in the way may be over; it doubles
	packsRetry  = 5 * time.Minute        // the longest pause after a failure
	packsBlind  = 2 * time.Second        // between two looks where changes cannot be watched
)

// tendPacks keeps packs few, in the mount's git directory and in the store, until ctx ends. Mounts of one store do so
// side by side: whoever comes first joins, the others see that there is nothing left to do.
func (m *mount) tendPacks(ctx context.Context) {
	if !m.tried(ctx, m.gitTried) { // then the directories are there
		return
	}
	dirs := []*tended{
		{path: filepath.Join(m.gitPath(), "objects", "pack"), join: m.local.Join},
		{path: filepath.Join(m.store.GitDir(), "objects", "pack"), join: m.store.Join},
	}
	wake, most := make(chan struct{}, 1), packsRetry
	for _, d := range dirs {
		stop, fresh, err := m.daemon.watch.watch(d.path, wake)
		if err != nil {
			m.daemon.log.Debug("watch packs", zap.String("in", d.path), zap.Error(err))
			most = packsBlind
			continue
		}
		if fresh {
			defer stop()
		}
	}
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
		case <-time.After(min(pause, most)):
		case <-ctx.Done():
			return
		}
	}
}

// joinPacks joins what there is to join in a directory.
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
	// joinPause is the pause after each piece of a join, so that it takes no processor for itself.
	joinPause = 2 * time.Millisecond
	// joinPauseBusy is the same while somebody waits for the remote.
	joinPauseBusy = 20 * time.Millisecond
)

func (m *mount) paceJoin(ctx context.Context) error {
	pause := joinPause
	if m.store.Busy() {
		pause = joinPauseBusy
	}
	clock.Wait(ctx, pause)
	return ctx.Err()
}

// sameProgram says whether a process runs what we run. Such a one has stores open that look again.
func sameProgram(pid int) bool {
	own, err := proc.Self.Executable()
	if err != nil {
		return false
	}
	its, err := proc.Of(pid).Executable()
	return err == nil && own == its
}

// tended is a directory of packs.
type tended struct {
	path string
	join func(context.Context, odb.JoinOptions) (odb.JoinResult, error)

	modified time.Time // of the directory, as last seen
	changed  time.Time // when it was seen to have changed
	joined   time.Time // when it was last looked into
	failures int
}

// look says whether it is time to look into the directory: it has changed, or was not looked into for long, since what
// was in the way then may be over.
func (d *tended) look(now time.Time) bool {
	st, err := os.Stat(d.path)
	if err != nil {
		return false
	}
	if modified := st.ModTime(); !modified.Equal(d.modified) {
		d.modified, d.changed = modified, now
	}
	if d.failures > 0 {
		return now.Sub(d.joined) > min(packsIdle<<min(d.failures, 10), packsRetry)
	}
	return d.changed.After(d.joined) || now.Sub(d.joined) > packsIdle
}

// done notes how it went.
func (d *tended) done(err error, now time.Time) {
	d.joined = now
	if d.failures++; err == nil {
		d.failures = 0
	}
}
