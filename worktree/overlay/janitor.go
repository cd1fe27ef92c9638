package overlay

import (
	"errors"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/signal"
)

// slice is the maximum number of inodes or puts that one operation handles while it holds the layer's lock.
const slice = 1000

// janitor does the background work of a Layer in its own goroutine, and compacts the log. It has no lock: channels wake
// and stop the goroutine, and its work takes the locks of the Layer.
type janitor struct {
	l    *Layer
	wake chan struct{}  // has an element if there may be work
	stop chan struct{}  // closed by Layer.Close
	busy sync.WaitGroup // counts the goroutines run and findOrphans
}

// poke wakes the janitor's goroutine. It does not block.
func (j *janitor) poke() {
	signal.Send(j.wake)
}

// run does the background work: it drops nodes that could not be dropped at once, removes dead contents files, syncs
// dirty files and marks them clean, and compacts the log. It sleeps while there is no work.
//
// If a round fails, run waits for a minute before the next round. Close stops run and then does a last round of the
// work.
func (j *janitor) run() {
	defer j.busy.Done()
	pause := j.l.o.pause
	for {
		select {
		case <-j.stop:
			return
		case <-j.wake:
		}
		select {
		case <-j.stop:
			return
		case <-time.After(pause): // tasks that arrive during this pause are done in one round, with one sync
		}
		pause = j.l.o.pause
		if err := j.tidy(false); err != nil {
			pause = max(pause, time.Minute) // a full disk rarely has space again within a second
			j.l.log.Warn("tidy overlay", zap.Error(err))
		}
		j.l.mu.RLock()
		more := len(j.l.dead)+len(j.l.forsaken)+len(j.l.due) > 0
		j.l.mu.RUnlock()
		if more {
			j.poke()
		}
	}
}

// tidy does one round of the janitor's work. It skips dirty files that were written recently, unless all is set.
func (j *janitor) tidy(all bool) error {
	err := j.l.dropForsaken()
	err = errors.Join(err, j.l.settleDue(all))
	err = errors.Join(err, j.l.removeDead())
	if j.long(all) {
		err = errors.Join(err, j.compact())
	}
	return err
}

// removeDead removes contents files that no inode names any more. The log record that released these files must be on
// disk first: otherwise, after power loss, an older record could name a contents file that is missing.
func (l *Layer) removeDead() error {
	l.removing.Lock()
	defer l.removing.Unlock()
	l.mu.Lock()
	var dead, pinned []uint64
	for _, number := range append(l.dead, l.pinned...) {
		if l.pins.pinned(number) {
			pinned = append(pinned, number) // the file stays in the list; the release of its last pin wakes the janitor
		} else {
			dead = append(dead, number)
		}
	}
	l.dead, l.pinned = nil, pinned
	l.mu.Unlock()
	if len(dead) == 0 {
		return nil
	}
	left, err := l.removeContents(dead)
	if len(left) > 0 {
		l.mu.Lock()
		l.dead = append(left, l.dead...)
		l.mu.Unlock()
	}
	return err
}

// discard removes a contents file that no log record names. If the removal fails, the janitor tries again.
func (l *Layer) discard(number uint64) {
	if l.contents.remove(number) == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = append(l.dead, number)
	l.janitor.poke()
}

// removeContents removes contents files and logs their removal. It returns the numbers of the files for which the
// removal or the logging failed.
func (l *Layer) removeContents(dead []uint64) (left []uint64, err error) {
	// The records that released these files must be on disk first (see removeDead).
	if err := l.Sync(); err != nil {
		return dead, err
	}
	for len(dead) > 0 {
		some := dead[:min(len(dead), slice)]
		dead = dead[len(some):]
		var gone []uint64
		for _, number := range some {
			if e := l.contents.remove(number); e != nil {
				left, err = append(left, number), errors.Join(err, e)
				continue
			}
			gone = append(gone, number)
		}
		// do not call Update: on a full disk it would call removeDead, which is running already
		e := l.tryUpdate(func(tx *Tx) error {
			for _, number := range gone {
				tx.batch.ContentGone(number)
			}
			return nil
		})
		if e != nil {
			left, err = append(left, gone...), errors.Join(err, e)
		}
	}
	return left, err
}

// withRoom calls the function do. If do fails for lack of disk space, withRoom removes dead contents files and calls do
// once more. So a program that has just deleted a file can use the space of this file at once. Sealed files are removed
// by Reclaim, for which withRoom does not wait, because it may need locks that the caller holds.
func (l *Layer) withRoom(do func() error) error {
	err := do()
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	if l.contents.layout.Load().low > 0 {
		signal.Send(l.o.Full)
	}
	err = l.dropForsaken()
	l.mu.RLock()
	l.pins.yield(l.dead)
	l.pins.yield(l.pinned)
	l.mu.RUnlock()
	if err := errors.Join(err, l.removeDead()); err != nil {
		l.log.Warn("make room in overlay", zap.Error(err))
	}
	return do()
}
