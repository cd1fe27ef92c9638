package agents

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/worktrees"
	"github.com/artifactfs/artifactfs/session/agenthook"
)

// treeError is the error of a working tree that could not be made, or not be removed.
type treeError struct{ error }

// changeTree makes the working tree that the event asks for, and prints its directory on stdout, or removes the tree of
// the event.
func changeTree(ctx context.Context, a *cli.App, e agenthook.Event) error {
	var err error
	if e.Kind == agenthook.RemoveTree {
		err = removeTree(ctx, a, e.Tree.Path)
	} else {
		var dir string
		e.Tree.From = cmp.Or(e.Tree.From, e.Dir)
		if dir, err = worktrees.AddForAgent(ctx, a, e.Tree); err == nil {
			_, err = fmt.Fprintln(a.Stdout, dir)
		}
	}
	if err != nil {
		return treeError{err}
	}
	return nil
}

// removeTree removes the tree at path.
func removeTree(ctx context.Context, a *cli.App, path string) error {
	if !filepath.IsAbs(path) {
		return errors.New("remove worktree: event has no absolute worktree_path")
	}
	// The current directory of a hook may be in the tree, which would be in use.
	if err := os.Chdir("/"); err != nil {
		return err
	}
	return worktrees.RemoveForAgent(ctx, a, path)
}
