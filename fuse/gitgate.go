package fuse

import (
	"context"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/worktree"
)

// gitName is the file in the root that names git's directory.
const gitName = ".git"

// gitGate makes look-ups of ".git" wait until git can be used. Until then the kernel may not cache
// the entry, so that every look-up is sent.
//
// A look-up of a name that the kernel does not know holds the directory's lock (fs/namei.c,
// lookup_slow), for which processes that create or remove entries of the root would wait. A look-up
// of a name that it knows, but may not rely on, holds no lock (fs/fuse/dir.c,
// fuse_dentry_revalidate). So the name is looked up once, and answered, before any process can do
// so. If memory pressure makes the kernel forget the name during a wait, changes of the root's
// entries wait too.
type gitGate struct {
	await func(ctx context.Context, pid uint32) (done bool)
	open  atomic.Bool
	first atomic.Uint32 // the thread of the first look-up
}

// guards reports whether the gate is not open yet and the name is the one that it guards.
func (g *gitGate) guards(dir worktree.Node, name string) bool {
	return g.await != nil && dir == worktree.Root && name == gitName && !g.open.Load()
}

// pass waits if the gate is closed. keep reports whether the kernel may cache the reply to the
// look-up.
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
		_ = unix.Lstat(filepath.Join(dir, gitName), &st) // if this fails, some processes wait longer
		return nil
	})
}
