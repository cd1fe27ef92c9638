// Package wal is the overlay's write-ahead log. An acknowledged record survives the death of the process without a
// system call, and a power cut after a Sync.
//
// Append copies a record into a memory mapping of the file. From then on the record is in the page cache, so the death
// of the process loses nothing. Sync makes the kernel write the record to disk, so that it also survives a power cut.
//
// A file is a header of one page, then records, then zeros. The length of a record is stored last, so a process that
// dies while it copies a record leaves no record. Disk space is allocated before it is mapped, one chunk ahead: on a
// full disk Append returns an error and has appended nothing.
//
// Lock order: Rotation.Commit and Sync take syncing, then mu. A caller that holds mu waits for the disk only if the
// file must grow before the background goroutine has prepared the next chunk.
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
	// FS is the file system to use; nil means disk.OS.
	FS disk.FS
	// Replay is called for each record, the oldest first. The record is valid until Replay returns. If Replay returns
	// ErrRefused, the record is treated as invalid and the log ends before it; any other error fails Open.
	Replay func(record []byte, time int64) error
	// LostFound is the directory in which a tail that was cut off is saved. It is created when needed. If LostFound is
	// empty, the tail is saved in the directory of the log.
	LostFound string
	// Salvage opens the log without writing anything, and reads a damaged log up to the damage. Append to such a log
	// fails.
	Salvage bool
	// BootID is the boot ID of the host; if it is empty, the file system FS returns the boot ID.
	BootID string
}

// Recovery is the result of Open: the state of the log that Open found, and the bytes that it cut.
type Recovery struct {
	Fresh     bool         // whether no log existed
	Clean     bool         // whether the last user of the log closed it
	PowerLost bool         // whether the host went down before the log was closed
	Rebooted  bool         // whether the log was last written in another boot of the host
	Records   int64        // number of replayed records
	Cut       int64        // bytes cut from the end: an incomplete record, or bytes damaged by a power cut
	SavedTo   string       // file in which the cut bytes were saved, or ""
	Damage    *DamageError // damage in a log that was opened with Salvage, or nil
}

// DamageError means that a part of the log is invalid although it is known to have been valid before.
type DamageError struct {
	Path    string
	Offset  int64 // offset of the first invalid byte
	Records int64 // number of valid records behind Offset
}

// Error returns the path, the offset and the number of valid records behind the damage.
func (e *DamageError) Error() string {
	return fmt.Sprintf("read log %s: damaged at byte %d, %d valid records after it", e.Path, e.Offset, e.Records)
}

var (
	// ErrRefused is returned by Options.Replay for a record that is valid but cannot be used.
	ErrRefused = errors.New("log record cannot be applied")
	// ErrUnsynced means that an earlier Sync failed. The kernel may have dropped the pages that it could not write, so a
	// later sync would succeed although the bytes of these pages are lost. A Rotation writes all records to a new file.
	ErrUnsynced = errors.New("an earlier sync of the log failed")
	// ErrVersion means that an incompatible version of this program wrote the log.
	ErrVersion = errors.New("unknown version of the overlay's log")
	errEmpty   = errors.New("append to log: empty record")
)

// Log is an open log. All methods may be called concurrently.
type Log struct {
	fs     disk.FS
	path   string
	bootID bootID

	syncing sync.Mutex // held during a sync, and while a new file replaces the old one; taken before mu

	mu       sync.Mutex
	file     *file     // nil if the log was opened with Salvage or is closed; replaced only with both locks held
	rotation *Rotation // rotation in progress, or nil
	size     int64     // used length of the log in bytes, if file is nil
	dirDirty bool      // whether the file's directory entry may not be on disk yet; protected by syncing
}

// Append adds a record, which must not be empty, with a time in nanoseconds since 1970. Once Append has returned, the
// record survives the death of the process, but not yet a power cut. Append returns EROFS if the log was opened with
// Salvage or is closed.
func (l *Log) Append(record []byte, time int64) error {
	if len(record) == 0 {
		return errEmpty
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return fmt.Errorf("append to log %s: %w", l.path, syscall.EROFS)
	}
	if err := l.file.append(record, time); err != nil {
		return err
	}
	if r := l.rotation; r != nil && r.err == nil {
		r.err = r.file.append(record, time) // after an error the rotation fails, but the record is in the log
	}
	return nil
}

// Raise marks the log, before the first record with a put that version 3 of the format does not have is appended. An
// older program then refuses the log with ErrVersion. The mark stays in all later files of the log. Raise returns EROFS
// if the log was opened with Salvage or is closed.
func (l *Log) Raise() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return fmt.Errorf("raise version of log %s: %w", l.path, syscall.EROFS)
	}
	if l.file.head.version == raised {
		return nil
	}
	l.file.head.raise()
	if r := l.rotation; r != nil {
		r.file.head.raise()
	}
	return nil
}

// Reserve allocates disk space for n further bytes of records in the present file of the log, so that Append needs
// none.
func (l *Log) Reserve(n int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return fmt.Errorf("append to log %s: %w", l.path, syscall.EROFS)
	}
	return l.file.reserve(n)
}

// Sync writes all records to disk that were appended before the call, so that they survive a power cut. Calls that
// begin during a sync share the next sync: the first of these calls that gets the lock syncs the records of all of
// them.
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

// syncLocked syncs the file up to the record with the sequence number in the parameter want. The caller holds
// l.syncing. If a Rotation has replaced the file since the caller determined this number, the rotation has synced the
// records, and syncLocked does nothing.
func (l *Log) syncLocked(want uint64) error {
	if l.file == nil {
		return fmt.Errorf("sync log %s: %w", l.path, os.ErrClosed)
	}
	if l.dirDirty {
		if err := l.fs.SyncDir(filepath.Dir(l.path)); err != nil {
			return fmt.Errorf("sync log %s: %w", l.path, err)
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

// Close syncs the log and marks it as closed. It aborts a rotation in progress.
func (l *Log) Close() error {
	l.mu.Lock()
	r := l.rotation
	l.mu.Unlock()
	if r != nil {
		_ = r.Abort() // an error is ignored, because the next Open removes the file of the rotation
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

// Abandon closes the log as if the process had died: it neither syncs the log nor marks it as closed.
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
		_ = f.close() // an error of close is ignored, because Abandon need not write anything
	}
	if r != nil {
		_ = r.file.close()
	}
}
