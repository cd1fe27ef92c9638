package gitdir

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// FillIndex adds data to the index that was unknown when the index was written: the sizes of files and the ids of
// ignore files. It changes only entries whose files git considers unchanged. If an entry has no size, git has to
// compare the contents of the file, and commands that do not refresh the index report the file as changed. If the id of
// an ignore file is missing, git searches all directories below the directory of this file once.
//
// The function size returns the size of a file in bytes, or false if the size is not known. Of the fields of o,
// FillIndex uses Ignore, Converts and Bar. If a git command is running or has changed the index, FillIndex leaves the
// index unchanged and returns false. The caller may then try again later.
//
// The new index is prepared before index.lock is created, so that the lock is held only for a rename. Even so, a git
// command that finds the lock would fail, or would not update the index. Therefore FillIndex calls o.Bar, which
// prevents git commands from starting.
func (d *Dir) FillIndex(o IndexOptions, size func(e index.Entry) (int64, bool)) (done bool, err error) {
	done, err = d.fillIndex(o, size)
	if err != nil {
		return false, fmt.Errorf("fill the index of %s: %w", d.path, err)
	}
	return done, nil
}

// fillIndex does the work of FillIndex, which adds the path to the errors.
func (d *Dir) fillIndex(o IndexOptions, size func(e index.Entry) (int64, bool)) (bool, error) {
	path := filepath.Join(d.path, "index")
	before, err := os.Stat(path)
	if err != nil {
		return false, err
	}
	text, err := disk.ReadRegular(path, disk.LargeFile)
	if err != nil {
		return false, err
	}
	x, err := index.Read(d.format, text)
	if err != nil {
		return false, err
	}
	filled := 0
	for i := range x.Entries {
		e := &x.Entries[i]
		if !e.Valid || !e.Mode.IsBlob() || e.Stat.Size != 0 {
			continue
		}
		if n, ok := size(*e); ok && n > 0 {
			e.Stat.Size = uint32(n)
			filled++
		}
	}
	filled += x.FillIgnored(func(e index.Entry) (object.ID, bool) { return o.ignoreID(d.format, e) })
	if filled == 0 {
		return true, nil
	}
	// Keep the time of the old index, because git compares the contents of files that are not older than the index.
	name, err := d.writeBeside(x, before.ModTime())
	if err != nil {
		return false, err
	}
	defer os.Remove(name)
	release, ok := o.Bar()
	if !ok {
		return false, nil
	}
	defer release()
	lock := &LockedIndex{dir: d, path: path}
	if ok, err := lock.take(); !ok {
		return false, err
	}
	defer lock.Release()
	if now, err := os.Stat(path); err != nil || !os.SameFile(before, now) || !now.ModTime().Equal(before.ModTime()) {
		return false, err
	}
	if err := os.Rename(name, path); err != nil {
		return false, err
	}
	return true, nil
}
