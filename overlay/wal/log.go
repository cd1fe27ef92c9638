// Package wal is the overlay's write-ahead log: an acknowledged record survives the death of the process without a
// system call, and a power cut after one.
//
// Append copies a record into a mapping of the file. From then on the page cache has it, and the death of the process
// loses nothing. Sync makes the kernel write it to disk; only then does it survive a power cut.
//
// A file is a header of one page, then records, then zeros. A record's length is stored last, so that a process that
// dies while copying leaves no record. Disk space is allocated before it is mapped, one chunk ahead: on a full disk
// Append returns an error and has appended nothing.
//
// Lock order: Rotation.Commit and Sync take syncing, then mu. A caller that holds mu waits for the disk only if the file
// must grow before the background goroutine has prepared the next chunk.
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

// Options configures Open.
type Options struct {
	FS disk.FS // nil: disk.OS
	// Called for each record, oldest first; the slice is valid until Replay returns. ErrRefused: treat the record as
	// invalid.
	Replay func(record []byte, time int64) error
	// Directory for a tail that is cut off, created when needed; "": the log's directory.
	LostFound string
	Salvage   bool   // write nothing, and read a damaged log up to the damage; Append fails
	BootID    string // "": that of the host
}

// Recovery is the result of Open: what it found and what it repaired.
type Recovery struct {
	Fresh     bool         // no log existed
	Clean     bool         // the log was closed
	PowerLost bool         // the host went down before Close
	Rebooted  bool         // the log was last written in another boot of the host
	Records   int64        // number of replayed records
	Cut       int64        // bytes cut from the end: an incomplete record, or bytes damaged by a power cut
	SavedTo   string       // file that the cut bytes were saved to, if any
	Damage    *DamageError // damage that Salvage skipped; nil: none
}

// DamageError means that a part of the log that was known to be good is damaged.
type DamageError struct {
	Path    string
	Offset  int64 // position of the damage in bytes
	Records int64 // number of valid records behind Offset
}

// Error implements error.
func (e *DamageError) Error() string {
	return fmt.Sprintf("read %s: damaged at byte %d, %d good records behind it", e.Path, e.Offset, e.Records)
}

var (
	// ErrRefused is returned by Options.Replay for a record that is valid but cannot be used.
	ErrRefused = errors.New("record refused")
	// ErrUnsynced means that an earlier Sync failed. The kernel may have dropped the pages that it could not write, and
	// a later sync would succeed although they are lost. A Rotation writes everything again.
	ErrUnsynced = errors.New("an earlier sync failed")
	// ErrVersion means that an incompatible version of this program wrote the log.
	ErrVersion = errors.New("unknown version")
	errEmpty   = errors.New("append an empty record")
)

// Log is an open log. All methods may be called concurrently.
type Log struct {
	fs     disk.FS
	path   string
	bootID bootID

	syncing sync.Mutex // held during a sync, and while a new file replaces the old one; taken before mu

	mu       sync.Mutex
	file     *file     // nil: opened with Salvage, or closed. Replaced with both locks held
	rotation *Rotation // rotation in progress, or nil
	size     int64     // size in bytes when file is nil
	dirDirty bool      // guarded by syncing: the file's name may not survive a power cut
}

// Append adds a record, which must not be empty. From its return on, the record survives the death of the process, but
// not yet a power cut. time is in nanoseconds since 1970. EROFS: the log was opened with Salvage, or closed.
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
		r.err = r.file.append(record, time) // an error only fails the rotation
	}
	return nil
}

// Sync makes all records appended before the call survive a power cut. Callers that arrive during a sync share the next
// one: the first to get the lock syncs the records of all.
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

// syncLocked syncs the first want records of the file; l.syncing is held. If a Rotation has replaced the file since want
// was read, it has synced those records.
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

// Size returns the used length of the file in bytes.
func (l *Log) Size() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return l.size
	}
	return l.file.end
}

// Close syncs the log and marks it clean. It aborts a rotation in progress.
func (l *Log) Close() error {
	l.mu.Lock()
	r := l.rotation
	l.mu.Unlock()
	if r != nil {
		_ = r.Abort() // the next Open removes a file that is left
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

// Abandon closes the log as if the process had died: it does not sync the log and does not mark it clean.
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
		_ = f.close() // nothing is written, so no error matters
	}
	if r != nil {
		_ = r.file.close()
	}
}
