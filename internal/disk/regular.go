package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Maximum sizes in bytes that callers pass to ReadRegular.
const (
	SmallFile = 1 << 20   // for a file that has a few lines, such as a ref or a configuration
	LargeFile = 512 << 20 // for a file whose size grows with the repository, such as an index or a list of refs
)

// OpenRegular opens a regular file for reading. It returns an error for a pipe, where open(2) would wait for a writer,
// and for other special files. It is used for files in directories that other users can change. flags are added to the
// flags of open(2).
func OpenRegular(name string, flags int) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|flags, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case info.IsDir():
		err = &fs.PathError{Op: "read", Path: name, Err: unix.EISDIR}
	case !info.Mode().IsRegular():
		err = &fs.PathError{Op: "read", Path: name, Err: unix.EINVAL}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// ReadRegular opens a file with OpenRegular and returns its contents. If the file has more than limit bytes, the error
// wraps EFBIG. The limit protects the memory of the process from large sparse files.
func ReadRegular(name string, limit int64) ([]byte, error) {
	f, err := OpenRegular(name, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadLimited(f, limit)
}

// ReadLimited returns the rest of an open file. If the file has more than limit bytes, the error wraps EFBIG.
func ReadLimited(f *os.File, limit int64) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > limit {
		return nil, &fs.PathError{Op: "read", Path: f.Name(), Err: unix.EFBIG}
	}
	text := make([]byte, info.Size())
	n, err := io.ReadFull(f, text) // bytes that are appended during the call are not read
	if err == io.ErrUnexpectedEOF || err == io.EOF {
		err = nil
	}
	return text[:n], err
}

// MapRegular maps a regular file into memory for reading. The mapping remains valid after the file was removed, but
// becomes invalid if the file is truncated. The caller must release it with munmap(2).
func MapRegular(name string) ([]byte, error) {
	f, err := OpenRegular(name, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return mapping(f, 1<<62, func(n int) ([]byte, error) {
		return unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ, unix.MAP_SHARED)
	})
}

// CopyRegular returns a copy of a regular file with at most limit bytes, in memory that the caller must release with
// munmap(2). Later changes of the file do not affect the copy.
func CopyRegular(name string, limit int64) ([]byte, error) {
	f, err := OpenRegular(name, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return mapping(f, limit, func(n int) ([]byte, error) {
		data, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(f, data); err != nil {
			return nil, errors.Join(err, unix.Munmap(data))
		}
		return data, nil
	})
}

// mapping calls make with the size of f and returns the result. It returns an error if f has more than limit bytes.
func mapping(f *os.File, limit int64, make func(n int) ([]byte, error)) ([]byte, error) {
	info, err := f.Stat()
	if err == nil && info.Size() == 0 {
		return nil, nil // mmap(2) fails for a length of 0
	}
	if err == nil && info.Size() > limit {
		err = unix.EFBIG
	}
	var data []byte
	if err == nil {
		data, err = make(int(info.Size()))
	}
	if err != nil {
		return nil, fmt.Errorf("map file %s: %w", f.Name(), err)
	}
	return data, nil
}
