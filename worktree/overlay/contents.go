package overlay

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// contents manages the directory of contents files. The name of a file is its number in hexadecimal, and each
// subdirectory holds 1024 files.
type contents struct {
	fs       disk.FS
	dir      string // path of "contents" in the overlay
	lost     string // path of "lost+found" in the overlay
	readOnly bool
	// spare closes files that are not in use, and reports whether it has closed any. It is called when the process has no
	// free descriptor.
	spare func() bool

	mu sync.Mutex
	// mu protects the fields made and doubts. The field made holds the numbers of the subdirectories that this process
	// created and whose entries may not be on disk. The field doubts is true if an earlier process may have left other
	// such subdirectories.
	made   map[uint64]bool
	doubts bool
}

// perDirectory is the number of contents files in one subdirectory.
const perDirectory = 1024

// directory returns the path of the subdirectory that holds a contents file.
func (c *contents) directory(number uint64) string {
	return filepath.Join(c.dir, fmt.Sprintf("%06x", number/perDirectory))
}

// path returns the path of a contents file.
func (c *contents) path(number uint64) string {
	return filepath.Join(c.directory(number), fmt.Sprintf("%06x", number))
}

// openFile opens a contents file. If the process has no free descriptor, it closes files that are not in use and tries
// once more.
func (c *contents) openFile(number uint64, flag int, perm os.FileMode) (disk.File, error) {
	f, err := c.fs.OpenFile(c.path(number), flag, perm)
	if (errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)) && c.spare() {
		f, err = c.fs.OpenFile(c.path(number), flag, perm)
	}
	return f, err
}

// create creates an empty contents file, and its subdirectory if necessary.
func (c *contents) create(number uint64) (disk.File, error) {
	const flag = os.O_RDWR | os.O_CREATE | os.O_EXCL
	f, err := c.openFile(number, flag, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		err = c.fs.Mkdir(c.directory(number), 0o700)
		if err == nil || errors.Is(err, fs.ErrExist) {
			c.mu.Lock()
			c.made[number/perDirectory] = true
			c.mu.Unlock()
			f, err = c.openFile(number, flag, 0o600)
		}
	}
	return f, err
}

// open opens a contents file. The log names only files that exist, so a missing file means damage: open then returns an
// error that wraps ErrDamaged and EIO.
func (c *contents) open(number uint64) (disk.File, error) {
	flag := os.O_RDWR
	if c.readOnly {
		flag = os.O_RDONLY
	}
	f, err := c.openFile(number, flag, 0)
	if errors.Is(err, fs.ErrNotExist) {
		// The error does not wrap ErrNotExist, because the file exists in the mount, and only its bytes are missing.
		return nil, fmt.Errorf("contents file %06x is missing: %w: %w", number, ErrDamaged, syscall.EIO)
	}
	return f, err
}

// stat returns the size and mtime of a contents file. The result ok is false if the file is missing.
func (c *contents) stat(number uint64) (info os.FileInfo, ok bool, err error) {
	info, err = c.fs.Stat(c.path(number))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	return info, err == nil, err
}

// syncEntry syncs the directories that lead to a contents file, so that the file's name survives a power cut.
func (c *contents) syncEntry(number uint64) error {
	if err := c.fs.SyncDir(c.directory(number)); err != nil {
		return err
	}
	c.mu.Lock()
	sure := !c.made[number/perDirectory] && !c.doubts
	c.mu.Unlock()
	if sure {
		return nil
	}
	if err := c.fs.SyncDir(c.dir); err != nil {
		return err
	}
	c.mu.Lock()
	delete(c.made, number/perDirectory)
	c.doubts = false
	c.mu.Unlock()
	return nil
}

// doubt records that a killed process may have created subdirectories whose entries are not on disk, because it did not
// sync them.
func (c *contents) doubt() {
	c.mu.Lock()
	c.doubts = true
	c.mu.Unlock()
}

// remove removes a contents file. It returns nil if the file is missing.
func (c *contents) remove(number uint64) error {
	if err := c.fs.Remove(c.path(number)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// lose moves a contents file to lost+found, which it creates if necessary. It returns nil if the file is missing.
func (c *contents) lose(number uint64) error {
	err := c.fs.Mkdir(c.lost, 0o700)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	err = c.fs.Rename(c.path(number), filepath.Join(c.lost, fmt.Sprintf("content-%06x", number)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// each calls f for the number of every existing contents file, beginning with the subdirectory that contains the number
// in the parameter from. It stops at the first error of f and returns this error.
func (c *contents) each(from uint64, f func(number uint64) error) error {
	dirs, err := c.fs.ReadDir(c.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, d := range dirs {
		i, err := strconv.ParseUint(d.Name(), 16, 54)
		if err != nil || i < from/perDirectory || !d.IsDir() {
			continue
		}
		entries, err := c.fs.ReadDir(filepath.Join(c.dir, d.Name()))
		if err != nil {
			return err
		}
		for _, e := range entries {
			number, err := strconv.ParseUint(e.Name(), 16, 64)
			if err != nil || c.path(number) != filepath.Join(c.dir, d.Name(), e.Name()) {
				continue // skip the file, because the method path never generates this name
			}
			if err := f(number); err != nil {
				return err
			}
		}
	}
	return nil
}

// create creates an empty contents file. If the disk is full, it removes dead contents files and tries once more.
func (l *Layer) create(number uint64) (data disk.File, err error) {
	err = l.withRoom(func() error {
		data, err = l.contents.create(number)
		return err
	})
	return data, err
}

// newNumber returns the number for a new contents file. The log reserves numbers in blocks of perDirectory. Every
// number that was returned is below the counter in the log, so no later process uses it again.
func (l *Layer) newNumber() (number uint64, err error) {
	err = l.withRoom(func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.next >= l.state.Counter(counterContents) {
			err := l.update(func(tx *Tx) error {
				tx.batch.SetCounter(counterContents, l.next+perDirectory)
				return nil
			})
			if err != nil {
				return err
			}
		}
		number = l.next
		l.next++
		return nil
	})
	return number, err
}
