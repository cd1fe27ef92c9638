package wal

import (
	"errors"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/disktest"
)

// Records that are appended while the log is rotated are in the new log, between the dumped ones.
func TestRotationMissesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, _, _ := open(t, path, Options{})
	add(t, l, 0, 2000)
	before := l.Size()
	r, err := l.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Begin(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("a second rotation at the same time: got %v", err)
	}
	if err := r.Append(record(0), -5); err != nil { // represents a dump of the first 2000 records
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		var err error
		for i := 1; i < 3000 && err == nil; i++ {
			if err = l.Append(record(i), int64(i)-5); err == nil && i%100 == 0 {
				err = l.Sync()
			}
		}
		done <- err
	}()
	if err := errors.Join(r.Commit(), <-done); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Commit(), r.Append([]byte("late"), 0)); !errors.Is(err, errEnded) {
		t.Errorf("use of the rotation after Commit: got %v", err)
	}
	if err := r.Abort(); err != nil {
		t.Error(err)
	}
	if before < 2000*recordHead {
		t.Error("the new log is too small")
	}
	l.Abandon()
	l, _, have := open(t, path, Options{})
	if have != 3000 {
		t.Errorf("records: got %d, want 3000", have)
	}
	l.Abandon()
}

func TestAbortedRotationLeavesTheLog(t *testing.T) {
	dir := t.TempDir()
	var full atomic.Bool
	fs := disktest.Faulty(disk.OS, func(op disktest.Op) error {
		if full.Load() && op.Name == "Allocate" && filepath.Ext(op.Path) == ".new" {
			return syscall.ENOSPC
		}
		return nil
	})
	l, _, _ := open(t, filepath.Join(dir, "log"), Options{})
	l.Abandon()
	l, _, _ = open(t, filepath.Join(dir, "log"), Options{FS: fs}) // another name than that of a new log
	r, err := l.Begin()
	if err != nil {
		t.Fatal(err)
	}
	full.Store(true)
	add(t, l, 0, 8000) // does not fit into the new log's first chunks, so the old log stays in use
	if err := r.Commit(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("commit of a log that lacks records: got %v", err)
	}
	full.Store(false)
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 1 {
		t.Errorf("files after the failed rotation: got %q", left)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, have := open(t, filepath.Join(dir, "log"), Options{}); have != 8000 {
		t.Errorf("records: got %d", have)
	}
}

// A Sync that waits for a Commit has counted the records of the old log. So records that are appended while the new log
// is synced must be on disk when Commit returns.
func TestCommitSyncsWhatCameMeanwhile(t *testing.T) {
	var l *Log
	var late atomic.Int64
	fs := disktest.Faulty(disk.OS, func(op disktest.Op) error {
		if n := late.Load(); op.Name == "DataSync" && n > 0 && n < 3 {
			late.Add(1)
			return l.Append(record(int(n)), n-5)
		}
		return nil
	})
	l, _, _ = open(t, filepath.Join(t.TempDir(), "log"), Options{FS: fs})
	add(t, l, 0, 1)
	r, err := l.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Append(record(0), -5); err != nil {
		t.Fatal(err)
	}
	late.Store(1)
	if err := r.Commit(); err != nil {
		t.Fatal(err)
	}
	if late.Load() != 3 || l.file.appended != 3 || l.file.synced != 3 {
		t.Errorf("got %d appended records, but %d synced", l.file.appended, l.file.synced)
	}
	l.Abandon()
}
