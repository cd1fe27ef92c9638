package wal

import (
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
)

// Rotation replaces a log by a shorter log with the same meaning. While the rotation runs, every record that is
// appended to the log is also appended to the new log, between the records that the rotation itself adds. So when
// Commit is called, a replay of either log has the same result.
type Rotation struct {
	log  *Log
	file *file
	err  error // error because of which the new log lacks a record; protected by log.mu
}

// newPath returns the path that a new log has before it is renamed to path.
func newPath(path string) string { return path + ".new" }

var errEnded = errors.New("rotation of the log has ended already")

// Begin starts a rotation. It returns EBUSY if another rotation is in progress, and EROFS if the log cannot be written.
func (l *Log) Begin() (*Rotation, error) {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	if l.file == nil {
		return nil, fmt.Errorf("rotate log %s: %w", l.path, syscall.EROFS)
	}
	l.mu.Lock()
	busy, version := l.rotation != nil, l.file.head.version
	l.mu.Unlock()
	if busy {
		return nil, fmt.Errorf("rotate log %s: %w", l.path, syscall.EBUSY)
	}
	f, err := create(l.fs, newPath(l.path), version, l.bootID)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("rotate log %s: %w", l.path, err), l.fs.Remove(newPath(l.path)))
	}
	r := &Rotation{log: l, file: f}
	l.mu.Lock()
	if l.file.head.version == raised { // Raise may have been called since
		f.head.raise()
	}
	l.rotation = r
	l.mu.Unlock()
	return r, nil
}

// Append adds a record to the new log, but not to the old log, with a time in nanoseconds since 1970.
func (r *Rotation) Append(record []byte, time int64) error {
	if len(record) == 0 {
		return errEmpty
	}
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	if r.log.rotation != r {
		return errEnded
	}
	if r.err == nil {
		r.err = r.file.append(record, time)
	}
	return r.err
}

// Commit replaces the old log by the new log. If Commit fails, the old log stays in use, unless only the sync of the
// directory failed: in that case the new log is in use, and the next Sync syncs the directory again.
func (r *Rotation) Commit() error {
	l := r.log
	l.mu.Lock()
	ended, err := l.rotation != r, r.err
	l.mu.Unlock()
	switch {
	case ended:
		return errEnded
	// This first sync writes most of the new log to disk without a lock, so that other goroutines can still sync the
	// old log.
	case err == nil:
		err = r.sync()
	}
	if err != nil {
		return errors.Join(err, r.Abort())
	}
	l.syncing.Lock()
	defer l.syncing.Unlock()
	old, err := r.replaceLocked()
	if err != nil {
		return errors.Join(err, r.abortLocked())
	}
	// Until the directory is synced, a power cut may restore the old log under the name. The old log has all records
	// that a Sync has acknowledged, because no Sync can run before this function returns. Records that were appended
	// since the last sync of the new log are synced now: a Sync that waits for the lock has read its sequence number
	// from the old log, in which the number stands for another record than in the new log.
	l.dirDirty = true
	err = l.syncLocked(r.file.synced + 1)
	return errors.Join(err, old.close())
}

// replaceLocked syncs the new log, renames it to the path of the old log and returns the old file. It holds l.mu during
// the rename, so that no Append runs between the rename and the replacement of l.file. The caller holds log.syncing.
func (r *Rotation) replaceLocked() (old *file, err error) {
	if err := r.sync(); err != nil {
		return nil, err
	}
	l := r.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.err != nil {
		return nil, r.err
	}
	if l.rotation != r {
		return nil, errEnded
	}
	if err := l.fs.Rename(newPath(l.path), l.path); err != nil {
		return nil, err
	}
	old, l.file, l.rotation = l.file, r.file, nil
	return old, nil
}

// sync syncs the new log.
func (r *Rotation) sync() error {
	r.log.mu.Lock()
	want := r.file.appended
	r.log.mu.Unlock()
	return r.file.sync(&r.log.mu, want)
}

// Abort discards the new log. It does nothing after Commit.
func (r *Rotation) Abort() error {
	r.log.syncing.Lock()
	defer r.log.syncing.Unlock()
	return r.abortLocked()
}

// abortLocked does the work of Abort. The caller holds log.syncing.
func (r *Rotation) abortLocked() error {
	l := r.log
	l.mu.Lock()
	ended := l.rotation != r
	if !ended {
		l.rotation = nil
	}
	l.mu.Unlock()
	if ended {
		return nil
	}
	return errors.Join(r.file.close(), l.fs.Remove(newPath(l.path)))
}

// name renames the synced file f to the log's path and syncs the directory.
func (l *Log) name(f *file) error {
	if err := l.fs.Rename(newPath(l.path), l.path); err != nil {
		return err
	}
	return l.fs.SyncDir(filepath.Dir(l.path))
}
