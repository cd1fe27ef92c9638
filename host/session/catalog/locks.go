package catalog

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/locks"
	"github.com/artifactfs/artifactfs/session/locks/keeper"
	"github.com/artifactfs/artifactfs/session/reffile"
)

// unlockTime is the maximum time for the release of a session's locks on its session remote. If the release fails, the
// locks expire.
const unlockTime = 10 * time.Second

// errNoLocks means that a session has no locks to release.
var errNoLocks = errors.New("session has no locks")

// unlockClosed releases the locks of the session if state, its new state, is closed or archived.
func (o *opened) unlockClosed(ctx context.Context, all *Catalog, state string) {
	if s := session.LifeState(state); s != session.Closed && s != session.Archived {
		return
	}
	remote, _, err := all.Remotes.Session(control.MountRequest{Remote: o.record.Remote, Session: o.Session,
		SessionOptions: o.record.Carried})
	if err == nil && remote != nil {
		unlock(ctx, all, remote.Remote, o.Session)
		err = remote.Close()
	}
	if err != nil {
		all.Log.Info("release locks", zap.String("session", o.Session), zap.Error(err))
	}
}

// unlock releases the locks of the session called name on a session remote. Failures are only logged.
func unlock(ctx context.Context, all *Catalog, remote *transport.Remote, name string) {
	ctx, cancel := context.WithTimeout(ctx, unlockTime)
	defer cancel()
	store := &reffile.Store{Remote: remote, Dir: all.State}
	_, err := keeper.Change(ctx, store, "release locks of "+name, func(f *locks.File) error {
		if !f.ReleaseAll(name) {
			return errNoLocks
		}
		return nil
	})
	if err != nil && !errors.Is(err, errNoLocks) {
		all.Log.Info("release locks", zap.String("session", name), zap.Error(err))
	}
}
