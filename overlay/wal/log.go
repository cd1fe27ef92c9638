// Package wal is the log of the overlay.
package wal

import (
	"errors"
	"fmt"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// Options of Open.
type Options struct {
	FS        disk.FS                               // nil: disk.OS
	Replay    func(record []byte, time int64) error // called for each record, oldest first; the slice is valid until it returns. ErrRefused: take it as bad
	LostFound string                                // directory for a tail that is cut off; made when needed
	Salvage   bool                                  // nothing is written; of a damaged log the good prefix; Append fails
	BootID    string                                // "": of the host
}

// Recovery says what Open found.
type Recovery struct {
	Fresh     bool         // there was no log
	Clean     bool         // it was closed
	PowerLost bool         // the machine went down without a Close
	Records   int64        // replayed
	Cut       int64        // bytes cut from the end (torn or lost with the power)
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

// ErrRefused is for Options.Replay: a record that is whole and cannot be used.
var ErrRefused = errors.New("record refused")

// ErrUnsynced says that an earlier Sync failed. What was written then may be lost to the kernel's view too, so that
// no later Sync can help; a Rotation does.
var ErrUnsynced = errors.New("an earlier sync failed")

// Log is an open log. All methods may be called concurrently.
type Log struct{}

// Open opens or makes a log.
func Open(path string, o Options) (*Log, Recovery, error) { panic("not written yet") }

// Append adds a record (not empty). It survives the process from here on, not yet a power cut.
func (l *Log) Append(record []byte, time int64) error { panic("not written yet") }

// Sync makes all records appended before the call survive a power cut.
func (l *Log) Sync() error { panic("not written yet") }

// Size is how many bytes of the file are used.
func (l *Log) Size() int64 { panic("not written yet") }

// Close syncs and marks the log clean.
func (l *Log) Close() error { panic("not written yet") }

// Rotation replaces a log by one that says the same in less.
type Rotation struct{}

// Begin starts a rotation: from now on every Append goes to both logs.
func (l *Log) Begin() (*Rotation, error) { panic("not written yet") }

// Append adds a record to the new log only.
func (r *Rotation) Append(record []byte, time int64) error { panic("not written yet") }

// Commit lets the new log take the old one's place.
func (r *Rotation) Commit() error { panic("not written yet") }

// Abort gives the new log up.
func (r *Rotation) Abort() error { panic("not written yet") }
