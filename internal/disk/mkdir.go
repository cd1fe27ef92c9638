package disk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// MkdirAll creates a directory and its missing parents, and syncs the parent of each directory that it creates, so that
// the new directories survive a power cut. It returns nil if the path already exists.
func MkdirAll(on FS, path string, perm os.FileMode) error {
	if _, err := on.Stat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(path)
	if err := MkdirAll(on, parent, perm); err != nil {
		return err
	}
	if err := on.Mkdir(path, perm); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return on.SyncDir(parent)
}
