package fetch

import (
	"context"
	"slices"

	"github.com/artifactfs/artifactfs/fetch/treewalk"
	"github.com/artifactfs/artifactfs/git/object"
)

const (
	// ignoreName is the name of the file with which a repository excludes paths from `git status` and `git add`.
	ignoreName = ".gitignore"
	// maxConfigFiles is the maximum number of trees in the map counts.configFiles.
	maxConfigFiles = 32
)

// configFiles lists the .gitignore and .gitattributes files in all directories of one tree.
type configFiles struct {
	ignore, attributes []Blob
	// files is the number of files of the tree, including symlinks and submodules.
	files int
}

// GitConfigFiles returns the .gitignore and .gitattributes files of the view's tree, and the number of files of the
// tree. It waits for missing trees. Mounts of the same tree share the result.
func (v *View) GitConfigFiles(ctx context.Context) (ignore, attributes []Blob, files int, err error) {
	r, err := v.store.counts.configFilesOf(ctx, v.root)
	if err != nil {
		return nil, nil, 0, err
	}
	return slices.Clone(r.ignore), slices.Clone(r.attributes), r.files, nil
}

// configFilesOf returns the .gitignore and .gitattributes files of a tree. It waits for missing trees.
func (cs *counts) configFilesOf(ctx context.Context, tree object.ID) (r configFiles, err error) {
	cs.mu.Lock()
	r, ok := cs.configFiles[tree]
	cs.mu.Unlock()
	if ok {
		return r, nil
	}
	if err := cs.findConfigFiles(ctx, tree, "", &r); err != nil {
		return configFiles{}, err
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	// The map is a cache with few entries. Clearing the map is simpler than recording the order of use, and costs one walk
	// through each tree that is used again.
	if len(cs.configFiles) >= maxConfigFiles {
		clear(cs.configFiles)
	}
	cs.configFiles[tree] = r
	return r, nil
}

// findConfigFiles appends the .gitignore and .gitattributes files below a tree to the lists in the parameter to, and
// adds the number of files below the tree to to.files. dir is the path of the tree; "" is the root.
func (cs *counts) findConfigFiles(ctx context.Context, tree object.ID, dir string, to *configFiles) error {
	entries, err := cs.trees.Entries(ctx, tree)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Mode != object.ModeDir {
			to.files++
		}
		switch {
		case e.Mode == object.ModeDir:
			if err := cs.findConfigFiles(ctx, e.ID, treewalk.Join(dir, e.Name), to); err != nil {
				return err
			}
		// A symlink or submodule named .gitignore or .gitattributes is counted, but not listed.
		case e.Mode != object.ModeFile && e.Mode != object.ModeExec:
		case e.Name == ignoreName:
			to.ignore = append(to.ignore, Blob{ID: e.ID, Path: treewalk.Join(dir, e.Name)})
		case e.Name == attributesName:
			to.attributes = append(to.attributes, Blob{ID: e.ID, Path: treewalk.Join(dir, e.Name)})
		}
	}
	return nil
}
