package catalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/guard"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/annotate"
	"github.com/artifactfs/artifactfs/session/reffile"
	"github.com/artifactfs/artifactfs/session/transcript"
)

// errFullID means that a request names a commit on a session remote by something else than its full ID.
var errFullID = errors.New("commit on a session remote is not named by its full ID")

// SessionAnnotate begins a thread of annotations on a session, or adds to a thread. The annotation is on the session
// remote when SessionAnnotate returns.
func (rev Reviews) SessionAnnotate(ctx context.Context,
	r control.SessionAnnotateRequest) (control.SessionAnnotateReply, error) {
	reply, err := annotateSession(ctx, rev.Catalog, r)
	if err != nil {
		return reply, fault.ExplainSessionAt("annotate", cmp.Or(r.Thread, r.Path, r.Commit, r.ID, r.Of), err)
	}
	return reply, nil
}

// annotateSession implements SessionAnnotate, without hints in its errors.
func annotateSession(ctx context.Context, all *Catalog,
	r control.SessionAnnotateRequest) (reply control.SessionAnnotateReply, err error) {
	var o *opened
	if r.SessionRemote == "" {
		o, err = all.openSession(ctx, r.Of, true)
	} else { // the trees are fetched only if they are needed
		o, err = all.openAt(ctx, r.Of, r.SessionRemote, r.Path != "")
	}
	if err != nil {
		return reply, err
	}
	defer func() { o.Close() }()
	if o, err = withFiles(ctx, all, o, r); err != nil {
		return reply, err
	}
	act := annotate.Act{Op: annotate.Op(r.Op)}
	act.Text, reply.Redacted = transcript.Redact(r.Text)
	if act.Op == annotate.Open {
		on, err := o.annotationPlace(ctx, r)
		if err != nil {
			return reply, err
		}
		act.On = &on
	}
	notes, err := openAnnotations(ctx, all, o)
	if err != nil {
		return reply, err
	}
	defer notes.close()
	who, err := userOf(ctx, notes.remote, r.Actor)
	if err != nil {
		return reply, notes.explain(err)
	}
	if act.Actor = who.Actor; who.Token != "" { // the server accepts annotations only from the users who make them
		notes.here = nil
	}
	act.Thread = r.Thread
	var t annotate.Thread
	_, err = notes.change(ctx, func(file []byte) ([]byte, error) {
		file, made, thread, err := annotate.Add(file, act, time.Now())
		reply.ID, t = made.ID, thread
		return file, err
	})
	if err == nil {
		reply.Session, reply.Thread = o.Session, shownThread(t)
	}
	return reply, err
}

// withFiles returns o, or a newly opened session in which the files of the request can be found; the caller closes the
// result, and not o. For a mounted session without a repository, withFiles creates one; for a file in the working tree,
// it creates a checkpoint.
func withFiles(ctx context.Context, all *Catalog, o *opened, r control.SessionAnnotateRequest) (*opened, error) {
	now := r.Path != "" && r.ID == "" && r.Commit == ""
	if o.mount == nil || !o.mount.Agent.Active() || o.Repo != nil && !now {
		return o, nil
	}
	if _, err := o.mount.Agent.Open(ctx); err != nil {
		return o, err
	}
	if now {
		if _, _, err := o.mount.Agent.Checkpoint(ctx, session.Idle, ""); err != nil {
			return o, err
		}
	}
	again, err := all.OpenMount(o.mount)
	if err != nil {
		return o, err
	}
	o.Close()
	return again, nil
}

// annotationPlace returns the place of a new thread: the session, a checkpoint, a commit, a file or lines of a file.
func (o *opened) annotationPlace(ctx context.Context, r control.SessionAnnotateRequest) (on annotate.Place, err error) {
	var tree object.ID
	switch {
	case r.ID == "" && r.Commit == "" && r.Path == "":
		return on, nil
	case o.Repo == nil:
		return on, fault.ErrNoCheckpoint
	case r.Commit != "":
		if on.Commit, tree, err = o.annotatedCommit(ctx, r.Commit); err != nil {
			return on, err
		}
	default:
		p, base, err := o.checkpointOrBase(ctx, r.ID)
		if err != nil {
			return on, err
		}
		if on.Checkpoint, tree = string(p.ID), p.Tree; p.ID == "" {
			on.Commit, tree = o.record.Commit, base
		}
	}
	if r.Path == "" {
		return on, nil
	}
	return annotate.On(ctx, &annotatedFiles{o: o}, on, tree, r.Path, r.Line, r.End)
}

// checkpointOrBase returns the checkpoint that the parameter id names. If id is "" and the session has no checkpoint,
// because nothing has changed, it returns the base tree instead.
func (o *opened) checkpointOrBase(ctx context.Context, id string) (p session.Checkpoint, base object.ID, err error) {
	if p, err = o.Find(ctx, id); err != nil && id == "" && lacksCheckpoint(err) {
		p = session.Checkpoint{}
		base, err = o.baseTree(ctx)
	}
	return p, base, err
}

// annotatedCommit returns the ID and the tree of the commit that a request names. On a session remote, the name must be
// the full ID.
func (o *opened) annotatedCommit(ctx context.Context, name string) (id string, tree object.ID, err error) {
	if o.far != nil {
		commit, err := object.ParseIDOf(o.Repo.Format(), name)
		if err != nil {
			return "", tree, errFullID
		}
		if tree, err = o.Repo.TreeOf(commit); err != nil { // no repository on this host has the commit
			if tree, err = o.far.Snapshot(ctx, commit); err != nil {
				return "", tree, fault.SessionRemote(o.far.Remote(), err)
			}
		}
		return name, tree, nil
	}
	// The git directory of a mount has the names of branches, and commits of the mounted remote.
	dir := o.Repo.Dir()
	if o.mount != nil {
		dir = o.mount.GitDir
	}
	if id, err = revision(ctx, dir, name+"^{commit}"); err != nil {
		return "", tree, err
	}
	text, err := revision(ctx, dir, id+"^{tree}")
	if err == nil {
		tree, err = object.ParseIDOf(o.Repo.Format(), text)
	}
	return id, tree, err
}

// revision returns the ID of the object that a revision names in the git directory dir. It returns
// transcript.ErrNoCommit if there is none.
func revision(ctx context.Context, dir, name string) (string, error) {
	repo, err := guard.Open(ctx, dir)
	if err != nil {
		return "", err
	}
	out, err := repo.Output(ctx, "", "rev-parse", "--verify", "--quiet", "--end-of-options", name)
	if gitcmd.Exited(err, 1) {
		err = transcript.ErrNoCommit
	}
	return strings.TrimSpace(string(out)), err
}

// need fetches the contents with the given ids that this host lacks.
func (o *opened) fetchMissing(ctx context.Context, ids ...object.ID) error {
	ids = slices.DeleteFunc(slices.Clone(ids), o.Repo.Owned)
	if err := o.provide(ctx, ids); err != nil {
		return fmt.Errorf("fetch contents: %w", err)
	}
	return nil
}

// annotations is the file with the annotations of a session on its session remote. The session repository on this host
// may have annotations that were made before the session had this session remote; they are merged whenever the file is
// read or written.
type annotations struct {
	file  reffile.File
	store interface {
		Read(ctx context.Context, f reffile.File) (reffile.Version, error)
		Change(ctx context.Context, f reffile.File, message string,
			edit func(now reffile.Version) ([]byte, error)) (reffile.Version, error)
	}
	remote  *transport.Remote // session remote; nil if it is the session repository on this host
	here    []byte            // annotations in the session repository on this host, unless that is the session remote
	explain func(error) error // marks an error as a failure of the session remote
	close   func()
}

// openAnnotations opens the file with the annotations of the session o. The caller calls close.
func openAnnotations(ctx context.Context, all *Catalog, o *opened) (*annotations, error) {
	remote, err := all.openRemote(o.remoteRequest())
	if err != nil {
		return nil, err
	}
	a := &annotations{file: reffile.File{Ref: session.AnnotationsRef(o.Session), Name: annotate.LogFile}, close: func() {},
		explain: func(err error) error { return err }}
	var local *reffile.Local
	if o.far == nil && o.Repo != nil {
		local = &reffile.Local{Repo: o.Repo}
	}
	switch {
	case remote != nil:
		a.store = &reffile.Store{Remote: remote.Remote, Dir: all.State}
		a.remote, a.close = remote.Remote, func() { remote.Close() }
		a.explain = func(err error) error { return fault.SessionRemote(remote, err) }
		if local == nil {
			return a, nil
		}
		v, err := local.Read(ctx, a.file)
		if err != nil {
			a.close()
			return nil, err
		}
		a.here = v.Content
	case local == nil:
		return nil, fault.ErrNoCheckpoint
	default:
		a.store = local
	}
	return a, nil
}

// read returns the contents of the file with the annotations, without changing it.
func (a *annotations) read(ctx context.Context) ([]byte, error) {
	v, err := a.store.Read(ctx, a.file)
	if err != nil {
		return nil, a.explain(err)
	}
	return annotate.Merge(v.Content, a.here), nil
}

// change replaces the contents of the file with the annotations by the result of edit, and returns them. It returns
// errors of edit unchanged.
func (a *annotations) change(ctx context.Context, edit func(file []byte) ([]byte, error)) ([]byte, error) {
	var edited error
	v, err := a.store.Change(ctx, a.file, "annotate\n", func(now reffile.Version) (file []byte, err error) {
		file, edited = edit(annotate.Merge(now.Content, a.here))
		return file, edited
	})
	switch {
	case edited != nil:
		return nil, edited
	case err != nil:
		return nil, a.explain(err)
	}
	return v.Content, nil
}
