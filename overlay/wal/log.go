// Package wal is the overlay's write-ahead log: an acknowledged record survives the death of the process without a
// system call, and a power cut after one.
//
// Append copies a record into a mapping of the file. From then on the kernel has it, and the death of the process loses
// nothing. Sync makes the kernel write it; only then does it survive a power cut.
//
// A file is a header of one page, then records, then zeros. A record's length is stored last, so that a process that dies
// while copying leaves no record. Disk space is reserved before it is mapped, one chunk ahead: a full disk is an error of
// Append, which then has appended nothing.
//
// Lock order: Rotation.Commit and Sync take syncing, then mu. Under mu the disk is waited for only if the file must grow
// before the goroutine that prepares chunks has the next one ready.
package wal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// Options of Open.
type Options struct {
	FS        disk.FS                               // nil: disk.OS
	Replay    func(record []byte, time int64) error // called for each record, oldest first; the slice is valid until it returns. ErrRefused: take it as bad
	LostFound string                                // directory for a tail that is cut off; made when needed. "": the log's
	Salvage   bool                                  // nothing is written; of a damaged log the good prefix; Append fails
	BootID    string                                // "": of the host
}

// Recovery is what Open found and repaired.
type Recovery struct {
	Fresh     bool         // there was no log
	Clean     bool         // it was closed
	PowerLost bool         // the machine went down without a Close
	Rebooted  bool         // another run of the host's kernel wrote it last
	Records   int64        // replayed
	Cut       int64        // bytes cut from the end: torn, or lost with the power
	SavedTo   string       // where they are, if they were kept
	Damage    *DamageError // only with Salvage
}

// DamageError says that a log is bad where it had been good.
type DamageError struct {
	Path    string
	Offset  int64
	Records int64 // that are whole, behind Offset
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("read %s: damaged at byte %d, %d good records behind it", e.Path, e.Offset, e.Records)
}

var (
	// ErrRefused is for Options.Replay: a record that is whole and cannot be used.
	ErrRefused = errors.New("record refused")
	// ErrUnsynced means that an earlier Sync failed. The kernel may have dropped what it could not write, so that a
	// later Sync would succeed and say nothing; a Rotation helps.
	ErrUnsynced = errors.New("an earlier sync failed")
	// ErrVersion means that another version of this program wrote the log.
	ErrVersion = errors.New("unknown version")
	errEmpty   = errors.New("append an empty record")
)

// Log is an open log. All methods may be called concurrently.
type Log struct {
	fs     disk.FS
	path   string
	bootID bootID

	syncing sync.Mutex // held while the disk is asked to sync, and while a new file takes the old one's place

	mu       sync.Mutex
	file     *file     // nil: salvaged, nothing can be appended. Replaced under both locks
	rotation *Rotation // while there is one
	size     int64     // of a salvaged log
	dirDirty bool      // guarded by syncing: the file's name may not survive a power cut
}

// Append adds a record, which must not be empty. It survives the process from here on, not yet a power cut.
func (l *Log) Append(record []byte, time int64) error {
	if len(record) == 0 {
		return errEmpty
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return fmt.Errorf("append to %s: %w", l.path, syscall.EROFS)
	}
	if err := l.file.append(record, time); err != nil {
		return err
	}
	if r := l.rotation; r != nil && r.err == nil {
		r.err = r.file.append(record, time) // only the rotation fails
	}
	return nil
}

// Sync makes all records appended before the call survive a power cut. Callers that come while the disk is busy
// share the next round: whoever gets the lock first syncs for all of them.
func (l *Log) Sync() error {
	l.mu.Lock()
	if l.file == nil {
		l.mu.Unlock()
		return nil
	}
	want := l.file.appended
	l.mu.Unlock()
	l.syncing.Lock()
	defer l.syncing.Unlock()
	return l.syncLocked(want)
}

// syncLocked is Sync of the first want records of the file. A Rotation that has replaced the file since want was
// read has synced them.
func (l *Log) syncLocked(want uint64) error {
	if l.file == nil {
		return fmt.Errorf("sync %s: %w", l.path, os.ErrClosed)
	}
	if l.dirDirty {
		if err := l.fs.SyncDir(filepath.Dir(l.path)); err != nil {
			return fmt.Errorf("sync %s: %w", l.path, err)
		}
		l.dirDirty = false
	}
	return l.file.sync(&l.mu, want)
}

// Size is how many bytes of the file are used.
func (l *Log) Size() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return l.size
	}
	return l.file.end
}

// Close syncs and marks the log clean. A rotation under way is given up.
func (l *Log) Close() error {
	l.mu.Lock()
	r := l.rotation
	l.mu.Unlock()
	if r != nil {
		_ = r.Abort() // what is left of it the next Open removes
	}
	l.syncing.Lock()
	defer l.syncing.Unlock()
	if l.file == nil {
		return nil
	}
	l.mu.Lock()
	want := l.file.appended
	l.mu.Unlock()
	err := l.syncLocked(want)
	if err == nil {
		err = l.file.markClean()
	}
	l.mu.Lock()
	f := l.file
	l.file, l.size = nil, f.end
	l.mu.Unlock()
	return errors.Join(err, f.close())
}

// Abandon lets go of the log as the death of the process does: nothing is synced, and it is not marked clean.
func (l *Log) Abandon() {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	l.mu.Lock()
	f, r := l.file, l.rotation
	if f != nil {
		l.file, l.rotation, l.size = nil, nil, f.end
	}
	l.mu.Unlock()
	if f != nil {
		_ = f.close() // there is nothing in it that could still fail
	}
	if r != nil {
		_ = r.file.close()
	}
}
