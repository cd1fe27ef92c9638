package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/disk"
)

const (
	logSize = 10 << 20 // size in bytes at which a log file is rotated
	logOld  = 3        // number of rotated files that are kept; FILE.1 is the newest
)

// logFile is a log file to which several processes append. Each process rotates the file when the file is too large,
// and switches to the new file when another process has rotated the file. If standard output or standard error, to
// which a panic is written, refers to the rotated file, it is redirected to the new file. A lock on FILE.lock, a file
// beside the log, prevents two rotations at the same time.
type logFile struct {
	path string

	mu   sync.Mutex
	file *os.File // the open log file; nil if the last attempt to open it failed
	size int64    // size in bytes at which the file is rotated
}

// openLogFile opens the log file at path, and creates it if it is missing. If the disk is full, openLogFile returns no
// error, and Write opens the file later: a process that takes over mounts must not fail because of its log.
func openLogFile(path string) (*logFile, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	l := &logFile{path: path, size: logSize}
	if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
		l.file, err = appendTo(path)
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		err = nil
	}
	return l, err
}

// appendTo opens a file for appending, and creates it if it is missing.
func appendTo(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

// Write appends p, after a rotation if the file is too large. It is safe for concurrent use.
func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.reopenLocked(); err != nil && l.file == nil {
		return 0, fmt.Errorf("open log: %w", err)
	}
	return l.file.Write(p)
}

// reopenLocked opens the file that has the log's name now, and rotates the file if it is too large. If this fails while
// a file is open, the log continues in the open file, because a log that is too long is better than no log. The caller
// holds l.mu.
func (l *logFile) reopenLocked() error {
	if here, full := l.lookLocked(); here && !full {
		return nil
	}
	unlock, err := disk.Lock(l.path + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	here, full := l.lookLocked() // another process may have rotated the file before the lock was acquired
	if here && full {
		// FILE.2 becomes FILE.3, FILE.1 becomes FILE.2, and FILE becomes FILE.1.
		for n := logOld; n > 0; n-- {
			from := l.path
			if n > 1 {
				from += "." + strconv.Itoa(n-1)
			}
			if err := os.Rename(from, l.path+"."+strconv.Itoa(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	} else if here {
		return nil
	}
	f, err := appendTo(l.path)
	if err != nil {
		return err
	}
	if l.file != nil {
		follow(l.file, f)
		l.file.Close()
	}
	l.file = f
	return nil
}

// lookLocked reports whether the log's name still refers to the open file, and whether that file is too large. The
// caller holds l.mu.
func (l *logFile) lookLocked() (here, full bool) {
	if l.file == nil {
		return false, false
	}
	mine, err := l.file.Stat()
	if err != nil {
		return false, false
	}
	there, err := os.Stat(l.path)
	return err == nil && os.SameFile(mine, there), mine.Size() >= l.size
}

// follow redirects standard output and error to the file in the parameter now if they refer to the file in the
// parameter old.
func follow(old, now *os.File) {
	was, err := old.Stat()
	for _, std := range []*os.File{os.Stdout, os.Stderr} {
		if is, statErr := std.Stat(); err == nil && statErr == nil && os.SameFile(was, is) {
			_ = unix.Dup3(int(now.Fd()), int(std.Fd()), 0) // on an error, later output goes to the old file
		}
	}
}

// Sync does nothing, because written data is in the page cache and survives the end of the process.
func (l *logFile) Sync() error { return nil }

// close closes the file.
func (l *logFile) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		l.file.Close()
	}
}
