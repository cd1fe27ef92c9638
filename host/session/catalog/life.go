package catalog

import (
	"cmp"
	"context"
	"errors"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/control/profile"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/lifecycle"
)

// lifeChange returns the change of a session's state or profile that the request r contains.
func lifeChange(r control.SessionSetRequest) lifecycle.Change {
	return lifecycle.Change{State: session.LifeState(r.State), Reason: r.Reason, Profile: r.Profile,
		Actor: cmp.Or(r.Actor, session.Actor())}
}

// setOnRemote changes the state or profile of a session on its session remote, and returns the description of the
// session after that.
func setOnRemote(ctx context.Context, all *Catalog, r control.SessionSetRequest) (control.SessionInfo, error) {
	at := control.MountRequest{Session: r.Of, SessionOptions: control.SessionOptions{Remote: r.SessionRemote}}
	far, _, err := all.Remotes.Session(at)
	if err == nil && far == nil {
		err = errRemoteNone
	}
	if err != nil {
		return control.SessionInfo{}, err
	}
	_, err = changeOnRemote(ctx, far.Remote, all.State, r.Of, lifeChange(r))
	if err = errors.Join(err, far.Close()); err != nil {
		return control.SessionInfo{}, err
	}
	o, err := all.openOnRemote(ctx, at, false)
	if err != nil {
		return control.SessionInfo{}, err
	}
	defer o.Close()
	return o.farInfo(), nil
}

// onHold returns an error of the type *profile.OnHoldError if a hold applies to the session with the record r in the
// locked home t. A session whose repository is damaged has no hold, so that it can be deleted.
func onHold(t *statedir.Home, r statedir.Record) error {
	if !statedir.HasSessionRepo(t.Dir) {
		return nil
	}
	repo, err := t.Homes.OpenSessionRepo(t.Dir, r, false)
	if err != nil {
		return nil
	}
	defer repo.Close()
	var held *profile.OnHoldError
	if err := lifecycle.OnHold(repo, r.Session); errors.As(err, &held) {
		return held
	}
	return nil
}
