package disk

import (
	"io"
	"os"
)

// FS is the file system as those see it whose promises depend on the order of its operations. Tests replace it: see
// package disktest.
type FS interface {
	OpenFile(path string, flag int, perm os.FileMode) (File, error)
	Mkdir(path string, perm os.FileMode) error
	ReadDir(path string) ([]os.DirEntry, error)
	Stat(path string) (os.FileInfo, error) // of the thing itself: a symbolic link is not followed
	Rename(old, new string) error
	Remove(path string) error
	// SyncDir makes the entries of a directory survive a power cut.
	SyncDir(path string) error
}

// File is an open file. All its methods may be called concurrently but Close.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Name() string
	Stat() (os.FileInfo, error)
	Truncate(size int64) error
	// Allocate is fallocate(2); mode 0 grows the file and takes the space.
	Allocate(mode uint32, off, n int64) error
	// Seek finds data or a hole (unix.SEEK_DATA, unix.SEEK_HOLE); ENXIO as in lseek(2). There is no position.
	Seek(off int64, whence int) (int64, error)
	// CopyFrom copies up to n bytes of another open file, sharing the blocks where the file system can. It returns
	// how many came: fewer only at the end of the source or with an error.
	CopyFrom(off int64, from *os.File, fromOff, n int64) (int64, error)
	// Own gives what CopyFrom of another File takes.
	Own() *os.File
	// Map maps allocated bytes for reading and writing, shared with the file; off and n are multiples of the page
	// size. The pages are brought in, so that the first touch does not wait for the file system.
	Map(off int64, n int) ([]byte, error)
	Unmap(mapping []byte) error
	Sync() error     // fsync(2)
	DataSync() error // fdatasync(2): contents and size, mappings included
}

// OS is the file system of the host.
var OS FS = osFS{}
