package daemon

import (
	"context"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/mount/origin"
	"github.com/artifactfs/artifactfs/host/remotes"
	"github.com/artifactfs/artifactfs/host/session/resume"
	"github.com/artifactfs/artifactfs/host/statedir"
)

// knowSession reads the metadata of the session r.Session from the session remote that the request names. It returns
// statedir.ErrNoSession if the request names no URL of a session remote, or if the session remote does not have the
// session. The caller must close the result.
func (d *Daemon) knowSession(ctx context.Context, r control.MountRequest) (_ *origin.KnownSession, err error) {
	remote, login, kind, err := d.host.Remotes.SessionLogin(r)
	if err != nil {
		return nil, err
	}
	if remote == nil {
		return nil, statedir.ErrNoSession
	}
	defer func() {
		if err != nil {
			remote.Close()
		}
	}()
	if kind != "" {
		return nil, statedir.ErrNoSession
	}
	k := &origin.KnownSession{Login: login}
	if k.Known, err = resume.List(ctx, remote, r.Session); err != nil {
		return nil, err
	}
	if k.MetaID.IsZero() {
		return nil, statedir.ErrNoSession
	}
	k.At, _ = remotes.SessionURL(r)
	return k, k.ReadMeta(ctx, d.host.State)
}
