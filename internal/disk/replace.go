package disk

import (
	"crypto/rand"
	"errors"
	"os"
)

// WriteFile replaces the file at path by a file that contains data. A reader finds either the old file or the complete
// new file, even after a crash or a power cut at any point, because data is synced before the new file is renamed to
// path. A power cut may undo the rename, since the directory is not synced. After an error the old file is unchanged,
// and the temporary file is removed.
func WriteFile(path string, data []byte, perm os.FileMode) error {
	return WriteFileOn(OS, path, data, perm)
}

// WriteFileOn replaces a file like WriteFile, in the file system fs.
func WriteFileOn(fs FS, path string, data []byte, perm os.FileMode) error {
	return Replace(fs, path, perm, func(f File) error {
		_, err := f.WriteAt(data, 0)
		if err == nil {
			err = f.Sync()
		}
		return err
	})
}

// WriteFileUnsynced replaces a file like WriteFile, but does not sync the new file: after a power cut the file may be
// empty or incomplete. It is meant for files that the caller syncs later, or that can be computed again.
func WriteFileUnsynced(path string, data []byte, perm os.FileMode) error {
	return Replace(OS, path, perm, func(f File) error {
		_, err := f.WriteAt(data, 0)
		return err
	})
}

// Replace replaces a file like WriteFile, in the file system fs. The function write writes the new file, and syncs it
// if it must survive a power cut.
func Replace(fs FS, path string, perm os.FileMode, write func(f File) error) error {
	temp := path + "." + rand.Text() + ".tmp" // another process may replace the same file, so the name is random
	f, err := fs.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = f.Own().Chmod(perm) // OpenFile would apply the umask
	if err == nil {
		err = write(f)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = fs.Rename(temp, path)
	}
	if err != nil {
		fs.Remove(temp)
	}
	return err
}
