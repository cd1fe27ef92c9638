package worktree_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/disktest"
	. "github.com/artifactfs/artifactfs/worktree"
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

// While sealed contents are copied for a write, which can take long, freezes do not list again what they have listed.
func TestFreezeDuringACopyOfSealedContents(t *testing.T) {
	top := t.TempDir()
	copying, proceed := make(chan struct{}), make(chan struct{})
	var armed atomic.Bool
	w := newFaultTree(t, filepath.Join(top, "tree"),
		disktest.Faulty(disktest.Unsynced(disk.OS), func(op disktest.Op) error {
			if op.Name == "CopyFrom" && armed.CompareAndSwap(true, false) {
				close(copying)
				<-proceed
			}
			return nil
		}))
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	w.options.Shares = filepath.Join(top, "shares")
	ok(os.Mkdir(w.dir, 0o700))
	ok(os.Mkdir(w.options.Shares, 0o700))
	ok(w.open())
	defer w.Close()
	ok(w.create("file1"))
	ok(w.write("file1", 0, "contents"))
	_, err := w.take(1, []string{"file1"})
	ok(err)
	n, err := w.Resolve(t.Context(), "file1")
	ok(err)
	token := ""
	freeze := func() (paths []string) {
		t.Helper()
		f, err := w.Freeze(t.Context(), token, FreezeOptions{})
		ok(err)
		defer f.Release()
		token = f.Token
		for _, e := range f.Entries {
			paths = append(paths, e.Path)
		}
		return paths
	}
	freeze()
	written := make(chan error)
	armed.Store(true)
	go func() { _, err := w.Write(t.Context(), n, []byte("changed"), 3, false); written <- err }()
	<-copying
	ok(w.create("file2"))
	freeze()
	ok(w.create("file3"))
	freeze()
	if got := freeze(); len(got) > 0 {
		t.Errorf("freeze during the copy, without a change since the last one: got the paths %q", got)
	}
	close(proceed)
	ok(<-written)
	w.files["file1"] = "conchanged"
	if got := freeze(); !slices.Contains(got, "file1") {
		t.Errorf("freeze after the copy: got the paths %q, want file1", got)
	}
	w.compare()
}
