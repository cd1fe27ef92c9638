package catalog

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/diff"
	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/treediff"
	"github.com/artifactfs/artifactfs/host/fault"
)

// SessionDiff compares two checkpoints, of one session or of two sessions, or a checkpoint with the current working
// tree.
func (all *Catalog) SessionDiff(ctx context.Context, r control.SessionDiffRequest) (control.SessionDiffReply, error) {
	reply := control.SessionDiffReply{Changes: []control.PathChange{}}
	o, err := all.openAt(ctx, r.Of, r.SessionRemote, true)
	if err != nil {
		return reply, fault.ExplainSessionAt("read session", r.Of, err)
	}
	defer func() { o.Close() }()
	p := pair{a: o, b: o}
	// The checkpoints A and B of the request may belong to different sessions.
	if r.AOf != "" && (r.AOf != r.Of || r.ARemote != r.SessionRemote) {
		if p.a, err = all.openAt(ctx, r.AOf, r.ARemote, true); err != nil {
			return reply, fault.ExplainSessionAt("read session", r.AOf, err)
		}
		defer p.a.Close()
	}
	var from object.ID
	// Look up r.A before a checkpoint of the current state is made, so that the name "@" stands for the newest checkpoint
	// before that one.
	if r.A != "" {
		if err := p.a.addRepo(all); err != nil {
			return reply, fault.ExplainSession("read session", r.Of, err)
		}
		a, err := p.a.state(ctx, r.A)
		if err != nil {
			return reply, fault.ExplainSession("compare checkpoint", r.A, err)
		}
		from = a.Tree
	}
	// To compare the working tree, make a checkpoint of its current state.
	if r.B == "" && o.mount != nil && o.mount.Agent.Active() {
		if err := all.keepNewest(ctx, r.Of, r.SessionRemote, r.B); err != nil {
			return reply, fault.ExplainSession("compare with the working tree of", r.Of, err)
		}
		now, err := all.OpenMount(o.mount)
		if err != nil {
			return reply, fault.ExplainSession("read session", r.Of, err)
		}
		// The new checkpoint is visible only in a session that is opened after the checkpoint was made, so open the session
		// again.
		o.Close()
		if o, p.b = now, now; r.AOf == "" {
			p.a = now
		}
	}
	for _, side := range []*opened{p.a, o} {
		if err := side.addRepo(all); err != nil {
			return reply, fault.ExplainSession("read session", side.Session, err)
		}
	}
	if r.A == "" {
		if from, err = p.a.baseTree(ctx); err != nil {
			return reply, fault.ExplainSessionAt("read session", r.Of, err)
		}
	}
	b, err := o.state(ctx, r.B)
	if err != nil {
		return reply, fault.ExplainSession("compare checkpoint", r.B, err)
	}
	if reply.Changes, err = changesIn(ctx, p.tree, from, b.Tree); err != nil {
		return reply, fault.ExplainSessionAt("compare checkpoints of", r.Of, err)
	}
	if err := p.lines(ctx, &reply, from, b.Tree, r.Patch, r.Stat); err != nil {
		return reply, fault.ExplainSessionAt("compare checkpoints of", r.Of, err)
	}
	return reply, nil
}

// pair has the session of the old tree, a, and the session of the new tree, b, of a comparison. Both may be the same
// session.
type pair struct{ a, b *opened }

// tree returns the entries of a tree of one of the two sessions. If neither repository on this host has the tree, it is
// requested from a remote.
func (p pair) tree(ctx context.Context, id object.ID) ([]object.TreeEntry, error) {
	for _, o := range []*opened{p.a, p.b} {
		if entries, err := o.Repo.Tree(id); err == nil {
			return entries, nil
		}
	}
	entries, err := p.b.tree(ctx, id)
	if err != nil && p.a != p.b {
		if entries, errA := p.a.tree(ctx, id); errA == nil {
			return entries, nil
		}
	}
	return entries, err
}

// lines adds the differences of contents between two trees to the reply, as a patch or as the numbers of added and
// removed lines. It fetches the contents of the changed paths first.
func (p pair) lines(ctx context.Context, reply *control.SessionDiffReply, from, to object.ID, patch, stat bool) error {
	if !patch && !stat || len(reply.Changes) == 0 {
		return nil
	}
	if err := p.provide(ctx, reply.Changes); err != nil {
		return fmt.Errorf("fetch contents: %w", err)
	}
	f := p.b.Repo.Format()
	if patch {
		out, err := p.git().Output(ctx, "", "diff-tree", "-p", "--no-renames", "--no-color", "--no-ext-diff",
			"--no-textconv", treediff.Name(f, from), treediff.Name(f, to))
		if err != nil {
			return err
		}
		reply.Patch = string(out)
	}
	if stat {
		return addLines(ctx, p.git(), f, reply.Changes, from, to)
	}
	return nil
}

// provide fetches the contents of the changed paths in one or two requests, whereas git would send one request for each
// path.
func (p pair) provide(ctx context.Context, changes []control.PathChange) error {
	var old, now []object.ID
	for _, c := range changes {
		old, now = appendBlob(old, c.OldMode, c.Old), appendBlob(now, c.NewMode, c.New)
	}
	// The session repositories have the contents that the sessions own.
	here := func(id object.ID) bool { return p.a.Repo.Owned(id) || p.b.Repo.Owned(id) }
	old, now = slices.DeleteFunc(old, here), slices.DeleteFunc(now, here)
	// One request suffices if both trees belong to the same session.
	if p.a == p.b {
		return p.a.provide(ctx, append(old, now...))
	}
	if err := p.a.provide(ctx, old); err != nil {
		return err
	}
	return p.b.provide(ctx, now)
}

// appendBlob appends the object ID text to ids, if mode is that of a file. It skips directories, and the commits of
// submodules, which belong to another repository.
func appendBlob(ids []object.ID, mode, text string) []object.ID {
	id, err := object.ParseID(text)
	if err != nil || mode == modeText(object.ModeGitlink) || mode == modeText(object.ModeDir) {
		return ids
	}
	return append(ids, id)
}

// provide fetches those of the contents ids, which trees of the session name, that are missing on this host. If the
// session is on this host but not mounted, it does nothing, because git fetches each missing object when it reads the
// object.
func (o *opened) provide(ctx context.Context, ids []object.ID) error {
	switch {
	case len(ids) == 0:
		return nil
	case o.mount != nil:
		return o.mount.Store.Provide(ctx, ids, nil)
	case o.far != nil:
		if err := o.far.Contents(ctx, o.Session, ids); err != nil {
			return fault.SessionRemote(o.far.Remote(), err)
		}
	}
	return nil
}

// git returns the repository of b, with the objects of a as alternates.
func (p pair) git() gitcmd.Repo {
	r := gitcmd.Repo{Dir: p.b.Repo.Dir()}
	if p.a != p.b {
		r.Objects = []string{filepath.Join(p.a.Repo.Dir(), "objects")}
	}
	return r
}

// addLines adds to changes the numbers of lines that differ between two trees.
func addLines(ctx context.Context, git gitcmd.Repo, f object.Format, changes []control.PathChange,
	from, to object.ID) error {
	out, err := git.Output(ctx, "", "diff-tree", "-r", "-z", "--numstat", "--no-renames", "--no-ext-diff", "--no-textconv",
		treediff.Name(f, from), treediff.Name(f, to))
	if err != nil {
		return err
	}
	at := map[string]int{}
	for i, c := range changes {
		at[c.Path] = i
	}
	for _, c := range diff.Counts(out) {
		if i, known := at[c.Path]; known {
			changes[i].Added, changes[i].Removed = c.Added, c.Removed
		}
	}
	return nil
}
