package disk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/artifactfs/artifactfs/internal/lazy"
)

// temporary matches the ends of the names that TempDir and TempFile give to files and directories.
var temporary = lazy.Regexp(`-[0-9]+\.tmp$`)

// unfinished is the age from which SweepTemp removes temporary files of WriteFile. A call of WriteFile takes some
// seconds at most.
const unfinished = time.Hour

// TempDir creates a directory called NAME-NUMBER.tmp in the directory parent and locks it, so that SweepTemp does not
// remove it. The function remove removes the directory. The lock lasts until remove is called or the process ends.
func TempDir(parent, name string) (path string, remove func() error, err error) {
	for {
		if path, err = os.MkdirTemp(parent, name+"-*.tmp"); err != nil {
			return "", nil, err
		}
		f, err := os.Open(path)
		if err == nil {
			err = lockTemp(f, path)
		}
		switch {
		case err == nil:
			return path, func() error { return errors.Join(os.RemoveAll(path), unlockFile(f)) }, nil
		case !errors.Is(err, fs.ErrNotExist):
			return "", nil, errors.Join(err, os.RemoveAll(path))
		}
	}
}

// TempFile creates an empty file called NAME-NUMBER.tmp in the directory parent and locks it, so that SweepTemp does
// not remove it. The function remove closes and removes the file. The lock lasts until remove is called or the process
// ends.
func TempFile(parent, name string) (f *os.File, remove func() error, err error) {
	for {
		if f, err = os.CreateTemp(parent, name+"-*.tmp"); err != nil {
			return nil, nil, err
		}
		err = lockTemp(f, f.Name())
		switch {
		case err == nil:
			return f, func() error { return errors.Join(os.Remove(f.Name()), unlockFile(f)) }, nil
		case !errors.Is(err, fs.ErrNotExist):
			return nil, nil, errors.Join(err, os.Remove(f.Name()))
		}
	}
}

// unlockFile unlocks and closes a file. It always returns nil.
func unlockFile(f *os.File) error {
	Unlock(f)
	return nil
}

// lockTemp locks an open file or directory. It returns fs.ErrNotExist if SweepTemp has removed the file from path
// before it was locked. After an error, f is closed.
func lockTemp(f *os.File, path string) error {
	err := flock(f, syscall.LOCK_EX)
	if err == nil {
		var open, there os.FileInfo
		if open, err = f.Stat(); err == nil {
			there, err = os.Lstat(path)
		}
		if err == nil && !os.SameFile(open, there) {
			err = fs.ErrNotExist
		}
	}
	if err != nil {
		f.Close()
	}
	return err
}

// SweepTemp removes temporary files and directories of processes that have ended. These are the files and directories
// in the directory parent that TempDir, TempFile and WriteFile have created.
func SweepTemp(parent string) error {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(parent, e.Name())
		switch {
		case temporary().MatchString(e.Name()):
			err = errors.Join(err, sweep(path))
		case strings.HasSuffix(e.Name(), ".tmp") && e.Type().IsRegular():
			if info, failed := e.Info(); failed == nil && time.Since(info.ModTime()) > unfinished {
				err = errors.Join(err, os.Remove(path))
			}
		}
	}
	return err
}

// sweep removes a file or a directory unless a process has locked it.
func sweep(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return ignoreError(err, fs.ErrNotExist)
	}
	defer Unlock(f)
	if err := Relock(f); err != nil {
		return ignoreError(err, ErrLocked)
	}
	return os.RemoveAll(path)
}

// ignoreError returns nil if err wraps the error expected, and err otherwise.
func ignoreError(err, expected error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}
