package disk

import (
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Maximum sizes in bytes for ReadRegular.
const (
	SmallFile = 1 << 20   // of a file that has a few lines, such as a ref or a configuration
	LargeFile = 512 << 20 // of a file whose size grows with the repository, such as an index or a list of refs
)

// OpenRegular opens a regular file for reading. It returns an error for a pipe, whose open(2) would wait for a writer, and for other special
// files. Other users can change the directories of files that are opened in this way. The flags are added to those of open(2).
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

// ReadRegular reads a file that OpenRegular opens. If the file has more than limit bytes, the error wraps EFBIG: a sparse file can have a
// size for which the process has not enough memory.
func ReadRegular(name string, limit int64) ([]byte, error) {
	f, err := OpenRegular(name, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadLimited(f, limit)
}

// ReadLimited reads the rest of a file, as ReadRegular does.
func ReadLimited(f *os.File, limit int64) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > limit {
		return nil, &fs.PathError{Op: "read", Path: f.Name(), Err: unix.EFBIG}
	}
	text := make([]byte, info.Size())
	n, err := io.ReadFull(f, text) // bytes that are appended meanwhile are not read
	if err == io.ErrUnexpectedEOF || err == io.EOF {
		err = nil
	}
	return text[:n], err
}
