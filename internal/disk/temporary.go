package disk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// temporary matches the names that TempDir and TempFile create.
var temporary = regexp.MustCompile(`-[0-9]+\.tmp$`)

// unfinished is the age from which SweepTemp removes files that WriteFile has left behind. WriteFile itself takes seconds at most.
const unfinished = time.Hour

// TempDir creates a directory NAME-NUMBER.tmp in the directory parent. Until the function remove is called, which removes the
// directory, or the process dies, the directory is locked, and SweepTemp does not remove it.
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
			return path, func() error { return errors.Join(os.RemoveAll(path), unlocked(f)) }, nil
		case !errors.Is(err, fs.ErrNotExist):
			return "", nil, errors.Join(err, os.RemoveAll(path))
		}
	}
}

// TempFile creates an empty file NAME-NUMBER.tmp in the directory parent. It is locked like the directories of TempDir until the function
// remove is called, which closes and removes it.
func TempFile(parent, name string) (f *os.File, remove func() error, err error) {
	for {
		if f, err = os.CreateTemp(parent, name+"-*.tmp"); err != nil {
			return nil, nil, err
		}
		err = lockTemp(f, f.Name())
		switch {
		case err == nil:
			return f, func() error { return errors.Join(os.Remove(f.Name()), unlocked(f)) }, nil
		case !errors.Is(err, fs.ErrNotExist):
			return nil, nil, errors.Join(err, os.Remove(f.Name()))
		}
	}
}

// unlocked unlocks and closes a file.
func unlocked(f *os.File) error {
	Unlock(f)
	return nil
}

// lockTemp locks an open file or directory. It returns fs.ErrNotExist if SweepTemp has removed the file from path before it was locked.
// After an error, f is closed.
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

// SweepTemp removes the files and directories that TempDir, TempFile and WriteFile have created in the directory parent, and that killed
// processes have left behind.
func SweepTemp(parent string) error {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(parent, e.Name())
		switch {
		case temporary.MatchString(e.Name()):
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
		return ignore(err, fs.ErrNotExist)
	}
	defer Unlock(f)
	if err := Relock(f); err != nil {
		return ignore(err, ErrLocked)
	}
	return os.RemoveAll(path)
}

// ignore returns err, or nil if it wraps the error expected.
func ignore(err, expected error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}
