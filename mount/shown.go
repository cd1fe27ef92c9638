package mount

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/object"
)

// shownTree is the tree that prefetch and readahead of a mount use. It is the base tree until the user switches to another commit. Its
// methods are safe for concurrent use.
type shownTree struct {
	view *fetch.View
	path string        // file in the home that stores the id of the tree, if that is not the base tree
	wake chan struct{} // holds a value if the tree has changed since the last call of changed
	log  *zap.Logger
}

// newShownTree returns the tree that a mount of view shows. The home of the mount names another tree than the base tree if the mount
// is resumed or taken over after a switch.
func newShownTree(view *fetch.View, home string, log *zap.Logger) *shownTree {
	s := &shownTree{view: view, path: filepath.Join(home, "shown"), wake: make(chan struct{}, 1), log: log}
	text, err := os.ReadFile(s.path)
	if err != nil {
		return s
	}
	if tree, err := object.ParseID(strings.TrimSpace(string(text))); err == nil {
		view.Show(tree)
	}
	return s
}

// show sets the tree.
func (s *shownTree) show(tree object.ID) {
	s.view.Show(tree)
	// If this fails, a later process prefetches the base tree instead.
	if err := disk.WriteFile(s.path, []byte(tree.String()+"\n"), 0o600); err != nil {
		s.log.Warn("note which tree is shown", zap.Error(err))
	}
	select {
	case s.wake <- struct{}{}:
	default: // a wake-up is pending already
	}
}

// changed waits until show is called. It returns false if ctx ends first.
func (s *shownTree) changed(ctx context.Context) bool {
	select {
	case <-s.wake:
		return true
	case <-ctx.Done():
		return false
	}
}
