package overlay

import (
	"errors"
	"time"

	"github.com/artifactfs/artifactfs/worktree/overlay/state"
)

// A log longer than longLog bytes is compacted if it is more than longFactor times as long as the estimated size of the
// state. The limit exists because the next Open reads the whole log, and programs wait for Open during a takeover (4 ms
// for each MiB). Close uses the lower limit longAtClose.
const (
	longLog     = 4 << 20
	longAtClose = 1 << 20
	longFactor  = 3
)

// long reports whether the log is so much longer than the state that compaction is worth its cost.
func (j *janitor) long(closing bool) bool {
	limit := int64(longLog)
	if closing {
		limit = longAtClose
	}
	size := j.l.wal.Size()
	if size <= limit {
		return false
	}
	j.l.mu.RLock()
	t, held := j.l.state.Totals(), j.l.held
	j.l.mu.RUnlock()
	return held == 0 && size > longFactor*(64*t.Inodes+48*t.Entries+32*t.Hidden+128*t.Kept)
}

// compact replaces the log by a new one that contains only the current state. Changes continue during the compaction
// and are appended to both logs. Each slice of the state is read and appended under one lock, so that no change is
// appended between the two steps. The older slice would undo such a change in the new log. If compact fails, the old
// log stays in use and no change is lost.
func (j *janitor) compact() error {
	j.l.rotating.Lock()
	defer j.l.rotating.Unlock()
	r, err := j.l.wal.Begin()
	if err != nil {
		return err
	}
	var at state.Cursor
	var b state.Batch
	for done := false; !done; {
		j.l.mu.RLock()
		b.Reset()
		at, done = j.l.state.Dump(at, slice, &b)
		if b.Puts() > 0 {
			err = r.Append(b.Bytes(), time.Now().UnixNano())
		}
		j.l.mu.RUnlock()
		if err != nil {
			return errors.Join(err, r.Abort())
		}
	}
	if err := j.l.beforeSync(); err != nil {
		return errors.Join(err, r.Abort())
	}
	return r.Commit()
}
