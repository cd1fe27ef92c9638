package bind

import (
	"context"
	"path"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
	"github.com/artifactfs/artifactfs/worktree"
)

// unboundTime is the maximum duration of Unbound. While Unbound runs, no request of the kernel is answered.
const unboundTime = 100 * time.Millisecond

// TakeOver is called by a successor instead of Plan. It reads the redirects from the record, and finds out from the mount table
// which of them are bind-mounted.
func (r *Redirects) TakeOver(o Options, record []statedir.Redirect) {
	r.o = o
	mounts, err := mountinfo.Self()
	if err != nil {
		r.o.Log.Warn("find redirected directories", zap.Error(err))
	}
	for _, d := range record {
		one := &redirect{Redirect: d}
		active := !mountpoint.MayBind() // without this right, the redirect is a symbolic link, which exists already
		if !active {
			_, active = boundAt(mounts, r.o.Dir, r.source(d))
		}
		one.active.Store(active)
		r.all = append(r.all, one)
	}
}

// Unbound returns the directories of redirects over which no backing is mounted. Such a directory exists if the predecessor
// died between a mkdir(2) and the bind mount. Unbound must be called before requests of the kernel are answered: package fuse
// then blocks accesses to these directories until BindAgain has mounted their backings. Unbound leaves out a directory if the
// tree of its parent is missing on this host; BindAgain also mounts the backing of such a directory.
func (r *Redirects) Unbound() (list []worktree.Place) {
	ctx, cancel := context.WithTimeout(context.Background(), unboundTime)
	defer cancel()
	for _, d := range r.all {
		if d.active.Load() {
			continue
		}
		if _, empty, err := r.bare(ctx, d.Path); err != nil || !empty {
			continue
		}
		if parent, err := r.o.Tree.Resolve(ctx, path.Dir(d.Path)); err == nil {
			list = append(list, worktree.Place{Dir: parent, Name: path.Base(d.Path)})
		}
	}
	return list
}

// BindAgain bind-mounts the backings of all redirects that are not bind-mounted: those that Unbound has returned, and those that
// an unsuccessful unmount has unbound.
func (r *Redirects) BindAgain(ctx context.Context, server Server) {
	if !mountpoint.MayBind() || !r.o.Writable {
		return
	}
	for _, d := range r.all {
		if d.active.Load() {
			continue
		}
		if _, empty, err := r.bare(ctx, d.Path); err == nil && empty {
			r.redirect(ctx, server, d)
		}
	}
}

// redirect bind-mounts the backing of d over an existing directory. During the bind mount, server prevents other processes from
// creating another directory at the same path.
func (r *Redirects) redirect(ctx context.Context, server Server, d *redirect) {
	parent, err := r.o.Tree.Resolve(ctx, path.Dir(d.Path))
	if err == nil {
		err = server.Redirect(worktree.Place{Dir: parent, Name: path.Base(d.Path)}, func() error { return r.bind(d) })
	}
	if err != nil {
		r.o.Log.Warn("restore redirect", zap.String("dir", r.o.Dir), zap.String("path", d.Path), zap.Error(err))
	}
}
