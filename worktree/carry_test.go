package worktree_test

import (
	"fmt"
	"testing"

	"github.com/artifactfs/artifactfs/worktree/carry"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// sharing returns a workspace whose contents can be sealed.
func sharing(t *testing.T, files map[string]worktreetest.File) *workspace {
	t.Helper()
	w := newWorkspace(t, files)
	w.shares = t.TempDir()
	w.reopen()
	return w
}

// share returns an ID of a share for a number.
func share(n int) string { return fmt.Sprintf("%026d", n) }

// takeAll takes everything at the given paths.
func takeAll(string, bool) carry.Choice { return carry.All }

// A seal is refused without an overlay and without a directory of shares, and nothing is taken without a freeze.
func TestSealIsRefused(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{"after": {}})
	if _, err := w.Overlay().BeginSeal(share(1)); err == nil {
		t.Error("begin a seal without a directory of shares: got no error")
	}
	w.shares = t.TempDir()
	w.reopen()
	seal, err := w.Overlay().BeginSeal(share(1))
	w.ok(err)
	if _, err := seal.Take([]string{"after"}, takeAll); err == nil {
		t.Error("take before the moment: got no error")
	}
	seal.Close()
	seal.Close()
}
