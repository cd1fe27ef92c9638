package contents

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// Shown is the tree that prefetch and readahead of a mount use. It is the base tree until the mount is switched to
// another commit. The methods may be called from any goroutine.
type Shown struct {
	view *fetch.View
	path string        // file in the home with the ID of the tree; it does not exist if the tree is the base tree
	wake chan struct{} // contains a value if the tree has changed since the last call of Changed
	log  *zap.Logger
}

// newShown returns the Shown of the mount with the given view and home. If the mount was switched before it was resumed
// or taken over, a file in the home has the ID of the tree.
func newShown(view *fetch.View, home string, log *zap.Logger) *Shown {
	s := &Shown{view: view, path: filepath.Join(home, "shown"), wake: make(chan struct{}, 1), log: log}
	text, err := os.ReadFile(s.path)
	if err != nil {
		return s
	}
	if tree, err := object.ParseID(strings.TrimSpace(string(text))); err == nil {
		view.Show(tree)
	}
	return s
}

// Show sets the tree, wakes Changed, and stores the ID of the tree in the home.
func (s *Shown) Show(tree object.ID) {
	s.view.Show(tree)
	// If this fails, a later process prefetches the base tree instead of this tree.
	if err := disk.WriteFile(s.path, []byte(tree.String()+"\n"), 0o600); err != nil {
		s.log.Warn("store the id of the shown tree", zap.Error(err))
	}
	select {
	case s.wake <- struct{}{}:
	default: // a value is in the channel already
	}
}

// Changed waits until Show is called and returns true, or returns false if ctx ends first.
func (s *Shown) Changed(ctx context.Context) bool {
	select {
	case <-s.wake:
		return true
	case <-ctx.Done():
		return false
	}
}
