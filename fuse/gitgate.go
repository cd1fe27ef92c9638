package fuse

import (
	"context"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/worktree"
)

// gitName is the name of the file in the root that contains the path of the git directory.
const gitName = ".git"

// gitGate makes look-ups of ".git" in the root wait until the git directory is ready. Until then the replies forbid the
// kernel to cache the entry, so that the kernel sends every look-up.
//
// A look-up of a name that the kernel does not know holds the lock of the directory (fs/namei.c, lookup_slow), and
// processes that create or remove entries of the root would wait for that lock. A look-up of a name that the kernel
// knows, but must verify, holds no lock (fs/fuse/dir.c, fuse_dentry_revalidate). So the method known looks the name up
// once, before any other process can use the mount, and the method pass lets this look-up be answered without waiting.
// If memory pressure makes the kernel forget the name while a look-up waits, changes of the root's entries also wait.
type gitGate struct {
	await func(ctx context.Context, pid uint32) (done bool) // Options.Await; if nil, no look-up waits
	open  atomic.Bool                                       // set when await has returned true
	// varies is set if the reply depends on the process (gitForms), so that listings must not contain the type or
	// attributes.
	varies bool
	first  atomic.Uint32 // id of the thread in which the method known looks up ".git"; otherwise 0
}

// isVaried reports whether the name in dir is ".git" in the root and has different forms for different processes.
func (g *gitGate) isVaried(dir worktree.Node, name string) bool {
	return g.varies && dir == worktree.Root && name == gitName
}

// guards reports whether the name in dir is ".git" in the root and look-ups of it must wait because the git directory
// is not ready.
func (g *gitGate) guards(dir worktree.Node, name string) bool {
	return g.await != nil && dir == worktree.Root && name == gitName && !g.open.Load()
}

// pass returns when the look-up of the name in dir may be answered. For ".git" it calls await first. keep reports
// whether the kernel may cache the reply. If the wait was interrupted, pass returns the error of the context.
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

// known makes the kernel know the name ".git". It looks up the name in a new thread, whose look-up the method pass
// answers without waiting.
func (g *gitGate) known(dir string) error {
	if g.await == nil {
		return nil
	}
	return WithoutDevice(func() error {
		g.first.Store(uint32(unix.Gettid()))
		defer g.first.Store(0)
		var st unix.Stat_t
		// An error has only one effect: changes of the root's entries then wait as long as the first look-up of ".git" by
		// another process waits.
		_ = unix.Lstat(filepath.Join(dir, gitName), &st)
		return nil
	})
}
