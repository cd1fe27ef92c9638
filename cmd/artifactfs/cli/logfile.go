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
	logSize = 10 << 20 // bytes at which a log file is put aside
	logOld  = 3        // files put aside: FILE.1 is the youngest
)

// logFile is a file that several processes append to: each rotates it when it has become too large, and continues in
// the new one when another did so. Our own stdout and stderr, to which a panic is written, follow if they were the
// same file.
type logFile struct {
	path string

	mu   sync.Mutex
	file *os.File // nil: it could not be opened again
	size int64    // at which it is put aside
}

// openLogFile opens the log file at path, which is made if it is missing. On a full disk that waits for the first Write
// that finds room: a process that is to go on with mounts must not fail for its log.
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

func appendTo(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.turnLocked(); err != nil && l.file == nil {
		return 0, fmt.Errorf("open log: %w", err)
	}
	return l.file.Write(p)
}

// turnLocked makes sure that the file is the one that has the name, and not too large. What it cannot do it leaves: a
// log that is too long is better than none.
func (l *logFile) turnLocked() error {
	if here, full := l.lookLocked(); here && !full {
		return nil
	}
	unlock, err := disk.Lock(l.path + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	here, full := l.lookLocked() // another process may have rotated it meanwhile
	if here && full {
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

// lookLocked says whether the name still means our file, and whether that is full.
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

// follow sends our standard output and error to another file if they went to the old one.
func follow(old, now *os.File) {
	was, err := old.Stat()
	for _, std := range []*os.File{os.Stdout, os.Stderr} {
		if is, statErr := std.Stat(); err == nil && statErr == nil && os.SameFile(was, is) {
			_ = unix.Dup3(int(now.Fd()), int(std.Fd()), 0) // what it would say goes to the old file still
		}
	}
}

// Sync has nothing to do: what was written lies with the kernel.
func (l *logFile) Sync() error { return nil }

func (l *logFile) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		l.file.Close()
	}
}
