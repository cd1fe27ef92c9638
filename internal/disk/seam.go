package disk

import (
	"io"
	"os"
)

// FS is the host as a package sees it whose promises depend on the order of operations on disk. Package disktest has
// implementations that fail single operations and that cut the power. All methods may be called concurrently. Errors
// wrap the errno of the system call.
type FS interface {
	// OpenFile is os.OpenFile.
	OpenFile(path string, flag int, perm os.FileMode) (File, error)
	// Mkdir is os.Mkdir. The new name survives a power cut only after SyncDir of the directory that contains it.
	Mkdir(path string, perm os.FileMode) error
	// ReadDir is os.ReadDir: the entries sorted by name.
	ReadDir(path string) ([]os.DirEntry, error)
	// Stat is os.Lstat: it does not follow a symbolic link.
	Stat(path string) (os.FileInfo, error)
	// Rename is os.Rename. It survives a power cut only after SyncDir of both directories; until then either name may be found.
	Rename(old, new string) error
	// Remove is os.Remove.
	Remove(path string) error
	// SyncDir makes the entries of a directory survive a power cut. It does not sync the files themselves.
	SyncDir(path string) error
	// BootID returns the UUID of this run of the host's kernel, in text. Pages that an earlier run did not sync may be lost.
	BootID() (string, error)
}

// MapMode says how File.Map maps a file.
type MapMode uint8

const (
	// MapPopulate brings the pages in for writing, so that the first store does not wait for the file system. It makes
	// all of them dirty.
	MapPopulate MapMode = 1 << iota
	// MapReadOnly maps for reading. A store is a fault.
	MapReadOnly
)

// File is an open file. All methods may be called concurrently, except Close. Offsets and lengths are in bytes.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Name returns the path that the file was opened with.
	Name() string
	Stat() (os.FileInfo, error)
	Truncate(size int64) error
	// Allocate is fallocate(2); mode 0 grows the file and reserves the disk space.
	Allocate(mode uint32, off, n int64) error
	// Seek finds data or a hole (unix.SEEK_DATA, unix.SEEK_HOLE); ENXIO as in lseek(2). A File has no position.
	Seek(off int64, whence int) (int64, error)
	// CopyFrom copies up to n bytes of another open file, sharing the blocks where the file system can. It returns
	// how many were copied: fewer than n only at the end of the source or with an error.
	CopyFrom(off int64, from *os.File, fromOff, n int64) (int64, error)
	// Own returns the file of the host, for CopyFrom of another File.
	Own() *os.File
	// Map maps a range, shared with the file; off and n are multiples of the page size. Stores belong to the file at
	// once and survive the process; DataSync makes them survive a power cut. Memory behind the end of the file must not
	// be touched, and a store into a page without disk space (Allocate) is SIGBUS on a full disk.
	Map(off int64, n int, mode MapMode) ([]byte, error)
	// Unmap ends a mapping that Map returned.
	Unmap(mapping []byte) error
	// Sync is fsync(2).
	Sync() error
	// DataSync is fdatasync(2): contents and size, including what was stored in mappings. After an error the kernel may
	// have given up pages that it could not write: the next DataSync can succeed without them.
	DataSync() error
}

// OS is the file system of the host.
var OS FS = osFS{}
