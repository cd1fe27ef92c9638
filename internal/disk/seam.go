package disk

import (
	"io"
	"os"
)

// FS has the file operations for packages that depend on the order in which data reaches the disk. In package disktest
// there are implementations in which single operations fail, and implementations that simulate a power cut. All methods
// may be called concurrently. Errors wrap the errno of the system call.
type FS interface {
	// OpenFile opens or creates a file like os.OpenFile.
	OpenFile(path string, flag int, perm os.FileMode) (File, error)
	// Mkdir creates a directory like os.Mkdir. The new name survives a power cut only after SyncDir of the directory
	// that contains it.
	Mkdir(path string, perm os.FileMode) error
	// ReadDir returns the entries of a directory, sorted by name, like os.ReadDir.
	ReadDir(path string) ([]os.DirEntry, error)
	// Stat returns the attributes of a file like os.Lstat: it does not follow a symbolic link.
	Stat(path string) (os.FileInfo, error)
	// Rename renames a file like os.Rename. The rename survives a power cut only after SyncDir of both directories; before
	// that, a power cut may leave either name.
	Rename(old, new string) error
	// Link gives a file a further name like os.Link. The name survives a power cut only after SyncDir of its directory,
	// and the contents of the file survive only after Sync.
	Link(old, new string) error
	// Remove removes a file or an empty directory like os.Remove.
	Remove(path string) error
	// SyncDir makes the entries of a directory survive a power cut. It does not sync the files themselves.
	SyncDir(path string) error
	// BootID returns the UUID, as text, of the current boot of the host. It changes when the kernel is started again.
	// Pages that were written before the restart and not synced may be lost.
	BootID() (string, error)
}

// MapMode is a set of options for File.Map.
type MapMode uint8

const (
	// MapPopulate allocates all pages immediately and makes them writable, so that the first store to a page does not wait
	// for the file system. All pages are dirty afterwards.
	MapPopulate MapMode = 1 << iota
	// MapReadOnly maps the range for reading. A store into the mapping raises SIGSEGV.
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
	// Allocate reserves or releases disk space like fallocate(2); mode 0 grows the file and reserves the disk space.
	Allocate(mode uint32, off, n int64) error
	// Seek returns the offset of the next data or of the next hole (unix.SEEK_DATA, unix.SEEK_HOLE). As with lseek(2), the
	// error is ENXIO if there is no data or hole after off. A File has no position, so Seek does not change one.
	Seek(off int64, whence int) (int64, error)
	// CopyFrom copies up to n bytes of another open file. Where the file system can, both files share the copied blocks.
	// CopyFrom returns the number of bytes that were copied, which is less than n only at the end of the source or with an
	// error.
	CopyFrom(off int64, from *os.File, fromOff, n int64) (int64, error)
	// Own returns the underlying os.File, which can be passed to CopyFrom of another File.
	Own() *os.File
	// Map maps a range of the file, shared with other mappings of the file; off and n are multiples of the page size. A
	// store into the mapping changes the file at once, and the change survives the end of the process; DataSync makes the
	// change survive a power cut. Memory behind the end of the file must not be touched. On a full disk, a store into a
	// page without disk space (see Allocate) raises SIGBUS.
	Map(off int64, n int, mode MapMode) ([]byte, error)
	// Unmap ends a mapping that Map returned.
	Unmap(mapping []byte) error
	// Sync writes the contents and attributes of the file to disk like fsync(2).
	Sync() error
	// DataSync writes contents and size of the file to disk like fdatasync(2), including stores into mappings. After an
	// error the kernel may drop the pages that it could not write, so a later DataSync can succeed although the data in
	// these pages are lost.
	DataSync() error
}

// OS is the file system of the host.
var OS FS = osFS{}
