package catalog

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/session/agent"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session"
)

// isNewest reports whether name, the name of a checkpoint in a request, stands for the newest checkpoint.
func isNewest(name string) bool { return name == "" || name == "@" }

// lacksCheckpoint reports whether err means that the newest checkpoint of a session was not found, because the session
// has no checkpoint or no repository.
func lacksCheckpoint(err error) bool {
	return errors.Is(err, session.ErrNoCheckpoint) || errors.Is(err, fault.ErrNoCheckpoint)
}

// keepNewest creates a checkpoint of the present state of a session, if a request needs that state: name, the name of
// the requested checkpoint, is "" and not "@" (the newest existing checkpoint), at is "" (the session is not read from
// a session remote), and the session is mounted on this host for writing and has changed. Otherwise keepNewest does
// nothing, so that a request that reads a session does not create the session on its session remote.
func (all *Catalog) keepNewest(ctx context.Context, of, at, name string) error {
	if at != "" || name != "" {
		return nil
	}
	m, err := all.Mounts.Mounted(ctx, of)
	if err != nil || m == nil { // the caller looks the session up again, and returns the error
		return nil
	}
	return agent.KeepNewest(ctx, m.Agent)
}

// addRepo opens a temporary repository for a session that has none, so that a session without changes can be compared.
// The objects of the mounted remote can be read in it. Close removes the repository.
func (o *opened) addRepo(all *Catalog) error {
	if o.Repo != nil {
		return nil
	}
	dir, remove, err := disk.TempDir(all.State, "unchanged")
	if err != nil {
		return err
	}
	base, _ := o.record.Base()
	repo, err := session.OpenRepo(dir, session.RepoOptions{Format: base.Format, Session: o.Session,
		Remote: o.record.Remote,
		Borrow: []string{filepath.Join(all.State, "stores", statedir.StoreName(o.record.Remote), "git", "objects")}})
	if err != nil {
		return errors.Join(err, remove())
	}
	release := o.release
	o.Repo, o.release = repo, func() {
		if err := errors.Join(repo.Close(), remove()); err != nil {
			all.Log.Sugar().Warnf("remove the repository of an unchanged session: %v", err)
		}
		if release != nil {
			release()
		}
	}
	return nil
}

// state returns the checkpoint that name refers to. If the newest checkpoint is requested and the session has none,
// because nothing has changed, the result has no ID, and the tree and the commit with which the session started. o.Repo
// must not be nil.
func (o *opened) state(ctx context.Context, name string) (session.Checkpoint, error) {
	p, err := o.Find(ctx, name)
	if !isNewest(name) || !lacksCheckpoint(err) {
		return p, err
	}
	ref, commit := o.record.First()
	p = session.Checkpoint{Session: o.Session, Branch: ref}
	if commit != "" {
		if p.Head, err = object.ParseID(commit); err != nil {
			return p, err
		}
	}
	if start := o.record.Checkpoint; start != nil { // the session was forked from a checkpoint
		p.Tree, err = object.ParseID(start.Tree)
		return p, err
	}
	p.Tree, err = o.baseTree(ctx)
	return p, err
}

// metadata returns the metadata of the session. For a session that was never changed, they are derived from the record.
func (o *opened) metadata() (session.Meta, error) {
	if o.far != nil {
		m, _ := o.far.Meta(o.Session)
		return m, nil
	}
	m, _, err := session.ReadMeta(o.Repo, o.Session)
	if errors.Is(err, session.ErrNoMeta) {
		r := o.record
		m = session.Meta{Session: o.Session, Remote: r.Remote, Ref: r.Ref, Base: r.Commit, Format: r.Format, Began: r.Began}
		if p := r.Checkpoint; p != nil && p.Parent != "" && p.Parent != o.Session {
			m.From = p.Parent + " " + p.ID
		}
		return m, nil
	}
	return m, err
}

// shownState converts a result of the method state into the form of a reply.
func (o *opened) shownState(p session.Checkpoint) control.Checkpoint {
	if p.ID != "" {
		return o.Shown(p)
	}
	s := control.Checkpoint{Session: p.Session, Tree: p.Tree.String(), Branch: statedir.ShortRef(p.Branch)}
	if !p.Head.IsZero() {
		s.Head = p.Head.String()
	}
	return s
}
