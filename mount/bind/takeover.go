package bind

import (
	"context"
	"path"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/mountinfo"
	"github.com/artifactfs/artifactfs/mount/mountpoint"
	"github.com/artifactfs/artifactfs/statedir"
	"github.com/artifactfs/artifactfs/worktree"
)

// unboundTime limits the search for unbound directories, because the kernel is not served meanwhile.
const unboundTime = 100 * time.Millisecond

// TakeOver is Plan for a successor: it takes the redirects from the record, and finds in the mount table which of them
// are bound.
func (r *Redirects) TakeOver(o Options, record []statedir.Redirect) {
	r.o = o
	mounts, err := mountinfo.Self()
	if err != nil {
		r.o.Log.Warn("find redirected directories", zap.Error(err))
	}
	for _, d := range record {
		one := &redirect{Redirect: d}
		active := !mountpoint.MayBind() // a link exists from the start
		if !active {
			_, active = boundAt(mounts, r.o.Dir, r.source(d))
		}
		one.active.Store(active)
		r.all = append(r.all, one)
	}
}

// Unbound returns the directories that the predecessor had not bound, because it died between a mkdir(2) and the bind.
// It must be called before the kernel is served: package fuse blocks accesses to these directories until BindAgain has
// bound them. A directory whose parent's tree is missing is left out, and bound by BindAgain.
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

// BindAgain binds the directories that are not bound: those in Unbound, and those that an Unbind without an unmount has
// left unbound.
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

// redirect binds an existing directory. server keeps another process from creating a directory at its path meanwhile.
func (r *Redirects) redirect(ctx context.Context, server Server, d *redirect) {
	parent, err := r.o.Tree.Resolve(ctx, path.Dir(d.Path))
	if err == nil {
		err = server.Redirect(worktree.Place{Dir: parent, Name: path.Base(d.Path)}, func() error { return r.bind(d) })
	}
	if err != nil {
		r.o.Log.Warn("redirect again", zap.String("dir", r.o.Dir), zap.String("path", d.Path), zap.Error(err))
	}
}
