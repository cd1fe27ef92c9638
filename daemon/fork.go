package daemon

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/mount"
	"github.com/artifactfs/artifactfs/mount/origin"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/statedir"
)

// Fork creates a session from a checkpoint of another session and mounts it.
func (d *Daemon) Fork(ctx context.Context, r control.ForkRequest, progress func(control.Progress)) (control.MountReply, error) {
	if r.SessionRemote != "" {
		return d.forkFar(ctx, r, progress)
	}
	h, err := d.HomeOf(r.Of)
	if err != nil {
		return control.MountReply{}, fault.ExplainSession("fork", r.Of, err)
	}
	// Remote and tokens of the parent's mount are the defaults of the fork.
	to := h.Complete(r.Mount)
	if to.ReadOnly {
		to.Session = "" // it shows the existing checkpoint and creates no session
	} else if err := d.nameFork(&to, r.Of); err != nil {
		return control.MountReply{}, err
	}
	b := mount.StartPoint{}
	h, p, err := d.checkpointToFork(ctx, h, r.ID)
	switch {
	case err != nil:
		return control.MountReply{}, fault.ExplainSession("fork", r.Of, err)
	case p.ID == "": // the parent has no changes yet
		b.Base = &h.Record
	default:
		b.From = h.Origin(p)
		if to.ReadOnly {
			to.Session, to.At = h.Session, string(p.ID)
		}
	}
	_, reply, err := d.mount(ctx, to, b, progress)
	return reply, err
}

// HomeOf finds a session on this host. The parameter of is the name of the session, or an absolute path in its mount. HomeOf
// returns statedir.ErrNoSession if this host has no such session.
func (d *Daemon) HomeOf(of string) (h origin.Home, err error) {
	m, ok := d.mountOf(of)
	switch {
	case ok:
		return m.SessionHome()
	case filepath.IsAbs(of):
		return h, fault.NotMounted("find session", of)
	}
	if err := control.ValidSession(of); err != nil {
		return h, err
	}
	h = origin.Home{Dir: filepath.Join(d.host.Homes.Dir(), of), Session: of}
	h.Record, err = statedir.ReadRecord(h.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return h, statedir.ErrNoSession
	}
	h.Carried = h.Record.Carried
	return h, err
}

// mountOf returns the mount that contains the directory of, if of is an absolute path, and otherwise the mount of the session
// named of.
func (d *Daemon) mountOf(of string) (*mount.Mount, bool) {
	if filepath.IsAbs(of) {
		return d.find(of)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range d.mounts {
		// The ID of a mount differs from the session's name if the mount only shows a checkpoint.
		if m.ID == of && m.Session == of {
			return m, true
		}
	}
	return nil, false
}

// checkpointToFork returns the checkpoint that a fork starts from, and the home in which that checkpoint is stored. If id is empty
// and h is a writable mount, it creates a checkpoint of the current state. If id is empty and h is a mount that shows one
// checkpoint, it returns that checkpoint. If id is not empty and h shows one checkpoint, it looks the id up in the session's own
// home, if this host has one, because the home of the mount has a single checkpoint.
func (d *Daemon) checkpointToFork(ctx context.Context, h origin.Home, id string) (origin.Home, session.Checkpoint, error) {
	shows := h.Mounted != nil && h.Mounted.Session == ""
	switch {
	case id == "" && h.Mounted != nil && h.Mounted.Writable:
		p, _, err := h.Mounted.Agent.Checkpoint(ctx, session.Forking, "")
		return h, p, err
	case id == "" && shows:
		p, err := h.Shown()
		return h, p, err
	// The session's own home has all of its checkpoints, the home of the mount only one.
	case shows:
		if of, err := d.HomeOf(h.Session); err == nil {
			h = of
		}
	}
	p, err := h.Find(ctx, id)
	return h, p, err
}

// show completes the request r to show one checkpoint of a session, and returns that checkpoint, if the session is on this host.
// It returns nil if the session has to be looked up on a session remote.
func (d *Daemon) show(ctx context.Context, r *control.MountRequest) (*origin.Local, error) {
	h, err := d.HomeOf(r.Session)
	if errors.Is(err, statedir.ErrNoSession) && r.SessionOptions.Remote != "" {
		return nil, nil // it is looked up on the session remote
	}
	if err != nil {
		return nil, err
	}
	*r = h.Complete(*r)
	p, err := h.Find(ctx, r.At)
	if err != nil {
		return nil, err
	}
	return h.Origin(p), nil
}

// complete fills in what a mount request leaves open: the remote to mount, and the checkpoint that is shown. It reads them from
// the session on this host, or from the session remote.
func (d *Daemon) complete(ctx context.Context, r *control.MountRequest, b *mount.StartPoint) (err error) {
	// A mount that shows one checkpoint cannot be changed.
	if r.At != "" && b.From == nil {
		r.ReadOnly = true
		if b.From, err = d.show(ctx, r); err != nil {
			return origin.Explain(*r, err)
		}
	}
	if r.Remote != "" {
		return nil
	}
	// This host knows the remote of its own sessions.
	if h, err := d.HomeOf(r.Session); err == nil {
		*r = h.Complete(*r)
		return nil
	}
	// Otherwise the metadata on the session remote names the mounted remote.
	if b.Known, err = d.knowSession(ctx, *r); err != nil {
		return origin.Explain(*r, err)
	}
	r.Remote = b.Known.Meta.Remote
	return nil
}
