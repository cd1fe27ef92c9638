package gitdir

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/refname"
)

// AddNew adds settings to the configuration of the git directory at path, and fetches refs from its mounted remote. It
// must only be called while no other git command can use the directory, because it first removes the lock files that a
// killed process may have left. workTree is the root of the mount.
func AddNew(ctx context.Context, path, workTree string, settings []Setting, refspecs []string) error {
	err := filepath.WalkDir(filepath.Join(path, "refs", "remotes"), func(name string, e fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(name, ".lock") && !e.IsDir() {
			err = os.Remove(name)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Remove(filepath.Join(path, "config.lock")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := AddSettings(path, settings); err != nil || len(refspecs) == 0 {
		return err
	}
	c := commands{path: path, workTree: workTree}
	return c.update(ctx, []string{"packed-refs", "shallow"}, slices.Concat([]string{"fetch", "-q", "--no-tags",
		"--no-prune", "--no-recurse-submodules", "--no-write-fetch-head", refname.Remote(path)}, refspecs)...)
}
