package catalog

import (
	"context"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/session/resume"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/lifecycle"
	"github.com/artifactfs/artifactfs/session/reffile"
)

// changeOnRemote applies the change c to a session on its session remote, by compare-and-swap of the session's
// metadata, and returns the new metadata. Temporary files are created in dir. It returns fault.NoSuchSessionError if
// the session remote does not have the session.
func changeOnRemote(ctx context.Context, remote *transport.Remote, dir, name string,
	c lifecycle.Change) (m session.Meta, err error) {
	var refused error // error of the change itself, in contrast to an error of the session remote
	plan := func(f object.Format, old object.ID) (object.ID, []odb.Outgoing, error) {
		if old.IsZero() {
			refused = fault.NoSuchSessionError{Remote: remote.URL()}
			return old, nil, refused
		}
		var err error
		if m, err = resume.ReadMeta(ctx, dir, remote, old); err != nil {
			return old, nil, err
		}
		before, now := m.Clone(), time.Now().UTC()
		if refused = c.Apply(&m, now); refused != nil || m.Equal(before) {
			return old, nil, refused
		}
		return m.Encode(f, old, now)
	}
	if err = reffile.Swap(ctx, remote, session.MetaRef(name), plan); err != nil && refused == nil {
		err = fault.SessionRemote(remote, err)
	}
	return m, err
}
