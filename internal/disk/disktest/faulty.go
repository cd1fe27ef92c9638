// Package disktest has implementations of disk.FS for tests of failures: Faulty returns errors from chosen operations,
// CrashFS simulates power cuts, Booted simulates the restart of the host after a power cut, and Unsynced skips syncs.
package disktest

import (
	"errors"
	"os"
	"sync/atomic"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// Op describes one operation on a file system that Faulty returns.
type Op struct {
	N    int    // number of the operation, counted from 1
	Name string // name of the method of disk.FS or disk.File
	Path string // path of the file or directory
}

// Faulty returns a file system that calls fail before each operation on fs. If fail returns an error, the operation
// returns that error. A failing write has written half of its bytes. A failing sync has given up its pages (see
// CrashFS). Close and Unmap are always carried out, even if they return an error. fail may be called concurrently.
func Faulty(fs disk.FS, fail func(Op) error) disk.FS { return &faulty{fs: fs, fail: fail} }

// Nth returns a function for Faulty that fails the n-th operation with err.
func Nth(n int, err error) func(Op) error {
	return func(op Op) error {
		if op.N == n {
			return err
		}
		return nil
	}
}

// faulty is the FS that Faulty returns.
type faulty struct {
	fs   disk.FS
	fail func(Op) error
	n    atomic.Int64 // number of operations so far
}

// op counts an operation. It returns an error if the operation must fail.
func (f *faulty) op(name, path string) error {
	if err := f.fail(Op{int(f.n.Add(1)), name, path}); err != nil {
		return &os.PathError{Op: name, Path: path, Err: err}
	}
	return nil
}

func (f *faulty) OpenFile(path string, flag int, perm os.FileMode) (disk.File, error) {
	if err := f.op("OpenFile", path); err != nil {
		return nil, err
	}
	file, err := f.fs.OpenFile(path, flag, perm)
	if err != nil {
		return nil, err
	}
	return faultyFile{file, f}, nil
}

func (f *faulty) Mkdir(path string, perm os.FileMode) error {
	if err := f.op("Mkdir", path); err != nil {
		return err
	}
	return f.fs.Mkdir(path, perm)
}

func (f *faulty) ReadDir(path string) ([]os.DirEntry, error) {
	if err := f.op("ReadDir", path); err != nil {
		return nil, err
	}
	return f.fs.ReadDir(path)
}

func (f *faulty) Stat(path string) (os.FileInfo, error) {
	if err := f.op("Stat", path); err != nil {
		return nil, err
	}
	return f.fs.Stat(path)
}

func (f *faulty) Rename(old, new string) error {
	if err := f.op("Rename", old); err != nil {
		return err
	}
	return f.fs.Rename(old, new)
}

func (f *faulty) Link(old, new string) error {
	if err := f.op("Link", old); err != nil {
		return err
	}
	return f.fs.Link(old, new)
}

func (f *faulty) Remove(path string) error {
	if err := f.op("Remove", path); err != nil {
		return err
	}
	return f.fs.Remove(path)
}

func (f *faulty) SyncDir(path string) error {
	if err := f.op("SyncDir", path); err != nil {
		return err
	}
	return f.fs.SyncDir(path)
}

func (f *faulty) BootID() (string, error) { return f.fs.BootID() }

// faultyFile is an open file of a faulty.
type faultyFile struct {
	disk.File
	fs *faulty
}

// op counts an operation on the file, and returns an error if the operation must fail.
func (f faultyFile) op(name string) error { return f.fs.op(name, f.Name()) }

func (f faultyFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.op("ReadAt"); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

func (f faultyFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.op("WriteAt"); err != nil {
		n, _ := f.File.WriteAt(p[:len(p)/2], off)
		return n, err
	}
	return f.File.WriteAt(p, off)
}

func (f faultyFile) Close() error {
	err := f.op("Close")
	if real := f.File.Close(); err == nil {
		err = real
	}
	return err
}

func (f faultyFile) Stat() (os.FileInfo, error) {
	if err := f.op("Stat"); err != nil {
		return nil, err
	}
	return f.File.Stat()
}

func (f faultyFile) Truncate(size int64) error {
	if err := f.op("Truncate"); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

func (f faultyFile) Allocate(mode uint32, off, n int64) error {
	if err := f.op("Allocate"); err != nil {
		return err
	}
	return f.File.Allocate(mode, off, n)
}

func (f faultyFile) Seek(off int64, whence int) (int64, error) {
	if err := f.op("Seek"); err != nil {
		return 0, err
	}
	return f.File.Seek(off, whence)
}

func (f faultyFile) CopyFrom(off int64, from *os.File, fromOff, n int64) (int64, error) {
	if err := f.op("CopyFrom"); err != nil {
		half, _ := f.File.CopyFrom(off, from, fromOff, n/2)
		return half, err
	}
	return f.File.CopyFrom(off, from, fromOff, n)
}

func (f faultyFile) Map(off int64, n int, mode disk.MapMode) ([]byte, error) {
	if err := f.op("Map"); err != nil {
		return nil, err
	}
	return f.File.Map(off, n, mode)
}

func (f faultyFile) Sync() error {
	if err := f.op("Sync"); err != nil {
		return errors.Join(err, f.giveUp())
	}
	return f.File.Sync()
}

// giveUp makes an underlying CrashFS give up the pages that a failed sync should have written.
func (f faultyFile) giveUp() error {
	if d, ok := f.File.(interface{ giveUp() error }); ok {
		return d.giveUp()
	}
	return nil
}

func (f faultyFile) DataSync() error {
	if err := f.op("DataSync"); err != nil {
		return errors.Join(err, f.giveUp())
	}
	return f.File.DataSync()
}
