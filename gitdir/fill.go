package gitdir

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/artifactfs/artifactfs/internal/index"
	"github.com/artifactfs/artifactfs/object"
)

// FillIndex adds to the index data that was not known when the index was written, for files that have not changed
// since. The first is their sizes: without a size git compares contents where it has to look at a file, and commands
// that do not refresh the index report the file as changed. The second is the IDs of ignore files: without them git
// searches everything below such a file once.
//
// size returns the size of a file if it is known. Of o, FillIndex uses Ignore, Converts and Bar. It returns false if
// a git command was running or has changed the index; the index is then unchanged, and the caller may try again
// later.
//
// index.lock is held for a rename only; everything else is done before. A git command that meets the lock would still
// fail, or skip its own update of the index, so FillIndex first keeps new commands from starting by o.Bar.
func (d *Dir) FillIndex(o IndexOptions, size func(e index.Entry) (int64, bool)) (done bool, err error) {
	done, err = d.fillIndex(o, size)
	if err != nil {
		return false, fmt.Errorf("fill the index of %s: %w", d.path, err)
	}
	return done, nil
}

// fillIndex is FillIndex without context in the error.
func (d *Dir) fillIndex(o IndexOptions, size func(e index.Entry) (int64, bool)) (bool, error) {
	path := filepath.Join(d.path, "index")
	before, err := os.Stat(path)
	if err != nil {
		return false, err
	}
	text, err := os.ReadFile(path)
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
	name, err := d.writeBeside(x, before.ModTime()) // git compares files as young as the index by content
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
