package capture

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/internal/index"
	"github.com/artifactfs/artifactfs/internal/packedrefs"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
)

// Beginning is how git was when a commit was mounted in which nobody has worked.
type Beginning struct {
	Branch string // full name of the ref that HEAD named; "": it was detached
	Commit object.ID
	Tree   object.ID               // of Commit; both zero: unborn
	Refs   func() []packedrefs.Ref // the mounted remote's, of which the git directory gets the tags; nil: none
}

// Untouched says whether git is still as it was in the beginning, as far as that can be told without an effort: false is no
// more than a reason to make a checkpoint.
func (b Beginning) Untouched(gitDir string, f object.Format) (bool, error) {
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
	text, err := os.ReadFile(filepath.Join(gitDir, "index"))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("read index: %w", err)
	}
	x, err := index.Read(f, text)
	if errors.Is(err, index.ErrSplit) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read index: %w", err)
	}
	if len(x.Entries) == 0 {
		return b.Tree.IsZero(), nil
	}
	known := x.Tree != nil && x.Tree.Count >= 0 && x.Tree.ID == b.Tree
	return known && !slices.ContainsFunc(x.Entries, func(e index.Entry) bool {
		return e.Stage != 0 || e.AssumeValid || e.SkipWorktree || e.IntentToAdd
	}), nil
}

// like says whether HEAD, refs, stashes and what is under way are as in the beginning.
func (b Beginning) like(s session.State) bool {
	if s.Branch != b.Branch || s.Head != b.Commit || len(s.Stashes) > 0 {
		return false
	}
	for name := range s.Files {
		switch name {
		case "config", "ORIG_HEAD", "info/exclude", "info/sparse-checkout": // alone they are nothing to go on with
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
		case r.Name == b.Branch:
			return r.ID != b.Commit
		case strings.HasPrefix(r.Name, "refs/tags/"):
			return !slices.ContainsFunc(theirs, func(t packedrefs.Ref) bool { return t.Name == r.Name && t.ID == r.ID })
		}
		return true
	})
}
