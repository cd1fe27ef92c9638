package capture

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session"
)

// linked adds the linked worktrees inside the mount to the left-out paths, and removes those that are gone. git keeps their HEAD and index
// in directories of the git directory that no checkpoint contains, and their files are often ignored.
func (e *edit) linked(ctx context.Context) {
	now := linkedTrees(e.c.o.GitDir, e.c.o.Dir)
	// The Tree is asked and not the mount, because the daemon must not wait for a reply of its own.
	now = slices.DeleteFunc(now, func(path string) bool {
		_, err := e.c.o.Tree.Resolve(ctx, path+".git")
		return err != nil // the directory was removed without git
	})
	for path, l := range e.left.all {
		if l.Why == session.Linked && !slices.Contains(now, path) {
			e.left.delete(path)
		}
	}
	for _, path := range now {
		e.left.delete(strings.TrimSuffix(path, "/")) // a worktree in a directory that is not ignored is also a nested repository
		e.left.add(LeftOut{Path: path, Why: session.Linked})
	}
}

// linkedTrees returns the paths of the linked worktrees below dir, relative to dir and with a slash at the end. gitDir is the git
// directory of the main worktree. The directories need not exist.
func linkedTrees(gitDir, dir string) (paths []string) {
	entries, _ := os.ReadDir(filepath.Join(gitDir, "worktrees")) // usually there is no such directory
	if dir == "" || len(entries) == 0 {
		return nil
	}
	// git writes paths without symbolic links. The mountpoint itself is not one.
	above, err := filepath.EvalSymlinks(filepath.Dir(dir))
	if err != nil {
		return nil
	}
	for _, entry := range entries {
		text, err := disk.ReadRegular(filepath.Join(gitDir, "worktrees", entry.Name(), "gitdir"), disk.SmallFile)
		file := strings.TrimSpace(string(text))
		if err != nil || filepath.Base(file) != ".git" {
			continue
		}
		at, err := filepath.Rel(filepath.Join(above, filepath.Base(dir)), filepath.Dir(file))
		if err == nil && at != "." && filepath.IsLocal(at) {
			paths = append(paths, at+"/")
		}
	}
	return paths
}
