package fuse

import (
	"context"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/worktree"
)

// gitName is the file in the root that leads git to its directory.
const gitName = ".git"

// gitGate makes who looks up ".git" wait until git can be used. Until then the kernel may not keep the entry, so that
// everybody asks.
//
// A look-up of a name that the kernel does not know holds the directory (fs/namei.c, lookup_slow), which who makes or
// removes something in the root has to wait for. One that it knows, and may not rely on, holds nothing
// (fs/fuse/dir.c, fuse_dentry_revalidate). So the name is looked up once, and answered, before anybody else can; should
// the kernel forget it for want of memory while somebody waits, changes of the root's entries wait too.
type gitGate struct {
	await func(ctx context.Context, pid uint32) (done bool)
	open  atomic.Bool
	first atomic.Uint32 // the thread that looks the name up for the kernel to know it
}

// guards says whether a name is that of the gate, and the gate not open yet.
func (g *gitGate) guards(dir worktree.Node, name string) bool {
	return g.await != nil && dir == worktree.Root && name == gitName && !g.open.Load()
}

// pass waits if it must, and says whether the kernel may keep the answer to a look-up.
func (g *gitGate) pass(w *waiter, dir worktree.Node, name string) (keep bool, err error) {
	if !g.guards(dir, name) {
		return true, nil
	}
	if w.pid != 0 && w.pid == g.first.Load() {
		return false, nil
	}
	if g.await(w, w.pid) {
		g.open.Store(true)
		return true, nil
	}
	return false, w.Err()
}

// known makes the kernel know the name.
func (g *gitGate) known(dir string) error {
	if g.await == nil {
		return nil
	}
	return WithoutDevice(func() error {
		g.first.Store(uint32(unix.Gettid()))
		defer g.first.Store(0)
		var st unix.Stat_t
		_ = unix.Lstat(filepath.Join(dir, gitName), &st) // without it somebody may have to wait, no more
		return nil
	})
}
