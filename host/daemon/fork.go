package daemon

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/mount"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/host/mount/origin"
	"github.com/artifactfs/artifactfs/host/session/catalog"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session/capture"
)

// Fork creates a session from a checkpoint of another session, its parent, and mounts the new session. If the request
// is for a read-only mount, Fork creates no session, and mounts the checkpoint itself.
func (d *Daemon) Fork(ctx context.Context, r control.ForkRequest,
	progress func(control.Progress)) (control.MountReply, error) {
	if r.SessionRemote != "" {
		return d.forkFar(ctx, r, progress)
	}
	// If the client has repeated its request, the fork may be mounted already, so its name is in use.
	if m, err := d.awaitEarlier(ctx, r.Mount); err != nil {
		return control.MountReply{}, fault.Explain("mount", r.Mount.Dir, err)
	} else if m != nil {
		return serve(ctx, time.Now(), d, m, func() {}, progress)
	}
	h, err := d.HomeOf(r.Of)
	if err == nil { // these globs have the syntax of the globs that choose the files of checkpoints
		err = capture.Rules{Include: r.Carry, Exclude: r.LeaveOut}.Validate()
	}
	if err != nil {
		return control.MountReply{}, fault.ExplainSession("fork", r.Of, err)
	}
	// If the request leaves out the remote or tokens, those of the parent's mount are used.
	to := h.Complete(r.Mount)
	if to.ReadOnly {
		to.Session = "" // a read-only mount shows the existing checkpoint and creates no session
	} else if err := d.nameFork(&to, r.Of); err != nil {
		return control.MountReply{}, err
	}
	to.SessionOptions = h.WithRules(to.SessionOptions)
	// A checkpoint for a fork may seal contents, so it is not made for one that cannot be mounted.
	if to.Device == nil && to.Through == "" {
		// A mount that ends just now is awaited later.
		if err := mountpoint.Check(to.Dir); err != nil && !errors.Is(err, mountpoint.ErrAlreadyMounted) {
			return control.MountReply{}, fault.Explain("mount", to.Dir, err)
		}
	}
	b := mount.StartPoint{Head: r.Head}
	c := &carrier{d: d, request: r, to: to, parent: h}
	defer c.release()
	from, err := d.checkpointToFork(ctx, h, r.ID, c)
	if err == nil && !to.ReadOnly {
		err = c.check(from.Besides)
	}
	switch {
	case err != nil:
		return control.MountReply{}, fault.ExplainSession("fork", r.Of, err)
	case from.Checkpoint() == "": // the parent has no changes, and therefore no checkpoint
		b.Base, b.Head = &from.Record, cmp.Or(r.Head, from.Record.Fork.Head)
	default:
		b.From = from
		if to.ReadOnly {
			to.Session, to.At = from.Session, string(from.Checkpoint())
		}
	}
	if err == nil && h.Mounted != nil && r.ID == "" {
		b.Missing = missingIn(h.Mounted, from, to, d.list())
	}
	_, reply, err := d.mount(ctx, to, b, progress)
	return reply, err
}

// missingIn returns what the fork of a mount does not have: the paths that the checkpoint of its present state leaves
// out and that are not carried, if the mount knows them, and those of its submodules that are among the mounts all,
// unless the request to mounts submodules too.
func missingIn(parent *catalog.Mounted, from *origin.Local, to control.MountRequest, all []*mount.Mount) mount.Missing {
	var missing mount.Missing
	for _, m := range all {
		if m.Parent != nil && m.Parent.Dir == parent.Dir && !to.Submodules {
			missing.Submodules = append(missing.Submodules, strings.TrimPrefix(m.Dir, parent.Dir+"/"))
		}
	}
	slices.Sort(missing.Submodules)
	if t := from.Besides.Taken; t != nil {
		missing.Known, missing.Paths, missing.All = true, catalog.LeftOut(t.Missing), t.All
	} else if left, ok := parent.Agent.LeftOut(from.Checkpoint()); ok {
		missing.Known, missing.Paths = true, catalog.LeftOut(left)
		missing.All = max(from.LeftOut(), int64(len(left)))
	}
	return missing
}

// HomeOf returns the home of a session on this host, which is the directory of the session below the state directory.
// The parameter of is the name of the session, or an absolute path in its mount. HomeOf returns statedir.ErrNoSession
// if this host has no session with that name.
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

// mountOf returns the mount of a session, or false if the session is not mounted. The parameter of is the name of the
// session, or an absolute path in its mount.
func (d *Daemon) mountOf(of string) (*mount.Mount, bool) {
	if filepath.IsAbs(of) {
		return d.find(of)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range d.mounts {
		// A mount that only shows a checkpoint of a session has the same Session but another ID, so it does not match.
		if m.ID == of && m.Session == of {
			return m, true
		}
	}
	return nil, false
}

// checkpointToFork returns the checkpoint from which a fork starts, with the home in which that checkpoint is stored. h
// is the home of the parent session, and id the requested checkpoint; if id is empty, checkpointToFork uses the current
// state.
//
// If id is empty and h belongs to a writable mount, checkpointToFork creates a checkpoint. If h belongs to a mount that
// shows one checkpoint, its home contains only that one: if id is empty, it is returned; otherwise id is searched in
// the session's own home, if this host has that.
//
// c takes the files that are carried in addition to those of the checkpoint.
func (d *Daemon) checkpointToFork(ctx context.Context, h origin.Home, id string, c *carrier) (*origin.Local, error) {
	shows := h.Mounted != nil && h.Mounted.Session == ""
	switch {
	case id == "" && h.Mounted != nil && h.Mounted.Writable:
		p, report, present, err := c.capture(ctx)
		from := h.Origin(p)
		from.Times, from.Besides = report.Times, present
		return from, err
	case id == "" && shows:
		p, err := h.Shown()
		return h.Origin(p), err
	// h is the home of a mount that shows one checkpoint. The session's own home contains all checkpoints of the session.
	case shows:
		if of, err := d.HomeOf(h.Session); err == nil {
			h = of
		}
	}
	p, err := h.Find(ctx, id)
	return h.Origin(p), err
}

// show returns the checkpoint r.At of the session r.Session, which r requests to show, and sets the empty fields of r
// to those of the session. It returns nil, without an error, if the session is not on this host and has to be searched
// on a session remote.
func (d *Daemon) show(ctx context.Context, r *control.MountRequest) (*origin.Local, error) {
	h, err := d.HomeOf(r.Session)
	if errors.Is(err, statedir.ErrNoSession) && r.SessionOptions.Remote != "" {
		return nil, nil // the caller looks the session up on the session remote
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

// complete sets the empty fields of a mount request, and of b: the remote to mount, and the checkpoint to show. It
// reads them from the session on this host, or from the session remote if this host does not have the session.
func (d *Daemon) complete(ctx context.Context, r *control.MountRequest, b *mount.StartPoint) (err error) {
	// A mount that shows one checkpoint must be read-only.
	if r.At != "" && b.From == nil {
		r.ReadOnly = true
		if b.From, err = d.show(ctx, r); err != nil {
			return origin.Explain(*r, err)
		}
	}
	if r.Remote != "" {
		return nil
	}
	// If the session is on this host, its record contains the remote.
	if h, err := d.HomeOf(r.Session); err == nil {
		*r = h.Complete(*r)
		return nil
	}
	// Otherwise the remote is named by the session's metadata on the session remote.
	if b.Known, err = d.knowSession(ctx, *r); err != nil {
		return origin.Explain(*r, err)
	}
	r.Remote = b.Known.Meta.Remote
	return nil
}
