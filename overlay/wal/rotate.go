package wal

import (
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
)

// Rotation replaces a log by one that says the same in less. The new log gets every Append too, in between what the
// rotation adds to it, so that at any moment of the Commit both say the same.
type Rotation struct {
	log  *Log
	file *file
	err  error // guarded by log.mu: the new log has missed a record
}

// newPath is where a log lies before it takes its name.
func newPath(path string) string { return path + ".new" }

var errEnded = errors.New("the rotation has ended")

// Begin starts a rotation. There is one at a time.
func (l *Log) Begin() (*Rotation, error) {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	if l.file == nil {
		return nil, fmt.Errorf("rotate %s: %w", l.path, syscall.EROFS)
	}
	l.mu.Lock()
	busy := l.rotation != nil
	l.mu.Unlock()
	if busy {
		return nil, fmt.Errorf("rotate %s: %w", l.path, syscall.EBUSY)
	}
	f, err := create(l.fs, newPath(l.path), l.bootID)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("rotate %s: %w", l.path, err), l.fs.Remove(newPath(l.path)))
	}
	r := &Rotation{log: l, file: f}
	l.mu.Lock()
	l.rotation = r
	l.mu.Unlock()
	return r, nil
}

// Append adds a record to the new log only.
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

// Commit lets the new log take the old one's place. Where it fails the old one goes on, unless only the name of the
// new one is not on disk yet: then the new one goes on and the next Sync tries again.
func (r *Rotation) Commit() error {
	l := r.log
	l.mu.Lock()
	ended, err := l.rotation != r, r.err
	l.mu.Unlock()
	switch {
	case ended:
		return errEnded
	case err == nil: // most of the log goes to disk here, while others sync the old one
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
	// Until the directory is synced a power cut may bring the old log back; it has all that was synced, for nobody
	// syncs meanwhile. What was appended since the last sync of the new log is synced here: a Sync that waits has
	// counted the old log's records.
	l.dirDirty = true
	err = l.syncLocked(r.file.synced + 1)
	return errors.Join(err, old.close())
}

// replaceLocked syncs the new log and gives it the old one's name; no record comes between the two names.
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

func (r *Rotation) sync() error {
	r.log.mu.Lock()
	want := r.file.appended
	r.log.mu.Unlock()
	return r.file.sync(&r.log.mu, want)
}

// Abort discards the new log. After Commit it does nothing.
func (r *Rotation) Abort() error {
	r.log.syncing.Lock()
	defer r.log.syncing.Unlock()
	return r.abortLocked()
}

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

// name makes a synced file the log at path.
func (l *Log) name(f *file) error {
	if err := l.fs.Rename(newPath(l.path), l.path); err != nil {
		return err
	}
	return l.fs.SyncDir(filepath.Dir(l.path))
}
