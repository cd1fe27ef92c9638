package capture

import (
	"context"
	"errors"

	"github.com/artifactfs/artifactfs/git/object"
)

// plainDir is the permissions that git gives to the directories that it creates. Checkpoints record only other
// permissions.
const plainDir = 0o755

// mode records that the directory dir has the permissions perm. It ignores the root directory.
func (e *edit) mode(dir string, perm uint32) {
	if dir == "" {
		return
	}
	if perm == plainDir {
		delete(e.dirs, dir)
	} else {
		e.dirs[dir] = perm
	}
}

// rememberDirs copies the recorded permissions of directories from the previous checkpoint, except those of directories
// for which the view has entries.
func (e *edit) rememberDirs() {
	before := e.c.mem.Dirs
	if e.v.whole {
		before = e.c.baseDirs
	}
	for dir, perm := range before {
		covered := false
		for at := dir; at != "" && !covered; at = parent(at) {
			_, covered = e.v.entries[at]
		}
		if !covered {
			e.dirs[dir] = perm
		}
	}
}

// emptyDirs removes the recorded permissions of directories that contain a file in the checkpoint's tree. Git creates
// such directories itself, with plainDir.
func (e *edit) emptyDirs(ctx context.Context) error {
	for dir := range e.dirs {
		empty, err := e.trees.isEmpty(ctx, dir)
		if err != nil {
			return err
		}
		if !empty {
			delete(e.dirs, dir)
		}
	}
	return nil
}

// isEmpty reports whether the tree has a directory at path and no file anywhere below it.
func (t *trees) isEmpty(ctx context.Context, path string) (bool, error) {
	d, err := t.within(ctx, path, false)
	if err != nil || d == nil {
		return false, err
	}
	err = t.anyFile(ctx, d)
	if errors.Is(err, errFile) {
		return false, nil
	}
	return err == nil, err
}

// errFile is the result of anyFile if it has found a file.
var errFile = errors.New("directory contains a file")

// anyFile returns errFile if there is a file in d or in a directory below d.
func (t *trees) anyFile(ctx context.Context, d *directory) error {
	below := func(c child) error {
		if c.mode == 0 {
			return nil
		}
		if c.mode != object.ModeDir {
			return errFile
		}
		next, err := t.open(ctx, &c)
		if err != nil {
			return err
		}
		return t.anyFile(ctx, next)
	}
	for _, e := range d.was {
		// An entry in d.now replaces the entry of the same name in d.was.
		if _, ok := d.now[e.Name]; ok {
			continue
		}
		if err := below(child{mode: e.Mode, id: e.ID}); err != nil {
			return err
		}
	}
	for _, c := range d.now {
		if err := below(c); err != nil {
			return err
		}
	}
	return nil
}
