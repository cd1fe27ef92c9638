package overlay

import (
	"errors"
	"syscall"
	"time"

	"go.uber.org/zap"
)

// slice is how much is done with the layer locked before others get their turn: inodes, or puts of a dump.
const slice = 1000

// poke tells the janitor that there is something to do.
func (l *Layer) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// janitor does what nobody waits for: it ends nodes that could not be ended at once, removes dead contents, settles
// files, and keeps the log short. It sleeps while there is nothing of that.
func (l *Layer) janitor() {
	defer l.busy.Done()
	pause := l.o.pause
	for {
		select {
		case <-l.stop:
			return
		case <-l.wake:
		}
		select {
		case <-l.stop:
			return
		case <-time.After(pause): // what comes now shares one sync
		}
		pause = l.o.pause
		if err := l.tidy(false); err != nil {
			pause = max(pause, time.Minute) // a disk is full for longer than a second
			l.log.Warn("overlay cannot be tidied", zap.Error(err))
		}
		l.mu.RLock()
		more := len(l.dead)+len(l.forsaken)+len(l.due) > 0
		l.mu.RUnlock()
		if more {
			l.poke()
		}
	}
}

// tidy does the janitor's work; all of it, recently written files too.
func (l *Layer) tidy(all bool) error {
	err := l.dropForsaken()
	err = errors.Join(err, l.settleDue(all))
	err = errors.Join(err, l.removeDead())
	if l.long(all) {
		err = errors.Join(err, l.compact())
	}
	return err
}

// removeDead removes contents that no inode names any more. First the log that says so must be on disk: else after
// power loss an earlier record could name a content that is gone.
func (l *Layer) removeDead() error {
	l.removing.Lock()
	defer l.removing.Unlock()
	l.mu.Lock()
	var dead, pinned []uint64
	for _, number := range append(l.dead, l.pinned...) {
		if l.pins.pinned(number) {
			pinned = append(pinned, number) // the last pin pokes the janitor
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

// discard removes a content that no record names.
func (l *Layer) discard(number uint64) {
	if l.contents.remove(number) == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = append(l.dead, number)
	l.poke()
}

// removeContents removes contents and notes that they are gone. It gives back those that are to be tried again.
func (l *Layer) removeContents(dead []uint64) (left []uint64, err error) {
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
		e := l.tryUpdate(func(tx *Tx) error { // there is no other room to be made than this
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

// withRoom does what may need room on the disk. If there is none, what was deleted and still lies there is removed, and
// it is done once more: whoever has just deleted a file may use its room at once.
func (l *Layer) withRoom(do func() error) error {
	err := do()
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	err = l.dropForsaken()
	l.mu.RLock()
	l.pins.yield(l.dead)
	l.pins.yield(l.pinned)
	l.mu.RUnlock()
	if err := errors.Join(err, l.removeDead()); err != nil {
		l.log.Warn("overlay cannot make room", zap.Error(err))
	}
	return do()
}
