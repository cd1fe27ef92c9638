// Package disk has the file operations whose order of steps matters: replacing a whole file, locks between processes, and
// the interfaces FS and File, behind which tests let operations fail and cut the power (package disktest).
package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// WriteFile replaces path with data. A reader, and a crash at any point, finds the old file or the new one: the data is
// synced before it is renamed to path. The name itself may be lost with the power, since the directory is not synced.
// After an error the old file is unchanged, and the temporary file is removed.
func WriteFile(path string, data []byte, perm os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(perm), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// Lock locks the file at path with flock(2), waiting for another process that has it locked. It creates the file if it
// is missing. The kernel releases the lock when the process ends.
func Lock(path string) (unlock func(), err error) {
	return lock(path, syscall.LOCK_EX)
}

// ErrLocked is returned by TryLock, TryLockFile and Relock if another process holds the lock.
var ErrLocked = errors.New("locked by another process")

// TryLock is Lock that returns ErrLocked instead of waiting.
func TryLock(path string) (unlock func(), err error) {
	f, err := TryLockFile(path)
	if err != nil {
		return nil, err
	}
	return func() { Unlock(f) }, nil
}

// TryLockFile is TryLock that returns the locked file. The lock is held until Unlock, or until every process that has a
// copy of the descriptor has closed it.
func TryLockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := Relock(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Relock locks a file that TryLockFile returned, perhaps in another process. It returns ErrLocked if another process
// locked it since.
func Relock(f *os.File) error {
	err := flock(f, syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return fmt.Errorf("lock %s: %w", f.Name(), ErrLocked)
	}
	return err
}

// Unlock releases the lock and closes the file. Closing is not enough: a child that is being started has a copy of the
// descriptor until it executes its program, and other processes may have been given one.
func Unlock(f *os.File) {
	flock(f, syscall.LOCK_UN)
	f.Close()
}

func lock(path string, how int) (func(), error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock(f, how); err != nil {
		f.Close()
		return nil, err
	}
	return func() { Unlock(f) }, nil
}

func flock(f *os.File, how int) error {
	for {
		err := syscall.Flock(int(f.Fd()), how)
		if err == nil {
			return nil
		}
		if err != syscall.EINTR {
			return &os.PathError{Op: "lock", Path: f.Name(), Err: err}
		}
	}
}

// Free returns how many bytes an unprivileged user may still write to the file system that contains path.
func Free(path string) (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(path, &st); err != nil {
		return 0, fmt.Errorf("read free space of %s: %w", path, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}
