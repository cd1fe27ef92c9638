package daemon

import (
	"bytes"
	"context"
	"io"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/statedir"
)

// knownSession is a session of a session remote, as far as it has to be read to know which repository is to be mounted. The
// mount goes on with it: connecting and asking again would cost five round trips.
type knownSession struct {
	at      string // session remote; it may hold a secret
	login   *login
	remote  *thin.Remote // nil: a mount has taken it
	format  object.Format
	list    *thin.Listing
	metaID  object.ID // zero: there is no such session
	meta    session.Meta
	objects []odb.Outgoing // of metaID and its predecessors
}

// arrivalPrefixes are those of the refs that a session is resumed by.
func arrivalPrefixes(name string) []string {
	return []string{session.MetaRef(name), session.LanePrefix(name), session.PinPrefix(name), session.KeptPrefix(name), session.CarriedPrefix(name),
		session.TranscriptRef(name), session.FactsRef(name), session.OwnerRef, session.TagsPrefix(name), "refs/heads/", "refs/tags/"}
}

// listSession asks a session remote for the refs of a session.
func listSession(ctx context.Context, remote *thin.Remote, name string) (*knownSession, error) {
	remote.ListAhead(ctx, arrivalPrefixes(name))
	caps, err := remote.Capabilities(ctx)
	if err != nil {
		return nil, fault.SessionRemote(remote, err)
	}
	k := &knownSession{remote: remote, format: caps.Format}
	if k.list, err = remote.List(ctx, arrivalPrefixes(name)); err != nil {
		return nil, fault.SessionRemote(remote, err)
	}
	k.metaID, _ = k.list.Has(session.MetaRef(name))
	return k, nil
}

// knowSession reads what a session is from the session remote of a request. The caller closes it.
func (d *Daemon) knowSession(ctx context.Context, r control.MountRequest) (_ *knownSession, err error) {
	remote, login, kind, err := d.openSessionRemote(r)
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
	k, err := listSession(ctx, remote, r.Session)
	if err != nil {
		return nil, err
	}
	if k.metaID.IsZero() {
		return nil, statedir.ErrNoSession
	}
	k.at, _ = sessionURL(r)
	k.login = login
	if k.meta, k.objects, err = d.fetchMetas(ctx, remote, k.metaID, 0); err != nil {
		return nil, fault.SessionRemote(remote, err)
	}
	return k, nil
}

// take returns the session remote for a mount that asks the same one with the same login, and closes it later; nil: it does not.
func (k *knownSession) take(at string, g given) *thin.Remote {
	if k == nil || k.at != at || k.login.given != g {
		return nil
	}
	remote := k.remote
	k.remote = nil
	return remote
}

func (k *knownSession) close() {
	if k != nil && k.remote != nil {
		k.remote.Close()
	}
}

// knownBase returns the commit that the mount's session began with, if what the session is was read before the mount began; false:
// it was not. The zero id is that of an unborn branch.
func (m *mount) knownBase() (object.ID, bool) {
	var base string
	switch {
	case m.far != nil:
		base = m.far.meta.Base
	case m.known != nil:
		base = m.known.meta.Base
	default:
		return object.ID{}, false
	}
	id, err := object.ParseID(base)
	return id, err == nil || base == ""
}

// bringMeta has the session's repository know what the session is.
func (m *mount) bringMeta(ctx context.Context, k *knownSession, remote *thin.Remote) error {
	if len(k.objects) > 0 {
		return m.owned.KeepAs(ctx, k.format, k.objects)
	}
	if _, err := m.owned.Bring(ctx, fetch.BringRequest{From: remote, Wants: []object.ID{k.metaID}, Contents: true}); err != nil {
		return fault.SessionRemote(remote, err)
	}
	return nil
}

// inMemory is an object that can be written into a pack.
func inMemory(id object.ID, t object.Type, content []byte) odb.Outgoing {
	return odb.Outgoing{ID: id, Type: t, Size: int64(len(content)), Open: func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}}
}
