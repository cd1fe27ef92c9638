package objects

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// Dir is a Store in a directory. Files are hard links where possible, so that the argument of Put, the stored file and
// the results of Get share their disk space.
type Dir struct {
	fs   disk.FS
	root string

	mu      sync.Mutex
	durable map[string]bool // directories whose names are known to survive a power cut
}

var _ Store = (*Dir)(nil)

// OpenDir returns the store in the directory dir, which it creates if needed.
func OpenDir(dir string) (*Dir, error) { return openDir(disk.OS, dir) }

func openDir(on disk.FS, dir string) (*Dir, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open object store: %w", err)
	}
	dir = resolve(dir)
	d := &Dir{fs: on, root: dir, durable: map[string]bool{}}
	if err := d.makeDir(dir); err != nil {
		return nil, fmt.Errorf("open object store: %w", Classify(err))
	}
	return d, nil
}

// resolve follows the symbolic links in a path, whose last directories need not exist. The store, or a directory above
// it, can be a link: to another disk, or because systemd makes one for a service with DynamicUser.
func resolve(dir string) string {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		return real
	}
	parent := filepath.Dir(dir)
	if parent == dir {
		return dir
	}
	return filepath.Join(resolve(parent), filepath.Base(dir))
}

// makeDir creates a directory and its missing parents. It syncs the names of the directories that it creates, and of
// all within the store, to disk. Directories above the store that exist already are not synced.
func (d *Dir) makeDir(dir string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.makeDirLocked(dir)
}

func (d *Dir) makeDirLocked(dir string) error {
	if d.durable[dir] {
		return nil
	}
	inside := len(dir) > len(d.root)
	info, err := d.fs.Stat(dir)
	switch {
	case err == nil && !info.IsDir():
		return &fs.PathError{Op: "mkdir", Path: dir, Err: syscall.ENOTDIR}
	case err == nil && !inside:
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := d.makeDirLocked(filepath.Dir(dir)); err != nil {
		return err
	}
	if err := d.fs.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := d.fs.SyncDir(filepath.Dir(dir)); err != nil {
		return err
	}
	d.durable[dir] = true
	return nil
}

// Put implements Store. The order is: contents to disk, then the name, then the directory. So a name never leads to
// contents that a power cut has lost.
func (d *Dir) Put(ctx context.Context, key, path string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	to := filepath.Join(d.root, key)
	err := d.makeDir(filepath.Dir(to))
	if err == nil {
		err = d.syncFile(path)
	}
	if err == nil {
		err = d.linkOrCopy(path, to, disk.File.Sync)
	}
	if err == nil {
		err = d.fs.SyncDir(filepath.Dir(to))
	}
	if err != nil {
		return fmt.Errorf("store object %s: %w", key, Classify(err))
	}
	return nil
}

// syncFile writes the contents of the file at path to disk.
func (d *Dir) syncFile(path string) error {
	f, err := d.fs.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Get implements Store. It does not sync the new file, because it can be created again.
func (d *Dir) Get(ctx context.Context, key, path string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	err := d.linkOrCopy(filepath.Join(d.root, key), path, func(disk.File) error { return nil })
	if errors.Is(err, fs.ErrNotExist) {
		// The directory of path may be missing instead of the object.
		if _, dirErr := d.fs.Stat(filepath.Dir(path)); dirErr == nil {
			err = ErrNotFound
		}
	}
	if err != nil {
		return fmt.Errorf("read object %s: %w", key, Classify(err))
	}
	return nil
}

// linkOrCopy creates the file to as a hard link or a copy of from. A file that exists already is complete, and a copy
// of the same file, because a key is never used again.
func (d *Dir) linkOrCopy(from, to string, sync func(disk.File) error) error {
	err := d.fs.Link(from, to)
	switch {
	case errors.Is(err, fs.ErrExist):
		return d.compareSizes(from, to)
	case errors.Is(err, syscall.EXDEV), errors.Is(err, syscall.EMLINK), errors.Is(err, syscall.EPERM),
		errors.Is(err, syscall.EOPNOTSUPP):
		return d.copyFile(from, to, sync)
	}
	return err
}

func (d *Dir) compareSizes(from, to string) error {
	a, err := d.fs.Stat(from)
	if err != nil {
		return err
	}
	b, err := d.fs.Stat(to)
	if err != nil {
		return err
	}
	if a.Size() != b.Size() {
		return &fs.PathError{Op: "link", Path: to, Err: fs.ErrExist}
	}
	return nil
}

// copyFile replaces the file to by a copy of from.
func (d *Dir) copyFile(from, to string, sync func(disk.File) error) error {
	src, err := d.fs.OpenFile(from, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer src.Close()
	return disk.Replace(d.fs, to, 0o444, func(dst disk.File) error {
		_, err := dst.CopyFrom(0, src.Own(), 0, math.MaxInt64)
		if err == nil {
			err = sync(dst)
		}
		return err
	})
}

// Delete implements Store.
func (d *Dir) Delete(ctx context.Context, key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	path := filepath.Join(d.root, key)
	err := d.fs.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		// The caller forgets the key, so a file that a power cut brought back would stay for ever.
		err = d.fs.SyncDir(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("delete object %s: %w", key, Classify(err))
	}
	return nil
}

// Ready implements Store.
func (d *Dir) Ready(ctx context.Context) error {
	if info, err := d.fs.Stat(d.root); err != nil || !info.IsDir() {
		return fmt.Errorf("%w: directory %s: %v", ErrUnavailable, d.root, err)
	}
	return nil
}

// Shared implements Store.
func (d *Dir) Shared() bool { return false }

// Classify wraps the errors of a file system in the sentinels of this package.
func Classify(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: %w", ErrFull, err)
	case errors.Is(err, syscall.EIO), errors.Is(err, syscall.ESTALE), errors.Is(err, syscall.ETIMEDOUT),
		errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}
