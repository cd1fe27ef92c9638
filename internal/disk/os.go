package disk

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// osFS implements FS with the system calls of the host.
type osFS struct{}

func (osFS) OpenFile(path string, flag int, perm os.FileMode) (File, error) {
	f, err := os.OpenFile(path, flag, perm)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) Mkdir(path string, perm os.FileMode) error  { return os.Mkdir(path, perm) }
func (osFS) ReadDir(path string) ([]os.DirEntry, error) { return os.ReadDir(path) }
func (osFS) Stat(path string) (os.FileInfo, error)      { return os.Lstat(path) }
func (osFS) Rename(old, new string) error               { return os.Rename(old, new) }
func (osFS) Link(old, new string) error                 { return os.Link(old, new) }
func (osFS) Remove(path string) error                   { return os.Remove(path) }

func (osFS) SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (osFS) BootID() (string, error) { return proc.BootID() }

// osFile implements File with the system calls of the host.
type osFile struct{ *os.File }

var _ File = osFile{}

func (f osFile) Own() *os.File { return f.File }

func (f osFile) Seek(off int64, whence int) (int64, error) {
	at, err := unix.Seek(int(f.Fd()), off, whence)
	return at, f.fail("seek", err)
}

func (f osFile) Allocate(mode uint32, off, n int64) error {
	err := retryInterrupted(func() error { return unix.Fallocate(int(f.Fd()), mode, off, n) })
	// for example on NFS; write zeros behind the end of the file instead
	if mode == 0 && errors.Is(err, unix.EOPNOTSUPP) {
		var st os.FileInfo
		if st, err = f.Stat(); err == nil {
			at := max(off, st.Size())
			_, err = f.WriteAt(make([]byte, max(0, off+n-at)), at)
		}
	}
	return f.fail("allocate", err)
}

func (f osFile) DataSync() error {
	return f.fail("sync", retryInterrupted(func() error { return unix.Fdatasync(int(f.Fd())) }))
}

func (f osFile) Map(off int64, n int, mode MapMode) ([]byte, error) {
	protection := unix.PROT_READ | unix.PROT_WRITE
	if mode&MapReadOnly != 0 {
		protection = unix.PROT_READ
	}
	m, err := unix.Mmap(int(f.Fd()), off, n, protection, unix.MAP_SHARED)
	if err != nil {
		return nil, f.fail("map", err)
	}
	if mode&MapPopulate != 0 {
		// Linux before 5.14 returns an error; the kernel then allocates each page at the first store
		_ = unix.Madvise(m, unix.MADV_POPULATE_WRITE)
	}
	return m, nil
}

func (f osFile) Unmap(m []byte) error { return f.fail("unmap", unix.Munmap(m)) }

// CopyFrom implements File. It first tries to share the blocks of the source, and then to copy in the kernel. If both
// fail, it reads and writes the bytes.
func (f osFile) CopyFrom(off int64, from *os.File, fromOff, n int64) (int64, error) {
	clone := unix.FileCloneRange{Src_fd: int64(from.Fd()), Src_offset: uint64(fromOff), Src_length: uint64(n),
		Dest_offset: uint64(off)}
	if n > 0 && unix.IoctlFileCloneRange(int(f.Fd()), &clone) == nil {
		return n, nil
	}
	done := int64(0)
	for done < n {
		src, dst := fromOff+done, off+done
		k, err := unix.CopyFileRange(int(from.Fd()), &src, int(f.Fd()), &dst, int(min(n-done, 1<<30)), 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP),
			errors.Is(err, unix.ENOSYS):
			k, err := io.Copy(io.NewOffsetWriter(f.File, off+done), io.NewSectionReader(from, fromOff+done, n-done))
			return done + k, err
		case err != nil:
			return done, f.fail("copy to", err)
		case k == 0:
			return done, nil
		}
		done += int64(k)
	}
	return done, nil
}

// fail returns err with the operation and the file's path added. It returns nil if err is nil.
func (f osFile) fail(verb string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", verb, f.Name(), err)
}

// retryInterrupted calls call, and repeats this as long as a signal interrupts the call (EINTR).
func retryInterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
