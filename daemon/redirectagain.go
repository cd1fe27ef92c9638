package daemon

import (
	"context"
	"path"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/mountinfo"
	"github.com/artifactfs/artifactfs/mount/mountpoint"
	"github.com/artifactfs/artifactfs/worktree"
)

// unboundTime is for finding what is unbound: the kernel is not served meanwhile.
const unboundTime = 100 * time.Millisecond

// again is plan for a mount that goes on: the kernel has it, and all was decided.
func (r *redirects) again() {
	mounts, err := mountinfo.Self()
	if err != nil {
		r.mount.daemon.log.Warn("find redirected directories", zap.Error(err))
	}
	for _, d := range r.mount.record.Redirects {
		one := &redirect{Redirect: d}
		active := !mountpoint.MayBind() // a link is there from the start
		if !active {
			_, active = boundAt(mounts, r.mount.dir, r.source(d))
		}
		one.active.Store(active)
		r.all = append(r.all, one)
	}
}

// unbound lists the directories that a process left unbound which died between a mkdir(2) and the bind. The kernel is not
// served yet, and when it is nobody gets into them before they are bound. One below a directory whose tree is not here
// is bindAgain's.
func (r *redirects) unbound() (list []worktree.Place) {
	ctx, cancel := context.WithTimeout(context.Background(), unboundTime)
	defer cancel()
	for _, d := range r.all {
		if d.active.Load() {
			continue
		}
		if _, empty, err := r.bare(ctx, d.Path); err != nil || !empty {
			continue
		}
		if parent, err := r.mount.tree.Resolve(ctx, parentOf(d.Path)); err == nil {
			list = append(list, worktree.Place{Dir: parent, Name: path.Base(d.Path)})
		}
	}
	return list
}

// bindAgain binds what is unbound still, as after an unbind and an unmount that did not come.
func (r *redirects) bindAgain(ctx context.Context) {
	if !mountpoint.MayBind() || !r.mount.writable() {
		return
	}
	for _, d := range r.all {
		if d.active.Load() {
			continue
		}
		if _, empty, err := r.bare(ctx, d.Path); err == nil && empty {
			r.redirect(ctx, d)
		}
	}
}

// redirect binds one whose directory is there. Somebody may just be making another in its place.
func (r *redirects) redirect(ctx context.Context, d *redirect) {
	parent, err := r.mount.tree.Resolve(ctx, parentOf(d.Path))
	if err == nil {
		err = r.mount.server.Redirect(worktree.Place{Dir: parent, Name: path.Base(d.Path)}, func() error { return r.bind(d) })
	}
	if err != nil {
		r.mount.daemon.log.Warn("redirect again", zap.String("dir", r.mount.dir), zap.String("path", d.Path), zap.Error(err))
	}
}
