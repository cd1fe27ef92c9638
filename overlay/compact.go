package overlay

import (
	"errors"
	"time"

	"github.com/artifactfs/artifactfs/overlay/state"
)

// A log is long if it is much larger than what it says: the next Open reads all of it, and if that takes a mount over,
// programs wait meanwhile (4 ms for each MiB). Before it is closed less is much.
const (
	longLog     = 4 << 20
	longAtClose = 1 << 20
	longFactor  = 3
)

// long reports whether the log is worth being written anew.
func (l *Layer) long(closing bool) bool {
	limit := int64(longLog)
	if closing {
		limit = longAtClose
	}
	size := l.wal.Size()
	if size <= limit {
		return false
	}
	l.mu.RLock()
	t := l.state.Totals()
	l.mu.RUnlock()
	return size > longFactor*(64*t.Inodes+48*t.Entries+32*t.Hidden+128*t.Kept)
}

// compact writes a new log that says what the state is. Changes go on meanwhile: they are appended to both logs. A
// slice of the state is read and appended under one lock, so that no change comes between the two and is undone by
// the older slice behind it.
func (l *Layer) compact() error {
	l.rotating.Lock()
	defer l.rotating.Unlock()
	r, err := l.wal.Begin()
	if err != nil {
		return err
	}
	var at state.Cursor
	var b state.Batch
	for done := false; !done; {
		l.mu.RLock()
		b.Reset()
		at, done = l.state.Dump(at, slice, &b)
		if b.Puts() > 0 {
			err = r.Append(b.Bytes(), time.Now().UnixNano())
		}
		l.mu.RUnlock()
		if err != nil {
			return errors.Join(err, r.Abort())
		}
	}
	if err := l.beforeSync(); err != nil {
		return errors.Join(err, r.Abort())
	}
	return r.Commit()
}
