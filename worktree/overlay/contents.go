package overlay

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// contents manages the directories of contents files. The name of a file is its number in hexadecimal, and each
// subdirectory holds 1024 files.
type contents struct {
	fs       disk.FS
	overlay  string // directory of the overlay
	shares   string // directory of the shares; "" if there is none
	lost     string // path of "lost+found" in the overlay
	readOnly bool
	// layout states where the contents files are; a Sealing replaces it
	layout  atomic.Pointer[layout]
	sealing sync.Mutex // held by a Sealing; taken before all other locks
	// directories in shares to which files were moved, as is known to be on disk; protected by sealing
	moved map[string]struct{}
	// sealed files in use after the last complete Reclaim; protected by sealing
	reclaimed sealedUse
	// the Sealing whose copy of the state follows the changes; nil if there is none; protected by Layer.mu
	copying *Sealing
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

// directoryIn returns the path of the subdirectory of dir that holds a contents file.
func directoryIn(dir string, number uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%06x", number/perDirectory))
}

// pathIn returns the path of a contents file in dir.
func pathIn(dir string, number uint64) string {
	return filepath.Join(directoryIn(dir, number), fmt.Sprintf("%06x", number))
}

// openFile opens the file at a path. If the process has no free descriptor, it closes files that are not in use and
// tries once more.
func (c *contents) openFile(path string, flag int, perm os.FileMode) (disk.File, error) {
	f, err := c.fs.OpenFile(path, flag, perm)
	if (errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)) && c.spare() {
		f, err = c.fs.OpenFile(path, flag, perm)
	}
	return f, err
}

// create creates an empty contents file, and its subdirectory if necessary. It returns ErrSealed if the number was
// sealed before the file was created.
func (c *contents) create(number uint64) (disk.File, error) {
	const flag = os.O_RDWR | os.O_CREATE | os.O_EXCL
	a := c.layout.Load()
	if a.isSealed(number) {
		return nil, ErrSealed
	}
	f, err := c.openFile(pathIn(a.own, number), flag, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		err = c.fs.Mkdir(directoryIn(a.own, number), 0o700)
		if err == nil || errors.Is(err, fs.ErrExist) {
			c.mu.Lock()
			c.made[number/perDirectory] = true
			c.mu.Unlock()
			f, err = c.openFile(pathIn(a.own, number), flag, 0o600)
		}
	}
	if errors.Is(err, fs.ErrNotExist) && c.isSealed(number) { // a Sealing has moved the directory
		err = ErrSealed
	}
	return f, err
}

// open opens a contents file. The log names only files that exist, so a missing file means damage: open then returns an
// error that wraps ErrDamaged and EIO.
func (c *contents) open(number uint64) (f disk.File, err error) {
	err = c.find(number, func(dir string) error {
		flag := os.O_RDWR
		if c.readOnly || c.isSealed(number) {
			flag = os.O_RDONLY
		}
		f, err = c.openFile(pathIn(dir, number), flag, 0)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		// The error does not wrap ErrNotExist, because the file exists in the mount, and only its bytes are missing.
		return nil, fmt.Errorf("contents file %06x is missing: %w: %w", number, ErrDamaged, syscall.EIO)
	}
	return f, err
}

// stat returns the size and mtime of a contents file. The result ok is false if the file is missing.
func (c *contents) stat(number uint64) (info os.FileInfo, ok bool, err error) {
	err = c.find(number, func(dir string) error {
		info, err = c.fs.Stat(pathIn(dir, number))
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	return info, err == nil, err
}

// syncEntry syncs the directories that lead to a contents file, so that the file's name survives a power cut. If a
// Sealing moves the directories in between, syncEntry syncs them at their new place.
func (c *contents) syncEntry(number uint64) error {
	return c.find(number, func(dir string) error {
		if err := c.fs.SyncDir(directoryIn(dir, number)); err != nil {
			return err
		}
		if c.isSealed(number) {
			return c.fs.SyncDir(dir)
		}
		c.mu.Lock()
		sure := !c.made[number/perDirectory] && !c.doubts
		c.mu.Unlock()
		if sure {
			return nil
		}
		if err := c.fs.SyncDir(dir); err != nil {
			return err
		}
		c.mu.Lock()
		delete(c.made, number/perDirectory)
		c.doubts = false
		c.mu.Unlock()
		return nil
	})
}

// doubt records that a killed process may have created subdirectories whose entries are not on disk, because it did not
// sync them.
func (c *contents) doubt() {
	c.mu.Lock()
	c.doubts = true
	c.mu.Unlock()
}

// remove removes a contents file. It returns nil if the file is missing, or sealed: others may use a sealed file.
func (c *contents) remove(number uint64) error {
	a := c.layout.Load()
	if a.isSealed(number) {
		return nil
	}
	if err := c.fs.Remove(pathIn(a.own, number)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// lose moves a contents file to lost+found, which it creates if necessary. It returns nil if the file is missing or
// sealed.
func (c *contents) lose(number uint64) error {
	a := c.layout.Load()
	if a.isSealed(number) {
		return nil
	}
	err := c.fs.Mkdir(c.lost, 0o700)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	err = c.fs.Rename(pathIn(a.own, number), filepath.Join(c.lost, fmt.Sprintf("content-%06x", number)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// each calls f for the number of every existing contents file that is not sealed, beginning with the subdirectory that
// contains the number in the parameter from. It stops at the first error of f and returns this error.
func (c *contents) each(from uint64, f func(number uint64) error) error {
	own := c.layout.Load().own
	dirs, err := c.fs.ReadDir(own)
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
		entries, err := c.fs.ReadDir(filepath.Join(own, d.Name()))
		if errors.Is(err, fs.ErrNotExist) && c.layout.Load().own != own { // a Sealing has moved the directory
			return nil
		}
		if err != nil {
			return err
		}
		for _, e := range entries {
			number, err := strconv.ParseUint(e.Name(), 16, 64)
			if err != nil || pathIn(own, number) != filepath.Join(own, d.Name(), e.Name()) {
				continue // skip the file, because the method path never generates this name
			}
			if err := f(number); err != nil {
				return err
			}
		}
	}
	return nil
}

// create creates an empty contents file with a new number. If the disk is full and room is true, it removes dead
// contents files, also pinned ones, and tries once more.
func (l *Layer) create(room bool) (number uint64, data disk.File, err error) {
	try := func() error {
		data, err = l.contents.create(number)
		return err
	}
	for err = ErrSealed; errors.Is(err, ErrSealed); { // the number may have been sealed before the file was created
		if number, err = l.newNumber(); err != nil {
			return 0, nil, err
		}
		if room {
			err = l.withRoom(try)
		} else {
			err = try()
		}
	}
	return number, data, err
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
