package catalog

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/remotes"
	"github.com/artifactfs/artifactfs/host/session/promotion"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/mirror"
	"github.com/artifactfs/artifactfs/session/thin"
)

// SessionPromote pushes the commits of a session to a branch of the mounted remote or of another repository.
func (all *Catalog) SessionPromote(ctx context.Context,
	r control.SessionPromoteRequest) (reply control.SessionPromoteReply, err error) {
	o, p, err := all.at(ctx, r.Of, r.SessionRemote, r.ID)
	if o != nil {
		defer func() { o.Close() }()
	}
	if err == nil {
		s := all.source(o)
		defer s.close()
		if err = s.know(ctx, p); err == nil {
			reply, err = promotion.Promote(ctx, &s.Session, p, r, promotion.Options{Dir: all.State,
				Open: func(r control.MountRequest) (*thin.Remote, error) {
					remote, _, err := all.Remotes.Session(r)
					return remote, err
				}})
		}
	}
	if err != nil {
		return reply, fault.ExplainSessionAt("promote", "session "+r.Of, err)
	}
	return reply, nil
}

// SessionSummary returns a summary of the changes of a session: commits, files, notes, facts and prompts.
func (all *Catalog) SessionSummary(ctx context.Context,
	r control.SessionSummaryRequest) (reply control.SessionSummaryReply, err error) {
	o, p, err := all.at(ctx, r.Of, r.SessionRemote, r.ID)
	if o != nil {
		defer func() { o.Close() }()
	}
	switch {
	case err == nil:
		s := all.source(o)
		defer s.close()
		if err = s.know(ctx, p); err == nil {
			reply, err = promotion.Summarise(ctx, &s.Session, p, r)
		}
	case o != nil && lacksCheckpoint(err) && r.ID == "": // nothing was changed in the session yet
		return promotion.NoSummary(o.Session), nil
	}
	if err != nil {
		return reply, fault.ExplainSessionAt("summarise", "session "+r.Of, err)
	}
	return reply, nil
}

// at opens a session and finds the checkpoint id. If id is "" and the session is mounted, it creates a checkpoint of
// the present state. The caller closes the session, also after an error, unless the session is nil.
func (all *Catalog) at(ctx context.Context, of, remote, id string) (*opened, session.Checkpoint, error) {
	o, err := all.openAt(ctx, of, remote, true)
	if err != nil {
		return nil, session.Checkpoint{}, err
	}
	if id == "" && o.mount != nil && o.mount.Agent.Active() {
		if _, _, err := o.mount.Agent.Checkpoint(ctx, session.Idle, ""); err != nil {
			return o, session.Checkpoint{}, err
		}
		now, err := all.OpenMount(o.mount)
		if err != nil {
			return o, session.Checkpoint{}, err
		}
		// The new checkpoint is visible only in a session that is opened after the checkpoint was made.
		o.Close()
		o = now
	}
	p, err := o.Find(ctx, id)
	if err == nil && o.far != nil {
		err = o.farBase(ctx)
	}
	return o, p, err
}

// source is a session in the form that package promotion reads.
type source struct {
	promotion.Session
	all *Catalog
	o   *opened
	// mirror from which contents of a session that is not mounted are fetched; nil until it is needed
	mirror *mirror.Mirror
}

// source returns the session o in the form that package promotion reads. The caller must close the source before it
// closes o.
func (all *Catalog) source(o *opened) *source {
	s := &source{all: all, o: o}
	s.Session = promotion.Session{
		Name: o.Session, Record: o.record, Repo: o.Repo, Far: o.far != nil, Tree: o.tree, Changes: o.changes, Find: o.Find,
		Request: o.remoteRequest(),
		Provide: s.provide, Objects: s.objects, State: s.state,
	}
	s.Request.Remote = cmp.Or(s.Request.Remote, o.record.Remote)
	if o.mount != nil {
		s.GitDir = o.mount.GitDir
	}
	return s
}

// close closes the mirror, if there is one.
func (s *source) close() {
	if s.mirror != nil {
		s.all.CloseMirror(s.mirror)
	}
}

// know sets promotion.Session.Known to commits of the mounted remote: those of the refs below refs/remotes at the
// checkpoint p. It is needed for a session that is read from a session remote, because a session remote that has the
// history of the mounted remote sends these commits like those of the session.
func (s *source) know(ctx context.Context, p session.Checkpoint) error {
	if s.o.far == nil {
		return nil
	}
	s.Commits = func(ctx context.Context, ids []object.ID) error {
		if err := s.o.far.Commits(ctx, s.Name, ids); err != nil {
			return fault.SessionRemote(s.o.far.Remote(), err)
		}
		return nil
	}
	state, err := s.state(ctx, p)
	layout, _ := s.o.layout()
	for _, ref := range state.Remote {
		// A branch that the session pushes to the mounted remote under its own name points to commits of the session.
		_, branch, ok := strings.Cut(strings.TrimPrefix(ref.Name, "refs/remotes/"), "/")
		if own := "refs/heads/" + branch; !ok || layout.There(own) != own {
			s.Known = append(s.Known, ref.ID)
		}
	}
	return err
}

// provide implements promotion.Session.Provide.
func (s *source) provide(ctx context.Context, ids []object.ID) error {
	switch {
	case s.o.mount != nil && s.o.mount.Owned != nil:
		return s.o.mount.Owned.Provide(ctx, ids, nil)
	case s.o.mount != nil:
		return s.o.mount.Store.Provide(ctx, ids, nil)
	case s.o.far != nil:
		return s.o.provide(ctx, ids)
	}
	if s.mirror == nil {
		r := s.Request
		if at, _ := remotes.SessionURL(r); at == "" {
			r.SessionOptions = control.SessionOptions{Remote: control.RemoteOrigin}
		}
		m, err := s.all.mirrorFor(ctx, r)
		if err != nil {
			return err
		}
		s.mirror = m
		// Find reads the URL of the mounted remote, from which contents are fetched that the session remote lacks.
		if err := m.Find(ctx, s.Name); err != nil {
			return fault.SessionRemote(m.Remote(), err)
		}
	}
	if err := s.mirror.Contents(ctx, s.Name, ids); err != nil {
		return fault.SessionRemote(s.mirror.Remote(), err)
	}
	return nil
}

// objects implements promotion.Session.Objects: it returns the git directory of the mount and the mirror, if they
// exist.
func (s *source) objects() (dirs []string) {
	git := filepath.Join(s.o.home, "git")
	if s.o.mount != nil {
		git = s.o.mount.GitDir
	}
	// The git directory of the mount has commits that git has fetched.
	if _, err := os.Lstat(git); err == nil && s.o.far == nil {
		dirs = append(dirs, git)
	}
	if s.mirror != nil {
		dirs = append(dirs, s.mirror.Dir())
	}
	return dirs
}

// state implements promotion.Session.State.
func (s *source) state(ctx context.Context, p session.Checkpoint) (session.State, error) {
	if s.o.far != nil {
		if err := s.o.farState(ctx, p); err != nil {
			return session.State{}, err
		}
	}
	return s.o.Repo.State(p)
}
