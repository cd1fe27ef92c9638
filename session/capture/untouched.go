package capture

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session"
)

// InitialState is the state of git in a new mount of a commit, before the user changes anything.
type InitialState struct {
	// Branch is the full name of the ref that HEAD pointed to; "" if HEAD was detached.
	Branch string
	// Mounted is the full name of the mounted branch, if HEAD pointed elsewhere; otherwise "".
	Mounted string
	// Commit is the mounted commit.
	Commit object.ID
	// Tree is the tree of Commit; both are zero for an unborn branch.
	Tree object.ID
	// Refs returns the refs of the mounted remote. The tags among these refs also exist in the git directory. Refs is nil
	// if the remote has no refs.
	Refs func() []packedrefs.Ref
}

// Untouched reports whether git is still in its initial state. It makes only cheap checks: false means that a
// checkpoint should be made, although possibly nothing has changed.
func (b InitialState) Untouched(gitDir string, f object.Format) (bool, error) {
	if isIncomplete(gitDir) {
		return true, nil
	}
	c := &Capturer{o: Options{GitDir: gitDir}, format: f, refs: session.NewRefDir(gitDir, f)}
	s, err := c.readRefs()
	if err == nil {
		s.Files, err = c.readFiles()
	}
	if err != nil {
		return false, fmt.Errorf("read git directory: %w", err)
	}
	if !b.like(s.State) {
		return false, nil
	}
	text, err := disk.ReadRegular(filepath.Join(gitDir, "index"), disk.LargeFile)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("read index: %w", err)
	}
	x, err := index.Read(f, text)
	// Git writes a split index only if the user has changed the configuration. Assume that the user has also run other git
	// commands.
	if errors.Is(err, index.ErrSplit) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read index: %w", err)
	}
	if len(x.Entries) == 0 {
		return b.Tree.IsZero(), nil
	}
	// If the cached tree in the index is the tree of the commit, the index equals the commit, and its entries need no
	// comparison.
	known := x.Tree != nil && x.Tree.Count >= 0 && x.Tree.ID == b.Tree
	return known && !slices.ContainsFunc(x.Entries, func(e index.Entry) bool {
		return e.Stage != 0 || e.AssumeValid || e.SkipWorktree || e.IntentToAdd
	}), nil
}

// like reports whether HEAD, refs, stashes and the files of operations in progress in s are the same as in the initial
// state.
func (b InitialState) like(s session.State) bool {
	if s.Branch != b.Branch || s.Head != b.Commit || len(s.Stashes) > 0 {
		return false
	}
	for name := range s.Files {
		switch name {
		case "config", "ORIG_HEAD", "info/exclude", "info/sparse-checkout":
			// these files may exist although nothing has changed
		default:
			return false
		}
	}
	var theirs []packedrefs.Ref
	if b.Refs != nil {
		theirs = b.Refs()
	}
	return !slices.ContainsFunc(s.Refs, func(r packedrefs.Ref) bool {
		switch {
		case r.Name == b.Branch, r.Name == b.Mounted:
			return r.ID != b.Commit
		// A tag comes from the mounted remote if the remote has a tag with the same name and value.
		case strings.HasPrefix(r.Name, "refs/tags/"):
			return !slices.ContainsFunc(theirs, func(t packedrefs.Ref) bool { return t.Name == r.Name && t.ID == r.ID })
		}
		return true
	})
}
