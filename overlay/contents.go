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

// contents is the directory of contents. A content is named by its number; 1024 lie in one directory.
type contents struct {
	fs       disk.FS
	dir      string // "contents" of the overlay
	lost     string // "lost+found" of the overlay
	readOnly bool

	mu sync.Mutex
	// Guarded by mu: directories whose own entry may not be on disk, and whether that goes for any other too.
	made   map[uint64]bool
	doubts bool
}

const perDirectory = 1024

func (c *contents) directory(number uint64) string {
	return filepath.Join(c.dir, fmt.Sprintf("%06x", number/perDirectory))
}

func (c *contents) path(number uint64) string {
	return filepath.Join(c.directory(number), fmt.Sprintf("%06x", number))
}

// create makes an empty content.
func (c *contents) create(number uint64) (disk.File, error) {
	const flag = os.O_RDWR | os.O_CREATE | os.O_EXCL
	f, err := c.fs.OpenFile(c.path(number), flag, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		err = c.fs.Mkdir(c.directory(number), 0o700)
		if err == nil || errors.Is(err, fs.ErrExist) {
			c.mu.Lock()
			c.made[number/perDirectory] = true
			c.mu.Unlock()
			f, err = c.fs.OpenFile(c.path(number), flag, 0o600)
		}
	}
	return f, err
}

// open opens a content. One that is missing is damage: the log would not name it.
func (c *contents) open(number uint64) (disk.File, error) {
	flag := os.O_RDWR
	if c.readOnly {
		flag = os.O_RDONLY
	}
	f, err := c.fs.OpenFile(c.path(number), flag, 0)
	if errors.Is(err, fs.ErrNotExist) {
		// Not ErrNotExist to the caller: the file is there, its bytes are not.
		return nil, fmt.Errorf("content %06x is missing: %w: %w", number, ErrDamaged, syscall.EIO)
	}
	return f, err
}

// stat returns size and mtime of a content; ok is false if it is missing.
func (c *contents) stat(number uint64) (info os.FileInfo, ok bool, err error) {
	info, err = c.fs.Stat(c.path(number))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	return info, err == nil, err
}

// syncEntry makes sure that a content is found after a power cut.
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

// doubt notes that a process which was killed may have made directories.
func (c *contents) doubt() {
	c.mu.Lock()
	c.doubts = true
	c.mu.Unlock()
}

// remove removes a content; one that is gone is no error.
func (c *contents) remove(number uint64) error {
	if err := c.fs.Remove(c.path(number)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// lose moves a content to lost+found.
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

// each calls f for the number of every content that is there, in directories from that of a number on.
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
				continue // not ours to touch
			}
			if err := f(number); err != nil {
				return err
			}
		}
	}
	return nil
}

// create makes an empty content.
func (l *Layer) create(number uint64) (data disk.File, err error) {
	err = l.withRoom(func() error {
		data, err = l.contents.create(number)
		return err
	})
	return data, err
}

// newNumber returns the number of a content to be made. Numbers are reserved in the log, many at a time: one that was
// handed out is below the counter, so that no later process uses it again.
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
