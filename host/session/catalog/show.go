package catalog

import (
	"context"
	"errors"
	"fmt"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/treediff"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/transcript"
)

// SessionShow returns the details of a checkpoint: its changes, staged paths, links and transcript records. If r.ID is
// "" and there are changes that no checkpoint contains, it creates a checkpoint first.
func (all *Catalog) SessionShow(ctx context.Context, r control.SessionShowRequest) (control.SessionShowReply, error) {
	reply := control.SessionShowReply{Changes: []control.PathChange{}, LeftOut: []control.LeftOut{},
		Staged: []control.PathChange{}, Since: []control.TranscriptRecord{}}
	if err := all.keepNewest(ctx, r.Of, r.SessionRemote, r.ID); err != nil {
		return reply, fault.ExplainSession("make a checkpoint of", r.Of, err)
	}
	o, err := all.openAt(ctx, r.Of, r.SessionRemote, true)
	if err != nil {
		return reply, fault.ExplainSessionAt("read session", r.Of, err)
	}
	defer o.Close()
	p, err := o.Find(ctx, r.ID)
	if isNewest(r.ID) && errors.Is(err, session.ErrNoCheckpoint) {
		err = fault.ErrNoCheckpoint
	}
	if err != nil {
		return reply, fault.ExplainSession("show checkpoint", r.ID, err)
	}
	reply.Checkpoint = o.Shown(p)
	info := o.info
	if o.far != nil {
		info = o.farInfo
	}
	i := info()
	reply.Status, reply.Profile = i.SessionStatus, i.Profile
	if layout, ok := o.layout(); ok && p.Branch != "" {
		reply.RemoteBranch = layout.There(p.Branch)
	}
	// The changes of a checkpoint are the differences between its tree and the tree of the previous checkpoint.
	before, err := o.treeBefore(ctx, p)
	if err == nil {
		reply.Changes, err = o.changes(ctx, before, p.Tree)
	}
	if err != nil {
		return reply, fault.ExplainSession("show checkpoint", string(p.ID), err)
	}
	o.addCommands(&reply)
	if o.far != nil {
		if err := o.farState(ctx, p); err != nil {
			return reply, fault.ExplainSessionAt("show checkpoint", string(p.ID), err)
		}
	}
	state, err := o.Repo.State(p)
	if err != nil {
		return reply, fault.ExplainSession("show checkpoint", string(p.ID), err)
	}
	if head, err := o.Repo.TreeOf(p.Head); err == nil { // without the commit on this host, the reply has no staged paths
		if reply.Staged, err = o.changes(ctx, head, state.Index.Tree); err != nil {
			return reply, fault.ExplainSession("show checkpoint", string(p.ID), err)
		}
	}
	reply.LeftOut = LeftOut(state.Left)
	// The agent may know of files that are excluded now but were not excluded when the checkpoint was made.
	if o.mount != nil {
		if now, ok := o.mount.Agent.LeftOut(p.ID); ok {
			reply.LeftOut = LeftOut(now)
		}
	}
	lines, _, err := transcript.Read(o.Repo, o.Session, o.contents(ctx))
	if err != nil {
		return reply, fault.ExplainSession("show checkpoint", string(p.ID), err)
	}
	// A record is stored with the checkpoint that was the newest one when the record was made. Therefore the records that
	// are stored with the previous checkpoint describe the actions that led to this checkpoint.
	for _, l := range lines {
		if l.Checkpoint == p.ID {
			reply.Records++
		}
		if l.Checkpoint == p.Prev {
			reply.Since = append(reply.Since, shownRecord(l))
		}
	}
	reply.Recorded = int64(len(reply.Since))
	return reply, nil
}

// treeBefore returns the tree with which the checkpoint p is compared. This is the tree of the previous checkpoint, or
// the base tree if there is no previous checkpoint or if gc has dropped it.
func (o *opened) treeBefore(ctx context.Context, p session.Checkpoint) (object.ID, error) {
	// The previous checkpoint may be in another segment.
	if p.Prev != "" {
		before, err := o.Repo.Find(string(p.Prev))
		if err == nil {
			return before.Tree, nil
		}
		if !errors.Is(err, session.ErrNoCheckpoint) { // gc has dropped the previous checkpoint
			return object.ID{}, err
		}
	}
	return o.baseTree(ctx)
}

// baseTree returns the base tree of the session, or the zero id if the session has no base commit.
func (o *opened) baseTree(ctx context.Context) (object.ID, error) {
	if o.far != nil {
		if o.record.Commit == "" {
			return object.ID{}, nil
		}
		base, err := object.ParseID(o.record.Commit)
		if err == nil {
			// The base commit of a session on a session remote may have to be fetched first.
			err = o.farBase(ctx)
		}
		if err != nil {
			return object.ID{}, err
		}
		return o.Repo.TreeOf(base)
	}
	base, err := o.record.Base()
	return base.Tree, err
}

// tree returns the entries of a tree. If the session is mounted, tree waits for trees that are still being fetched.
func (o *opened) tree(ctx context.Context, id object.ID) ([]object.TreeEntry, error) {
	if o.far != nil {
		return o.farTree(ctx, id)
	}
	entries, err := o.Repo.Tree(id)
	// The repository lacks trees of the mounted remote that are still being fetched.
	if err != nil && o.mount != nil {
		return o.mount.Store.Tree(ctx, id)
	}
	return entries, err
}

// changes returns the paths at which two trees of the session differ.
func (o *opened) changes(ctx context.Context, from, to object.ID) ([]control.PathChange, error) {
	return changesIn(ctx, o.tree, from, to)
}

// changesIn returns the paths at which two trees differ. The function read returns the entries of a tree.
func changesIn(ctx context.Context, read treediff.Reader, from, to object.ID) ([]control.PathChange, error) {
	changes := []control.PathChange{}
	err := treediff.WithDirs(ctx, read, from, to, func(path string, from, to object.TreeEntry) error {
		changes = append(changes, PathChange(path, from, to))
		return nil
	})
	return changes, err
}

// PathChange returns the change of a path from one tree entry to another, with the fields that git diff --raw prints.
func PathChange(path string, from, to object.TreeEntry) control.PathChange {
	c := control.PathChange{Path: path, Status: "M"}
	if from.Mode != 0 {
		c.OldMode, c.Old = modeText(from.Mode), from.ID.String()
	}
	if to.Mode != 0 {
		c.NewMode, c.New = modeText(to.Mode), to.ID.String()
	}
	file := func(m object.Mode) bool { return m == object.ModeFile || m == object.ModeExec }
	switch {
	case from.Mode == 0:
		c.Status = "A"
	case to.Mode == 0:
		c.Status = "D"
	// Git reports the status T if the type of the entry changes, for example from a file to a symbolic link. A change
	// between an executable and another file does not change the type, so its status is M.
	case from.Mode != to.Mode && !(file(from.Mode) && file(to.Mode)):
		c.Status = "T"
	}
	return c
}

// modeText returns the mode of a tree entry as six octal digits, as git prints it.
func modeText(m object.Mode) string { return fmt.Sprintf("%06o", uint32(m)) }
