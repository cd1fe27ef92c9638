package catalog

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/remotes"
	"github.com/artifactfs/artifactfs/host/session/agent"
	"github.com/artifactfs/artifactfs/host/session/resume"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/mirror"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/session/transcript"
)

// A session that is only on a session remote is read through a mirror, which is a temporary repository for objects
// fetched from the session remote. The type opened represents such a session, too, so that the code that reads the
// sessions of this host can read it.

// MirrorOf opens a mirror of the session remote with the URL at, in order to read the session called name, or to list
// all sessions if name is empty.
func (all *Catalog) MirrorOf(ctx context.Context, at, name string) (*mirror.Mirror, error) {
	return all.mirrorFor(ctx, requestAt(name, at))
}

// mirrorFor opens a mirror of the session remote of a mount request, with the credentials of the request. It returns
// statedir.ErrNoSession if the request names no session remote.
func (all *Catalog) mirrorFor(ctx context.Context, r control.MountRequest) (*mirror.Mirror, error) {
	remote, _, err := all.Remotes.Session(r)
	if err != nil {
		return nil, err
	}
	if remote == nil {
		return nil, statedir.ErrNoSession
	}
	return all.mirrorThrough(ctx, remote)
}

// mirrorThrough returns a mirror of an open session remote. Closing the mirror closes the remote; if mirrorThrough
// returns an error, it has closed the remote.
func (all *Catalog) mirrorThrough(ctx context.Context, remote *thin.Remote) (*mirror.Mirror, error) {
	// A session remote may refer to the mounted remote for the history that it does not store.
	origin := func(url string) (mirror.Remote, error) {
		o, _, err := all.Remotes.Session(all.originRequest(url))
		return o, err
	}
	m, err := mirror.Open(ctx, mirror.Options{Dir: all.State, Remote: remote, Origin: origin})
	if err != nil {
		return nil, fault.SessionRemote(remote, err)
	}
	return m, nil
}

// originRequest returns a mount request that opens the mounted remote with the URL url, which has no secrets. The
// request has the credentials of a mount of this remote, if there is one.
func (all *Catalog) originRequest(url string) control.MountRequest {
	for _, m := range all.Mounts.Writable() {
		if m.Record.Remote == url {
			return remotes.WithSessionRemote(m.Request(), control.RemoteOrigin)
		}
	}
	return control.MountRequest{Remote: url, SessionOptions: control.SessionOptions{Remote: control.RemoteOrigin}}
}

// openAt opens a session for reading. The parameter of is the session's name, and at is the URL of the session remote
// that stores the session, or "" if the session is on this host. For a session on a session remote, openAt fetches the
// commits of the checkpoints and, if withTrees is set, their trees. The caller closes the result.
func (all *Catalog) openAt(ctx context.Context, of, at string, withTrees bool) (*opened, error) {
	if at == "" {
		return all.openSession(ctx, of, false)
	}
	return all.openOnRemote(ctx, requestAt(of, at), withTrees)
}

// openOnRemote opens the session of a mount request on its session remote. The caller closes the result, which removes
// the mirror.
func (all *Catalog) openOnRemote(ctx context.Context, r control.MountRequest, withTrees bool) (*opened, error) {
	m, err := all.mirrorFor(ctx, r)
	if err != nil {
		return nil, err
	}
	o, err := OpenFar(ctx, m, r.Session, withTrees)
	if err != nil {
		all.CloseMirror(m)
		return nil, err
	}
	o.asked, o.release = r, func() { all.CloseMirror(m) }
	return o, nil
}

// CloseMirror closes a mirror and removes its repository. It logs errors.
func (all *Catalog) CloseMirror(m *mirror.Mirror) {
	if err := m.Close(); err != nil {
		all.Log.Warn("remove copy of a session", zap.Error(err))
	}
}

// OpenFar opens the session called name, after it has fetched the session's metadata and checkpoints into the mirror m.
// It returns fault.NoSuchSessionError if the session remote does not have the session.
func OpenFar(ctx context.Context, m *mirror.Mirror, name string, withTrees bool) (*opened, error) {
	err := m.Find(ctx, name)
	if _, ok := m.Meta(name); err == nil && !ok {
		return nil, fault.NoSuchSessionError{Remote: m.Remote().URL()}
	}
	switch {
	case err != nil:
	case withTrees:
		err = m.Trees(ctx, name)
	default:
		err = m.Checkpoints(ctx, name)
	}
	if err != nil {
		return nil, fault.SessionRemote(m.Remote(), err)
	}
	return farOpened(m, name)
}

// farOpened returns the session called name in the mirror m in the form of a session of this host. All of its
// checkpoints count as pushed. Closing the mirror closes the session, too.
func farOpened(m *mirror.Mirror, name string) (*opened, error) {
	meta, _ := m.Meta(name)
	repo, err := m.Repo(name)
	if err != nil {
		return nil, err
	}
	o := &opened{Session: name, Repo: repo, far: m, acknowledged: func(session.Checkpoint) bool { return true },
		record: statedir.Record{
			Session: name, Remote: meta.Remote, Ref: meta.Ref, Commit: meta.Base, Format: meta.Format, Began: meta.Began,
			Carried: control.SessionOptions{Remote: m.Remote().URL()},
		}}
	o.pins, err = repo.Pins()
	return o, err
}

// farTree returns the entries of a tree of a session that is read through a mirror. If the mirror lacks the tree, the
// tree belongs to the base commit, which farTree then fetches.
func (o *opened) farTree(ctx context.Context, id object.ID) ([]object.TreeEntry, error) {
	entries, err := o.Repo.Tree(id)
	if !errors.Is(err, odb.ErrNotFound) {
		return entries, err
	}
	if err := o.farBase(ctx); err != nil {
		return nil, err
	}
	return o.Repo.Tree(id)
}

// farBase fetches the base commit of the session with all of its trees into the mirror.
func (o *opened) farBase(ctx context.Context) error {
	if err := o.far.Base(ctx, o.Session); err != nil {
		return fault.SessionRemote(o.far.Remote(), err)
	}
	return nil
}

// farState fetches the contents of the checkpoint state of p, and of the transcript files that were recorded for p, in
// one request.
func (o *opened) farState(ctx context.Context, p session.Checkpoint) error {
	blobs, err := resume.StateBlobs(o.Repo, p)
	if err != nil {
		return err
	}
	records, err := transcript.Files(o.Repo, o.Session, p.ID)
	if err != nil {
		return err
	}
	if err := o.far.Contents(ctx, o.Session, append(blobs, records...)); err != nil {
		return fault.SessionRemote(o.far.Remote(), err)
	}
	return nil
}

// SessionsOn lists the sessions of a session remote, sorted by name.
func (all *Catalog) SessionsOn(ctx context.Context, r control.SessionsOnRequest) (control.SessionsReply, error) {
	reply := control.SessionsReply{Sessions: []control.SessionInfo{}}
	explained := func(err error) error {
		return fault.Subject{Area: fault.List, Verb: "list", Object: "sessions"}.Explain(err)
	}
	m, err := all.MirrorOf(ctx, r.SessionRemote, "")
	if err != nil {
		return reply, explained(err)
	}
	defer all.CloseMirror(m)
	err = m.Find(ctx)
	if err == nil {
		err = m.Checkpoints(ctx, m.Sessions()...)
	}
	if err != nil {
		return reply, explained(fault.SessionRemote(m.Remote(), err))
	}
	for _, name := range m.Sessions() {
		o, err := farOpened(m, name)
		if err == nil && !m.Refs()[thin.Ref(name)].IsZero() { // openAt fetches also the objects of a thin session
			if o, err = all.openAt(ctx, name, r.SessionRemote, false); err == nil {
				defer o.Close()
			}
		}
		if err != nil {
			return reply, explained(err)
		}
		reply.Sessions = append(reply.Sessions, o.farInfo())
	}
	slices.SortFunc(reply.Sessions, func(a, b control.SessionInfo) int { return strings.Compare(a.Name, b.Name) })
	return reply, nil
}

// farInfo returns the description of a session that is read through a mirror. If the mount of the session has died, its
// state is reported as paused.
func (o *opened) farInfo() control.SessionInfo {
	meta, _ := o.far.Meta(o.Session)
	i := control.SessionInfo{Remote: meta.Remote, Base: meta.Base, Parent: meta.From, ParentRemote: meta.FromRemote,
		CopyOf: meta.CopyOf, Profile: meta.Profile}
	i.SessionStatus = control.SessionStatus{Name: o.Session, SessionRemote: o.far.Remote().URL(),
		State: string(meta.Now(time.Now()))}
	// The current lane (the chain of checkpoints of one writer) is the lane whose writer still uses it.
	for _, l := range meta.Lanes {
		if l.Left == nil {
			i.Lane = l.Name
		}
	}
	for _, t := range meta.Transitions {
		i.History = append(i.History, control.Transition{State: string(t.State), Time: t.Time, Actor: t.Actor,
			Reason: t.Reason})
	}
	checkpoints, err := o.Repo.Checkpoints(0)
	if err != nil || len(checkpoints) == 0 {
		return i
	}
	i.Checkpoints = int64(len(checkpoints))
	// The checkpoints are sorted, newest first.
	last := o.Shown(checkpoints[0])
	i.Last = &last
	agent.ShowNewest(&i.SessionStatus, checkpoints[0])
	at := checkpoints[0].Time.In(time.UTC)
	i.LastSync = &at
	return i
}
