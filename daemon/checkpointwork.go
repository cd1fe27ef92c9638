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
	"github.com/artifactfs/artifactfs/session/catalog"
	"github.com/artifactfs/artifactfs/statedir"
)

// Fork creates a session from a checkpoint of another session and mounts it.
func (d *Daemon) Fork(ctx context.Context, r control.ForkRequest, progress func(control.Progress)) (control.MountReply, error) {
	if r.SessionRemote != "" {
		return d.forkFar(ctx, r, progress)
	}
	h, err := d.homeOf(r.Of)
	if err != nil {
		return control.MountReply{}, fault.ExplainSession("fork", r.Of, err)
	}
	// Remote and tokens of the parent's mount are the defaults of the fork.
	to := h.request(r.Mount)
	if to.ReadOnly {
		to.Session = "" // it shows the existing checkpoint and creates no session
	} else if err := d.nameFork(&to, r.Of); err != nil {
		return control.MountReply{}, err
	}
	b := mountStart{}
	h, p, err := d.checkpointToFork(ctx, h, r.ID)
	switch {
	case err != nil:
		return control.MountReply{}, fault.ExplainSession("fork", r.Of, err)
	case p.ID == "": // the parent has no changes yet
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

// origin returns checkpoint p of the session as the start of a mount.
func (h sessionHome) origin(p session.Checkpoint) *origin {
	return &origin{home: h.dir, session: h.session, record: h.record, checkpoint: p, carried: h.carried}
}

// sessionHome describes where a session is stored on this host, whether it is mounted or not. The home is the mount's directory
// below the state directory. For a mount that shows one checkpoint read-only, it is the home of that mount.
type sessionHome struct {
	dir     string
	session string
	record  statedir.Record
	mount   *mount // the served mount; nil if there is none
	// carried holds the options of the session, among them its session remote.
	carried control.SessionOptions
}

// homeOf finds a session on this host. The parameter of is the name of the session, or an absolute path in its mount. homeOf
// returns statedir.ErrNoSession if this host has no such session.
func (d *Daemon) homeOf(of string) (h sessionHome, err error) {
	m, ok := d.mountOf(of)
	switch {
	// The mount shows one checkpoint of a session that this host may not have.
	case ok && m.served() && m.request.At != "" && m.record.Checkpoint != nil:
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

// mountOf returns the mount that contains the directory of, if of is an absolute path, and otherwise the mount of the session
// named of.
func (d *Daemon) mountOf(of string) (*mount, bool) {
	if filepath.IsAbs(of) {
		return d.find(of)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range d.mounts {
		// The ID of a mount differs from the session's name if the mount only shows a checkpoint.
		if m.id == of && m.session == of {
			return m, true
		}
	}
	return nil, false
}

// request returns r with the remote of the session filled in. If r names no other remote, it also fills in the tokens of the
// session's mount.
func (h sessionHome) request(r control.MountRequest) control.MountRequest {
	if r.Remote == "" || r.Remote == h.record.Remote {
		r.Remote = h.record.Remote
		if h.mount != nil {
			now := h.mount.requestNow()
			r.Remote = now.Remote // the URL may contain a secret
			// A caller of this daemon may use the tokens of a mount of the same remote.
			if r.Token == "" && r.TokenFile == "" {
				r.Token, r.TokenFile = now.Token, now.TokenFile
			}
			if r.SessionToken == "" && r.SessionTokenFile == "" {
				r.SessionToken, r.SessionTokenFile = now.SessionToken, now.SessionTokenFile
			}
		}
	}
	// The fork starts from a checkpoint, and not from a ref.
	r.Ref = ""
	return r
}

// checkpointToFork returns the checkpoint that a fork starts from, and the home in which that checkpoint is stored. If id is empty
// and h is a writable mount, it creates a checkpoint of the current state. If id is empty and h is a mount that shows one
// checkpoint, it returns that checkpoint. If id is not empty and h shows one checkpoint, it looks the id up in the session's own
// home, if this host has one, because the home of the mount has a single checkpoint.
func (d *Daemon) checkpointToFork(ctx context.Context, h sessionHome, id string) (sessionHome, session.Checkpoint, error) {
	shows := h.mount != nil && h.mount.session == ""
	switch {
	case id == "" && h.mount != nil && h.mount.writable():
		p, _, err := h.mount.agent.Checkpoint(ctx, session.Forking, "")
		return h, p, err
	case id == "" && shows:
		p, err := h.shown()
		return h, p, err
	// The session's own home has all of its checkpoints, the home of the mount only one.
	case shows:
		if of, err := d.homeOf(h.session); err == nil {
			h = of
		}
	}
	p, err := h.find(ctx, id)
	return h, p, err
}

// shown returns the checkpoint that this mount started from.
func (h sessionHome) shown() (session.Checkpoint, error) {
	commit, err := object.ParseID(h.record.Checkpoint.Commit)
	if err != nil {
		return session.Checkpoint{}, err
	}
	repo, err := h.open()
	if err != nil {
		return session.Checkpoint{}, err
	}
	defer repo.Close()
	return repo.CheckpointAt(commit)
}

// find returns the checkpoint of the session that id refers to; an empty id refers to the newest one. It returns the zero
// checkpoint if id is empty and the session has no repository yet.
func (h sessionHome) find(ctx context.Context, id string) (session.Checkpoint, error) {
	repo, err := h.open()
	// The session has no checkpoint yet.
	if errors.Is(err, fs.ErrNotExist) && id == "" {
		return session.Checkpoint{}, nil
	}
	if err != nil {
		return session.Checkpoint{}, err
	}
	defer repo.Close()
	return catalog.Find(ctx, repo, h.mount.listed(), id)
}

// open opens the session's repository read-only. The error matches fs.ErrNotExist if the session has no repository.
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

// show completes the request r to show one checkpoint of a session, and returns that checkpoint, if the session is on this host.
// It returns nil if the session has to be looked up on a session remote.
func (d *Daemon) show(ctx context.Context, r *control.MountRequest) (*origin, error) {
	h, err := d.homeOf(r.Session)
	if errors.Is(err, statedir.ErrNoSession) && r.SessionOptions.Remote != "" {
		return nil, nil // it is looked up on the session remote
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

// mountStart is the start of a mount, if the request alone does not name it.
type mountStart struct {
	parent *mount           // parent of a submodule
	base   *statedir.Record // record of an earlier mount without changes, whose base is used again
	from   *origin          // checkpoint of a session on this host
	far    *farOrigin       // checkpoint of a session on a session remote
	known  *knownSession    // refs and meta of the resumed session; nil if they were not read yet
}

// complete fills in what a mount request leaves open: the remote to mount, and the checkpoint that is shown. It reads them from
// the session on this host, or from the session remote.
func (d *Daemon) complete(ctx context.Context, r *control.MountRequest, b *mountStart) (err error) {
	// A mount that shows one checkpoint cannot be changed.
	if r.At != "" && b.from == nil {
		r.ReadOnly = true
		if b.from, err = d.show(ctx, r); err != nil {
			return explainResume(*r, err)
		}
	}
	if r.Remote != "" {
		return nil
	}
	// This host knows the remote of its own sessions.
	if h, err := d.homeOf(r.Session); err == nil {
		*r = h.request(*r)
		return nil
	}
	// Otherwise the metadata on the session remote names the mounted remote.
	if b.known, err = d.knowSession(ctx, *r); err != nil {
		return explainResume(*r, err)
	}
	r.Remote = b.known.Meta.Remote
	return nil
}

// pathLines returns the lines of a file that are absolute paths.
func pathLines(text []byte) (paths []string) {
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSuffix(line, "\n"); filepath.IsAbs(line) {
			paths = append(paths, line)
		}
	}
	return paths
}

// explainResume explains why the session of a mount, or the checkpoint of it that is to be shown, cannot be mounted.
func explainResume(r control.MountRequest, err error) *control.Error {
	session := "session " + r.Session
	return fault.Subject{
		Area: fault.Resume, Verb: "mount", Object: session,
		Checkpoint: "checkpoint " + r.At + " of " + session, Far: r.SessionOptions.Remote != "",
	}.Explain(err)
}
