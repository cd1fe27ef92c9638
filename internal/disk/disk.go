// Package disk has file operations that must be done in a certain order, such as replacing a whole file, and locks
// between processes. Its interfaces FS and File represent the host's file system. Tests use the implementations in
// package disktest to make operations fail and to simulate power cuts.
package disk

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Lock locks the file at path with flock(2), and waits if another process has locked it. It creates the file if it does
// not exist. The kernel releases the lock when the process ends. The caller must call unlock to release it earlier.
func Lock(path string) (unlock func(), err error) {
	return lock(path, syscall.LOCK_EX)
}

// ErrLocked is returned by TryLock, TryLockFile and Relock if another process holds the lock.
var ErrLocked = errors.New("file is locked by another process")

// TryLock locks the file at path like Lock, but returns ErrLocked if another process has locked the file.
func TryLock(path string) (unlock func(), err error) {
	f, err := TryLockFile(path)
	if err != nil {
		return nil, err
	}
	return func() { Unlock(f) }, nil
}

// TryLockFile locks the file at path like TryLock, and returns the locked file. The lock is held until Unlock is
// called, or until all processes that have a copy of the descriptor have closed their copies.
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

// Relock locks an open file that TryLockFile has returned in this process or in another one. It returns ErrLocked if
// another process has locked the file in the meantime.
func Relock(f *os.File) error {
	err := flock(f, syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return fmt.Errorf("lock file %s: %w", f.Name(), ErrLocked)
	}
	return err
}

// Unlock releases the lock of a file and closes the file. Closing the file alone would not be enough, because the lock
// exists as long as there are copies of the descriptor: a child process has a copy until it executes its program, and
// other processes may have received one.
func Unlock(f *os.File) {
	flock(f, syscall.LOCK_UN)
	f.Close()
}

// lock opens the file at path, creates it if needed, and locks it. how is the operation for flock(2), for example
// unix.LOCK_EX.
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

// flock calls flock(2), and repeats the call if a signal interrupts it.
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

// Free returns the number of bytes that an unprivileged user can still write to the file system that contains path.
func Free(path string) (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(path, &st); err != nil {
		return 0, fmt.Errorf("read free space of %s: %w", path, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}
