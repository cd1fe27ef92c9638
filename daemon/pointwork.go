package daemon

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/statedir"
)

// Fork begins a session at a point of another one, and mounts it.
func (d *Daemon) Fork(ctx context.Context, r control.ForkRequest, progress func(control.Progress)) (control.MountReply, error) {
	if r.SessionRemote != "" {
		return d.forkFar(ctx, r, progress)
	}
	h, err := d.homeOf(r.Of)
	if err != nil {
		return control.MountReply{}, fault.ExplainSession("fork", r.Of, err)
	}
	to := h.request(r.Mount)
	if to.ReadOnly {
		to.Session = "" // it shows what there is, and keeps nothing
	} else if err := d.nameFork(&to, r.Of); err != nil {
		return control.MountReply{}, err
	}
	b := beginning{}
	h, p, err := d.pointToFork(ctx, h, r.ID)
	switch {
	case err != nil:
		return control.MountReply{}, fault.ExplainSession("fork", r.Of, err)
	case p.ID == "": // nobody has done anything there yet
		b.base = &h.record
	default:
		b.from = h.origin(p)
		if to.ReadOnly {
			to.Session, to.At = h.session, string(p.ID)
		}
	}
	_, reply, err := d.mount(ctx, to, b, progress)
	return reply, err
}

// origin has a mount begin with a point of the session.
func (h sessionHome) origin(p session.Point) *origin {
	return &origin{home: h.dir, session: h.session, record: h.record, point: p, carried: h.carried}
}

// sessionHome is the home of a session, mounted or not.
type sessionHome struct {
	dir     string
	session string
	record  statedir.Record
	mount   *mount // that is served now; nil: none
	carried control.SessionOptions
}

// homeOf finds a session by the directory of its mount, or one in it, or by its name.
func (d *Daemon) homeOf(of string) (h sessionHome, err error) {
	m, ok := d.mountOf(of)
	switch {
	case ok && m.served() && m.request.At != "" && m.record.Point != nil:
		return sessionHome{dir: m.home.Dir, session: m.request.Session, record: m.record, mount: m, carried: m.request.SessionOptions}, nil
	case ok && (!m.served() || m.session == ""):
		return h, statedir.ErrNoSession
	case ok:
		h = sessionHome{dir: m.home.Dir, session: m.session, record: m.record, mount: m, carried: m.agent.Options()}
		return h, nil
	case filepath.IsAbs(of):
		return h, fault.NotMounted("find session", of)
	}
	if err := control.ValidSession(of); err != nil {
		return h, err
	}
	h = sessionHome{dir: filepath.Join(d.homes.Dir(), of), session: of}
	h.record, err = statedir.ReadRecord(h.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return h, statedir.ErrNoSession
	}
	h.carried = h.record.Carried
	return h, err
}

// mountOf is the mount that a directory is in, or that a session has.
func (d *Daemon) mountOf(of string) (*mount, bool) {
	if filepath.IsAbs(of) {
		return d.find(of)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range d.mounts {
		if m.id == of && m.session == of {
			return m, true
		}
	}
	return nil, false
}

// request completes a request for a mount of the session's remote.
func (h sessionHome) request(r control.MountRequest) control.MountRequest {
	if r.Remote == "" || r.Remote == h.record.Remote {
		r.Remote = h.record.Remote
		if h.mount != nil {
			now := h.mount.requestNow()
			r.Remote = now.Remote // which may hold a secret
			if r.Token == "" && r.TokenFile == "" {
				r.Token, r.TokenFile = now.Token, now.TokenFile
			}
			if r.SessionToken == "" && r.SessionTokenFile == "" {
				r.SessionToken, r.SessionTokenFile = now.SessionToken, now.SessionTokenFile
			}
		}
	}
	r.Ref = ""
	return r
}

// pointToFork is the point that a fork begins with, and the home that has it; without an id, what is there now. A mount that
// shows a point knows of that one, and of others as far as it has the session from its session remote.
func (d *Daemon) pointToFork(ctx context.Context, h sessionHome, id string) (sessionHome, session.Point, error) {
	shows := h.mount != nil && h.mount.session == ""
	switch {
	case id == "" && h.mount != nil && h.mount.writable():
		p, _, err := h.mount.agent.Checkpoint(ctx, session.Forking, "")
		return h, p, err
	case id == "" && shows:
		p, err := h.shown()
		return h, p, err
	case shows:
		if of, err := d.homeOf(h.session); err == nil {
			h = of
		}
	}
	p, err := h.find(ctx, id)
	return h, p, err
}

// shown is the point that the mount began with.
func (h sessionHome) shown() (session.Point, error) {
	commit, err := object.ParseID(h.record.Point.Commit)
	if err != nil {
		return session.Point{}, err
	}
	repo, err := h.open()
	if err != nil {
		return session.Point{}, err
	}
	defer repo.Close()
	return repo.PointAt(commit)
}

// find returns the checkpoint of the session that a name means; "" is the newest, and none if there are no checkpoints.
func (h sessionHome) find(ctx context.Context, id string) (session.Point, error) {
	repo, err := h.open()
	if errors.Is(err, fs.ErrNotExist) && id == "" {
		return session.Point{}, nil
	}
	if err != nil {
		return session.Point{}, err
	}
	defer repo.Close()
	return findPoint(ctx, repo, h.mount, id)
}

// open opens the session's repository to be read.
func (h sessionHome) open() (*session.Repo, error) {
	base, err := h.record.Base()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(h.dir, statedir.SessionRepoName)
	stores, err := os.ReadFile(filepath.Join(dir, "objects", "info", "alternates"))
	if err != nil {
		return nil, err
	}
	return session.OpenRepo(dir, session.RepoOptions{Format: base.Format, Session: h.session, ReadOnly: true, Borrow: pathLines(stores)})
}

// show has a mount that is to show one point begin with it, if the session is on this host; nil: it is not.
func (d *Daemon) show(ctx context.Context, r *control.MountRequest) (*origin, error) {
	h, err := d.homeOf(r.Session)
	if errors.Is(err, statedir.ErrNoSession) && r.SessionOptions.Remote != "" {
		return nil, nil // it is looked for there
	}
	if err != nil {
		return nil, err
	}
	*r = h.request(*r)
	p, err := h.find(ctx, r.At)
	if err != nil {
		return nil, err
	}
	return h.origin(p), nil
}

// beginning says what a mount begins with, if that is not what its request names.
type beginning struct {
	parent *mount           // that it is a submodule of
	base   *statedir.Record // it was mounted before
	from   *origin          // a point of a session of this host
	far    *farOrigin       // one of a session remote
	known  *knownSession    // that is resumed; nil: nothing was read of it yet
}

// complete finds out what a request leaves open because the session knows it.
func (d *Daemon) complete(ctx context.Context, r *control.MountRequest, b *beginning) (err error) {
	if r.At != "" && b.from == nil {
		r.ReadOnly = true
		if b.from, err = d.show(ctx, r); err != nil {
			return explainResume(*r, err)
		}
	}
	if r.Remote != "" {
		return nil
	}
	if h, err := d.homeOf(r.Session); err == nil {
		*r = h.request(*r)
		return nil
	}
	if b.known, err = d.knowSession(ctx, *r); err != nil {
		return explainResume(*r, err)
	}
	r.Remote = b.known.Meta.Remote
	return nil
}

// pathLines are the lines of a file of paths that begin with a slash.
func pathLines(text []byte) (paths []string) {
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSuffix(line, "\n"); filepath.IsAbs(line) {
			paths = append(paths, line)
		}
	}
	return paths
}

// explainResume explains why the session of a mount, or the checkpoint of it that is to be shown, cannot be had.
func explainResume(r control.MountRequest, err error) *control.Error {
	session := "session " + r.Session
	return fault.Subject{
		Area: fault.Resume, Verb: "mount", Object: session, Checkpoint: "checkpoint " + r.At + " of " + session, Far: r.SessionOptions.Remote != "",
	}.Explain(err)
}
