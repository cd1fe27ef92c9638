package gitdir

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/artifactfs/artifactfs/internal/index"
	"github.com/artifactfs/artifactfs/object"
)

// FillIndex puts into the index what was not known when it was written, of files that are still as it has them: sizes, since
// git compares contents where it has to look at a file and has no size, and commands that do not refresh the index take the
// file for changed; and the ids of ignore files, without which git looks at all below them once. size gives what stat says
// of a file, if that is known; of o, Ignore, Converts and Bar count. done is false if git was at work; then the index is as git
// left it, and the next try may do better.
//
// The index is locked only for the moment of a rename, all else is done before; but a command of git's that comes upon the
// lock ends with an error, or without what it wanted to write, so Bar is asked first.
func (d *Dir) FillIndex(o IndexOptions, size func(e index.Entry) (int64, bool)) (done bool, err error) {
	done, err = d.fillIndex(o, size)
	if err != nil {
		return false, fmt.Errorf("fill the index of %s: %w", d.path, err)
	}
	return done, nil
}

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
	name, err := d.writeBeside(x, before.ModTime()) // files as young as the index are compared by content, and have to stay so
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
