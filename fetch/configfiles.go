package fetch

import (
	"context"
	"slices"

	"github.com/artifactfs/artifactfs/object"
)

const (
	// ignoreName is the file with which a repository excludes paths from git status and git add.
	ignoreName = ".gitignore"
	// maxConfigFiles bounds counts.configFiles, in trees.
	maxConfigFiles = 32
)

// configFiles lists the files of a tree that configure git in any directory: .gitignore and .gitattributes.
type configFiles struct {
	ignore, attributes []Blob
	// files counts all files of the tree, symlinks and submodules included.
	files int
}

// GitConfigFiles returns the .gitignore and .gitattributes files of the view's tree, and the number of all files of the tree.
// It waits for trees. Mounts of the same tree share the result.
func (v *View) GitConfigFiles(ctx context.Context) (ignore, attributes []Blob, files int, err error) {
	r, err := v.store.counts.configFilesOf(ctx, v.root)
	if err != nil {
		return nil, nil, 0, err
	}
	return slices.Clone(r.ignore), slices.Clone(r.attributes), r.files, nil
}

// configFilesOf returns the configuration files of a tree. It waits for trees.
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
	// The map is a cache of few trees: clearing it is simpler than recording the order of use, and costs one walk of each
	// tree that is needed again.
	if len(cs.configFiles) >= maxConfigFiles {
		clear(cs.configFiles)
	}
	cs.configFiles[tree] = r
	return r, nil
}

// findConfigFiles adds the configuration files below a tree to the result, to. dir is the path of the tree, "" for the root.
func (cs *counts) findConfigFiles(ctx context.Context, tree object.ID, dir string, to *configFiles) error {
	entries, err := cs.trees.entries(ctx, tree)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Mode != object.ModeDir {
			to.files++
		}
		switch {
		case e.Mode == object.ModeDir:
			if err := cs.findConfigFiles(ctx, e.ID, join(dir, e.Name), to); err != nil {
				return err
			}
		// A symlink or submodule with such a name is not read as configuration.
		case e.Mode != object.ModeFile && e.Mode != object.ModeExec:
		case e.Name == ignoreName:
			to.ignore = append(to.ignore, Blob{ID: e.ID, Path: join(dir, e.Name)})
		case e.Name == attributesName:
			to.attributes = append(to.attributes, Blob{ID: e.ID, Path: join(dir, e.Name)})
		}
	}
	return nil
}
