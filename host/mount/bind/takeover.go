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

// TakeOver sets the redirects to those in the record, and finds out from the mount table which of them are
// bind-mounted. A successor calls it instead of Plan.
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

// Unbound returns the directories of redirects over which no backing is mounted, because the predecessor died between a
// mkdir(2) and the bind mount. It must be called before requests of the kernel are answered: package fuse then blocks
// accesses to these directories until BindAgain has mounted their backings. A directory whose parent's tree is missing
// on this host is not in the result, but BindAgain also mounts its backing.
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

// BindAgain bind-mounts the backings of all redirects that are not bind-mounted: those that Unbound has returned, and
// those that were unbound for an unmount that has failed.
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

// redirect bind-mounts the backing of the redirect d over an existing directory. Meanwhile, server prevents other
// processes from creating another directory at the same path.
func (r *Redirects) redirect(ctx context.Context, server Server, d *redirect) {
	parent, err := r.o.Tree.Resolve(ctx, path.Dir(d.Path))
	if err == nil {
		err = server.Redirect(worktree.Place{Dir: parent, Name: path.Base(d.Path)}, func() error { return r.bind(d) })
	}
	if err != nil {
		r.o.Log.Warn("restore redirect", zap.String("dir", r.o.Dir), zap.String("path", d.Path), zap.Error(err))
	}
}
