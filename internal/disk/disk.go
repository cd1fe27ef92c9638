// Package disk holds the file operations whose order of steps matters: whole-file replacement, locks between
// processes, and the seam (FS, File) at which tests let operations fail and the power go out.
package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// WriteFile replaces path with data so that a reader, or a crash at any point, sees the old file or the new one.
// The data is synced before it takes the name.
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

// Lock takes the lock that a file stands for, waiting for whoever holds it; the lock ends with the process.
func Lock(path string) (unlock func(), err error) {
	return lock(path, syscall.LOCK_EX)
}

// ErrLocked says that somebody else holds a lock.
var ErrLocked = errors.New("locked by another process")

// TryLock is Lock that fails with ErrLocked instead of waiting.
func TryLock(path string) (unlock func(), err error) {
	f, err := TryLockFile(path)
	if err != nil {
		return nil, err
	}
	return func() { Unlock(f) }, nil
}

// TryLockFile is TryLock that gives the file. The lock is held as long as any process has it open, and until Unlock.
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

// Relock takes the lock of a file that TryLockFile gave, perhaps to another process; ErrLocked: others have it.
func Relock(f *os.File) error {
	err := flock(f, syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return fmt.Errorf("lock %s: %w", f.Name(), ErrLocked)
	}
	return err
}

// Unlock gives up a lock and closes its file. Closing is not enough: a child that is being started has a copy until it
// runs its program, and others may have one, too.
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

// Free returns how many bytes a user may still write to the file system of path.
func Free(path string) (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(path, &st); err != nil {
		return 0, fmt.Errorf("look for room at %s: %w", path, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}
