package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/mount"
	"github.com/artifactfs/artifactfs/host/mount/origin"
	"github.com/artifactfs/artifactfs/host/remotes"
	"github.com/artifactfs/artifactfs/host/session/resume"
	"github.com/artifactfs/artifactfs/host/statedir"
)

// forkFar is Fork for a parent session on the session remote r.SessionRemote: it creates a session from a checkpoint of
// the parent and mounts the new session. If the requested mount is read-only, it mounts the checkpoint itself and
// creates no session.
func (d *Daemon) forkFar(ctx context.Context, r control.ForkRequest,
	progress func(control.Progress)) (control.MountReply, error) {
	to := r.Mount
	// A read-only mount needs no new session, because it shows the checkpoint of the parent session.
	if to.ReadOnly {
		to.Remote, to.Ref, to.Session, to.At, to.SessionOptions.Remote = "", "", r.Of, r.ID, r.SessionRemote
		if to.At == "" {
			to.At = "@"
		}
		return d.Mount(ctx, to, progress)
	}
	if m, err := d.awaitEarlier(ctx, to); err != nil {
		return control.MountReply{}, fault.Explain("mount", to.Dir, err)
	} else if m != nil { // the client has repeated its request
		return serve(ctx, time.Now(), d, m, func() {}, progress)
	}
	from, err := d.lookFar(ctx, r)
	if err != nil {
		return control.MountReply{}, fault.ExplainSessionAt("fork", "session "+r.Of, err)
	}
	defer from.Remote.Close()
	to.Ref = ""
	if to.Remote == "" {
		to.Remote = from.Meta.Remote
	}
	// If the request names no session remote, the fork is pushed to the session remote of its parent.
	if to.SessionOptions.Remote == "" {
		to.SessionOptions.Remote = r.SessionRemote
	}
	if err := d.nameFork(&to, r.Of); err != nil {
		return control.MountReply{}, err
	}
	_, reply, err := d.mount(ctx, to, mount.StartPoint{Far: from, Head: r.Head}, progress)
	return reply, err
}

// lookFar reads the metadata of the parent session of a fork from the session remote r.SessionRemote. If the session
// does not exist there, lookFar returns statedir.ErrNoSession or fault.NoSuchSessionError. The caller must close the
// Remote of the result.
func (d *Daemon) lookFar(ctx context.Context, r control.ForkRequest) (*origin.Far, error) {
	at := r.Mount
	// A session token in the request is for the session remote of the fork. If the fork has none, the token is for that of
	// the parent.
	if _, kind := remotes.SessionURL(at); kind == control.RemoteEmbedded || kind == control.RemoteNone {
		at.SessionOptions.Remote = r.SessionRemote
	}
	at = remotes.WithSessionRemote(at, r.SessionRemote)
	at.Session = r.Of
	remote, _, err := d.host.Remotes.Session(at)
	if err != nil {
		return nil, err
	}
	if remote == nil {
		return nil, statedir.ErrNoSession
	}
	parent, ok, err := resume.Look(ctx, d.host.State, remote, r.Of, r.ID)
	if err == nil && !ok {
		err = fault.NoSuchSessionError{Remote: remote.URL()}
	}
	if err != nil {
		remote.Close()
		return nil, err
	}
	return &origin.Far{Parent: parent, At: r.SessionRemote}, nil
}

// nameFork sets the session name in the mount request of a fork, if it is empty. It returns an error with a hint if
// this host already has a session with that name. The parameter of is the name of the parent session.
func (d *Daemon) nameFork(to *control.MountRequest, of string) error {
	if to.Session == "" {
		to.Session = statedir.SessionName(statedir.WithoutSecrets(to.Remote), filepath.Clean(to.Dir))
	}
	if _, err := statedir.ReadRecord(filepath.Join(d.host.Homes.Dir(), to.Session)); !errors.Is(err, fs.ErrNotExist) {
		e := fault.ExplainSession("fork", of, fmt.Errorf("%w: %s", fault.ErrSessionExists, to.Session))
		e.Hint = "choose another name with --session NAME"
		return e
	}
	return nil
}
