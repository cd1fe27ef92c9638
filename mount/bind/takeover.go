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

// unboundTime bounds the search for directories that are not bound: the kernel is not served meanwhile.
const unboundTime = 100 * time.Millisecond

// TakeOver is Plan for a successor: it finds in the table of mounts which of the redirects of the record are bound.
func (r *Redirects) TakeOver(o Options, record []statedir.Redirect) {
	r.o = o
	mounts, err := mountinfo.Self()
	if err != nil {
		r.o.Log.Warn("find redirected directories", zap.Error(err))
	}
	for _, d := range record {
		one := &redirect{Redirect: d}
		active := !mountpoint.MayBind() // a link is there from the start
		if !active {
			_, active = boundAt(mounts, r.o.Dir, r.source(d))
		}
		one.active.Store(active)
		r.all = append(r.all, one)
	}
}

// Unbound returns the directories that the predecessor had not bound when it died between a mkdir(2) and the bind. It is called before
// the kernel is served: package fuse lets no process into them before BindAgain has bound them. A directory below one whose tree
// is missing is left to BindAgain.
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

// BindAgain binds the directories that are not bound, as after an Unbind without an unmount.
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

// redirect binds one whose directory exists. Another process may just be creating another directory in its place.
func (r *Redirects) redirect(ctx context.Context, server Server, d *redirect) {
	parent, err := r.o.Tree.Resolve(ctx, path.Dir(d.Path))
	if err == nil {
		err = server.Redirect(worktree.Place{Dir: parent, Name: path.Base(d.Path)}, func() error { return r.bind(d) })
	}
	if err != nil {
		r.o.Log.Warn("redirect again", zap.String("dir", r.o.Dir), zap.String("path", d.Path), zap.Error(err))
	}
}
