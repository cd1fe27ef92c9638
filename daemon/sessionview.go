package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/transcript"
)

var errNothingCarried = errors.New("no checkpoint was made in it yet")

// SessionShow tells all about one point.
func (d *Daemon) SessionShow(ctx context.Context, r control.SessionShowRequest) (control.SessionShowReply, error) {
	reply := control.SessionShowReply{Changes: []control.PathChange{}, LeftOut: []control.LeftOut{}, Staged: []control.PathChange{}}
	o, err := d.openSession(ctx, r.Of, false)
	if err != nil {
		return reply, explainCarry("read session", r.Of, err)
	}
	defer o.close()
	p, err := o.find(ctx, r.ID)
	if err != nil {
		return reply, explainCarry("show checkpoint", r.ID, err)
	}
	reply.Point, reply.Status = o.shown(p), o.info().SessionStatus
	before, err := o.treeBefore(p)
	if err == nil {
		reply.Changes, err = o.changes(ctx, before, p.Tree)
	}
	if err != nil {
		return reply, explainCarry("show checkpoint", string(p.ID), err)
	}
	state, err := o.repo.State(p)
	if err != nil {
		return reply, explainCarry("show checkpoint", string(p.ID), err)
	}
	if head, err := o.treeOf(p.Head); err == nil { // a commit that is not here leaves it untold
		if reply.Staged, err = o.changes(ctx, head, state.Index.Tree); err != nil {
			return reply, explainCarry("show checkpoint", string(p.ID), err)
		}
	}
	reply.LeftOut = leftOut(state.Left)
	if o.mount != nil {
		if now, ok := o.mount.carry.leftOf(p.ID); ok {
			reply.LeftOut = leftOut(now)
		}
	}
	if reply.Records, err = transcript.Count(o.repo, o.session, p.ID); err != nil {
		return reply, explainCarry("show checkpoint", string(p.ID), err)
	}
	return reply, nil
}

// treeBefore is the tree that a point is compared with: of the one before it, or of what the session began with.
func (o *opened) treeBefore(p session.Point) (object.ID, error) {
	if p.Prev != "" {
		before, err := o.repo.Find(string(p.Prev))
		if err == nil {
			return before.Tree, nil
		}
		if !errors.Is(err, session.ErrNoPoint) { // it was dropped
			return object.ID{}, err
		}
	}
	return o.baseTree()
}

// baseTree is the tree of the commit that the session began with; zero: there is none.
func (o *opened) baseTree() (object.ID, error) {
	base, err := o.record.base()
	return base.Tree, err
}

// treeOf is the tree of a commit; zero: of none.
func (o *opened) treeOf(commit object.ID) (object.ID, error) {
	if commit.IsZero() {
		return object.ID{}, nil
	}
	c, err := o.repo.Commit(commit)
	return c.Tree, err
}

// tree reads a tree, which may still be on its way to a mount.
func (o *opened) tree(ctx context.Context, id object.ID) ([]object.TreeEntry, error) {
	entries, err := o.repo.Tree(id)
	if err != nil && o.mount != nil {
		return o.mount.store.Tree(ctx, id)
	}
	return entries, err
}

// changes lists the paths that two trees do not have alike.
func (o *opened) changes(ctx context.Context, from, to object.ID) ([]control.PathChange, error) {
	changes := []control.PathChange{}
	err := diffDirs(ctx, o.tree, from, to, func(path string, from, to object.TreeEntry) error {
		changes = append(changes, pathChange(path, from, to))
		return nil
	})
	return changes, err
}

// pathChange is a difference as git diff --raw has it.
func pathChange(path string, from, to object.TreeEntry) control.PathChange {
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
	case from.Mode != to.Mode && !(file(from.Mode) && file(to.Mode)):
		c.Status = "T"
	}
	return c
}

func modeText(m object.Mode) string { return fmt.Sprintf("%06o", uint32(m)) }

// SessionDiff compares two points, or one with the working tree as it is now.
func (d *Daemon) SessionDiff(ctx context.Context, r control.SessionDiffRequest) (control.SessionDiffReply, error) {
	reply := control.SessionDiffReply{Changes: []control.PathChange{}}
	o, err := d.openSession(ctx, r.Of, false)
	if err != nil {
		return reply, explainCarry("read session", r.Of, err)
	}
	defer o.close()
	var a session.Point
	if r.A != "" { // before a point is made now: "@" is the newest that there was
		if a, err = o.find(ctx, r.A); err != nil {
			return reply, explainCarry("compare checkpoint", r.A, err)
		}
	}
	if r.B == "" && o.mount != nil && o.mount.carry.carries() {
		if _, _, err := o.mount.carry.point(ctx, session.Idle, ""); err != nil {
			return reply, explainCarry("compare with the working tree of", r.Of, err)
		}
		if o, err = o.mount.carry.opened(); err != nil {
			return reply, explainCarry("read session", r.Of, err)
		}
	}
	if o.repo == nil {
		return reply, explainCarry("compare checkpoints of", r.Of, errNothingCarried)
	}
	from, err := a.Tree, error(nil)
	if r.A == "" {
		if from, err = o.baseTree(); err != nil {
			return reply, explainCarry("read session", r.Of, err)
		}
	}
	b, err := o.find(ctx, r.B)
	if errors.Is(err, session.ErrNoPoint) && r.B == "" { // nothing was ever changed
		return reply, nil
	}
	if err != nil {
		return reply, explainCarry("compare checkpoint", r.B, err)
	}
	if reply.Changes, err = o.changes(ctx, from, b.Tree); err != nil {
		return reply, explainCarry("compare checkpoints of", r.Of, err)
	}
	if !r.Stat && !r.Patch || len(reply.Changes) == 0 {
		return reply, nil
	}
	if err := o.provide(ctx, reply.Changes); err != nil {
		return reply, explainCarry("bring contents of", r.Of, err)
	}
	if r.Patch {
		out, err := o.git(ctx, "diff-tree", "-p", "--no-renames", "--no-color", "--no-ext-diff", "--no-textconv", treeish(o, from), b.Tree.String())
		if err != nil {
			return reply, explainCarry("compare checkpoints of", r.Of, err)
		}
		reply.Patch = string(out)
	}
	if r.Stat {
		out, err := o.git(ctx, "diff-tree", "-r", "-z", "--numstat", "--no-renames", "--no-ext-diff", "--no-textconv", treeish(o, from), b.Tree.String())
		if err != nil {
			return reply, explainCarry("compare checkpoints of", r.Of, err)
		}
		addLines(reply.Changes, out)
	}
	return reply, nil
}

// treeish names a tree to git; the empty one has a name, too.
func treeish(o *opened, tree object.ID) string {
	if tree.IsZero() {
		empty, _ := object.Hash(o.repo.Format(), object.Tree, nil)
		return empty.String()
	}
	return tree.String()
}

// provide brings the contents of changed paths to where git reads them: git itself would ask for each of them.
func (o *opened) provide(ctx context.Context, changes []control.PathChange) error {
	if o.mount == nil {
		return nil
	}
	var ids []object.ID
	for _, c := range changes {
		for _, side := range [][2]string{{c.OldMode, c.Old}, {c.NewMode, c.New}} {
			id, err := object.ParseID(side[1])
			if err == nil && side[0] != modeText(object.ModeGitlink) && side[0] != modeText(object.ModeDir) && !o.repo.Owned(id) { // a submodule's commit is of another repository
				ids = append(ids, id)
			}
		}
	}
	return o.mount.store.Provide(ctx, ids, nil)
}

// git runs stock git in the session's repository.
func (o *opened) git(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = o.repo.Dir()
	cmd.Env = append(os.Environ(), "GIT_DIR="+o.repo.Dir(), "GIT_TERMINAL_PROMPT=0", "LC_ALL=C")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return stdout.Bytes(), nil
}

// addLines adds what `git diff-tree --numstat -z` says: "ADDED\tREMOVED\tPATH\0", or dashes for what is binary.
func addLines(changes []control.PathChange, out []byte) {
	at := map[string]int{}
	for i, c := range changes {
		at[c.Path] = i
	}
	for line := range strings.SplitSeq(string(out), "\x00") {
		added, rest, ok1 := strings.Cut(line, "\t")
		removed, path, ok2 := strings.Cut(rest, "\t")
		i, known := at[path]
		if !ok1 || !ok2 || !known {
			continue
		}
		changes[i].Added, changes[i].Removed = lines(added), lines(removed)
	}
}

func lines(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return -1
	}
	return n
}
