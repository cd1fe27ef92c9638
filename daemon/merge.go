package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/internal/gitcmd"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/session"
)

// A merge brings what another session has made into the working tree:
//
//	adopt               the other checkpoint's trees
//	checkpoint          what is here; it undoes the merge
//	git merge-tree      three trees: the one that both began with, ours, theirs. Contents of paths that both changed are
//	                    brought before, in one request; all else is merged by names
//	checkpoint          what git made of it, with the stages of conflicts in its index, for this host alone
//	restore --staged    of the paths that differ: files are grafted, and a kill in the middle is mended as for any restore
//
// HEAD and branches stay. What came from the other session is staged, as git merge --squash leaves it.

// merging is one merge under way.
type merging struct {
	m      *mount
	repo   *session.Repo
	theirs adopted
	now    session.Point
	base   object.ID // tree
	mergedTrees
	objects string // directory that git writes to
}

// Merge brings the work of another session into a mount.
func (d *Daemon) Merge(ctx context.Context, r control.MergeRequest, _ func(control.Progress)) (control.MergeReply, error) {
	m, ok := d.find(r.Dir)
	if !ok || !m.served() {
		return control.MergeReply{}, fault.NotMounted("merge", r.Dir)
	}
	reply, err := m.merge(ctx, r)
	if err != nil {
		return control.MergeReply{}, fault.ExplainSessionAt("merge", "session "+r.Of, err)
	}
	return reply, nil
}

func (m *mount) merge(ctx context.Context, r control.MergeRequest) (reply control.MergeReply, err error) {
	if !m.writable() {
		return reply, fault.ErrReadOnly
	}
	if !m.triedGit(ctx) {
		return reply, errors.Join(ctx.Err(), fault.ErrNoGitDir)
	}
	w := &merging{m: m}
	if w.theirs, err = m.adopt(ctx, r.Of, r.SessionRemote, r.ID); err != nil {
		return reply, err
	}
	if w.repo, err = m.agent.Open(ctx); err != nil {
		return reply, err
	}
	name := r.Of + "@" + string(w.theirs.point.ID)
	if w.now, _, err = m.agent.Capture(ctx, session.Restore, "before the merge of "+name); err != nil {
		return reply, err
	}
	state, err := w.repo.State(w.now)
	if err != nil {
		return reply, err
	}
	if slices.ContainsFunc(state.Index.Special, func(e session.IndexEntry) bool { return e.Stage != 0 }) {
		return reply, fault.ErrConflicts
	}
	if w.base, err = w.commonTree(ctx); err != nil {
		return reply, err
	}
	if err := w.provide(ctx); err != nil {
		return reply, err
	}
	if err := w.mergeTrees(ctx, name); err != nil {
		return reply, err
	}
	o, err := m.openedSession()
	if err != nil {
		return reply, err
	}
	defer o.close()
	reply = control.MergeReply{Dir: m.dir, Theirs: o.shown(w.theirs.point), Base: treeish(w.repo.Format(), w.base), Changes: []control.PathChange{},
		Conflicts: w.conflicted(), Kept: []string{}, Messages: append([]string{}, w.messages...)}
	paths, merged, err := w.record(ctx, state)
	if err != nil || len(paths) == 0 {
		return reply, err
	}
	done, err := m.restore(ctx, control.RestoreRequest{Dir: m.dir, ID: string(merged.ID), Paths: paths, Staged: true, Nonce: r.Nonce})
	if err != nil {
		return reply, err
	}
	before := o.shown(w.now)
	reply.Before, reply.Changes, reply.Kept = &before, done.Changes, done.Kept
	return reply, nil
}

// commonTree is the tree of the checkpoint at which one of the sessions, or both, left the other, or of the newest commit
// that both began with.
func (w *merging) commonTree(ctx context.Context) (object.ID, error) {
	m := w.m
	ours, _, err := session.ReadMeta(w.repo, m.session)
	if err != nil {
		return object.ID{}, err
	}
	parent, id, _ := strings.Cut(w.theirs.meta.From, " ")
	ourParent, _, _ := strings.Cut(ours.From, " ")
	switch {
	case parent == m.session:
		if p, err := w.repo.Find(id); err == nil { // else it was dropped
			return p.Tree, nil
		}
	case ourParent != "" && (ourParent == w.theirs.point.Session || ours.From == w.theirs.meta.From):
		base, err := w.repo.Ref(session.BaseRef(m.session))
		if err != nil {
			return object.ID{}, err
		}
		if p, err := w.repo.PointAt(base); err == nil {
			return p.Tree, nil
		}
	}
	return w.commonCommit(ctx)
}

// commonCommit is the tree of the commit that both sessions began with, or of the merge base of the two.
func (w *merging) commonCommit(ctx context.Context) (object.ID, error) {
	ours, theirs := w.m.record.Commit, w.theirs.meta.Base
	if ours == "" || theirs == "" {
		return object.ID{}, nil
	}
	if ours != theirs {
		out, err := w.git(ctx, w.m.gitPath(), nil, nil, "merge-base", ours, theirs)
		if err != nil {
			return object.ID{}, fmt.Errorf("find the commit that both sessions stand on: %w", err)
		}
		ours = strings.TrimSpace(string(out))
	}
	out, err := w.git(ctx, w.m.gitPath(), nil, nil, "rev-parse", ours+"^{tree}")
	if err != nil {
		return object.ID{}, err
	}
	return object.ParseID(strings.TrimSpace(string(out)))
}

// provide brings the contents that git is going to compare.
func (w *merging) provide(ctx context.Context) error {
	ids, _, err := contentsToMerge(ctx, w.m.view.Tree, w.base, w.now.Tree, w.theirs.point.Tree)
	ids = slices.DeleteFunc(ids, w.repo.Owned)
	if err != nil || len(ids) == 0 {
		return err
	}
	return w.m.owned.Provide(ctx, ids, nil)
}

// mergeTrees has git merge, in a repository that is thrown away: what it makes goes to the session's objects.
func (w *merging) mergeTrees(ctx context.Context, name string) error {
	f := w.repo.Format()
	commits, ours, theirs, err := commitsToMerge(f, w.base, w.now.Tree, w.theirs.point.Tree)
	if err != nil {
		return err
	}
	if err := w.repo.Write(ctx, commits); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(w.m.daemon.state, "merge-*.tmp")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	w.objects = filepath.Join(dir, "objects")
	config := "[core]\n\trepositoryformatversion = 1\n\tbare = true\n[extensions]\n\tobjectFormat = " + f.String() + "\n"
	if f == object.SHA1 {
		config = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"
	}
	for file, text := range map[string]string{"HEAD": ours.String() + "\n", "refs/heads/" + name: theirs.String() + "\n", "objects/x": "", "config": config} {
		if err = os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o755); err == nil {
			err = os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600)
		}
		if err != nil {
			return err
		}
	}
	out, err := w.git(ctx, dir, nil, nil, "merge-tree", "--write-tree", "-z", "--messages", "HEAD", name)
	if err != nil && !gitcmd.Exited(err, 1) {
		return err
	}
	if w.mergedTrees, err = parseMerged(out); err != nil {
		return err
	}
	return w.take(ctx)
}

// take keeps what git has written.
func (w *merging) take(ctx context.Context) error {
	files, err := filepath.Glob(filepath.Join(w.objects, "??", "*"))
	if err != nil {
		return err
	}
	loose := odb.NewLoose(w.objects, w.repo.Format())
	var out []odb.Outgoing
	for _, file := range files {
		id, err := object.ParseID(filepath.Base(filepath.Dir(file)) + filepath.Base(file))
		if err != nil {
			continue // a temporary file
		}
		t, content, err := loose.Get(id, maxMerged)
		if err != nil {
			return fmt.Errorf("keep what git merged: %w", err)
		}
		o, err := session.Outgoing(w.repo.Format(), t, content)
		if err != nil {
			return err
		}
		out = append(out, o)
	}
	if err := w.repo.Write(ctx, out); err != nil {
		return err
	}
	return w.m.sawObjects(w.repo)
}

// maxMerged is the size in bytes of the largest file that can be merged.
const maxMerged = 512 << 20

// record makes a checkpoint of what git made, which this host alone has, and lists the paths that differ from what is there.
func (w *merging) record(ctx context.Context, state session.State) (paths []string, p session.Point, err error) {
	conflicted := w.conflicted()
	var edits bytes.Buffer
	zero := strings.Repeat("0", len(w.result.String()))
	there := map[string]bool{}
	err = diffTrees(ctx, w.m.view.Tree, w.now.Tree, w.result, func(path string, from, to object.TreeEntry) error {
		paths = append(paths, path)
		there[path] = true
		switch {
		case slices.Contains(conflicted, path):
		case to.Mode == 0:
			fmt.Fprintf(&edits, "0 %s\t%s\x00", zero, path)
		default:
			fmt.Fprintf(&edits, "%o %s\t%s\x00", uint32(to.Mode), to.ID, path)
		}
		return nil
	})
	if err != nil {
		return nil, p, err
	}
	entry := entriesOf(ctx, w.m.view.Tree, w.result)
	for _, path := range conflicted {
		fmt.Fprintf(&edits, "0 %s\t%s\x00", zero, path)
		if there[path] {
			continue
		}
		if e, err := entry(path); err != nil {
			return nil, p, err
		} else if e.Mode != 0 {
			paths = append(paths, path)
		}
	}
	if len(paths) == 0 {
		return nil, p, nil
	}
	if state.Index.Tree, err = w.editIndex(ctx, state.Index.Tree, edits.Bytes()); err != nil {
		return nil, p, err
	}
	state.Index.Special = slices.DeleteFunc(slices.Clone(state.Index.Special), func(e session.IndexEntry) bool { return slices.Contains(paths, e.Path) })
	state.Index.Special = append(state.Index.Special, w.conflicts...)
	p = w.now
	info, err := w.repo.Commit(w.now.State)
	if err != nil {
		return nil, p, err
	}
	f, now := w.repo.Format(), time.Now()
	id, objects, err := session.EncodeState(f, state, info.Parents, now)
	if err != nil {
		return nil, p, err
	}
	p.ID, p.Tree, p.State, p.Prev, p.Reason, p.Time = session.NewPointIDAfter(now, w.now.ID), w.result, id, w.now.ID, session.Merging, now.Truncate(time.Second)
	p.Message = "merge of " + w.theirs.point.Session + "@" + string(w.theirs.point.ID)
	commit, err := session.Outgoing(f, object.Commit, p.Encode(object.ID{}))
	if err != nil {
		return nil, p, err
	}
	p.Commit = commit.ID
	err = w.repo.Record(ctx, append(objects, commit), []session.RefChange{{Name: session.AdoptedRef(w.m.session, p.ID), New: p.Commit}})
	if err == nil {
		err = w.m.sawObjects(w.repo) // restore reads the State through the mount
	}
	return paths, p, err
}

// editIndex is a tree with entries changed, as git update-index --index-info reads them with -z.
func (w *merging) editIndex(ctx context.Context, tree object.ID, edits []byte) (object.ID, error) {
	dir, err := os.MkdirTemp(w.m.daemon.state, "merge-*.tmp")
	if err != nil {
		return tree, err
	}
	defer os.RemoveAll(dir)
	w.objects = filepath.Join(dir, "objects")
	if err := os.Mkdir(w.objects, 0o755); err != nil {
		return tree, err
	}
	env := []string{"GIT_INDEX_FILE=" + filepath.Join(dir, "index")}
	if _, err := w.git(ctx, w.repo.Dir(), env, nil, "read-tree", treeish(w.repo.Format(), tree)); err != nil {
		return tree, err
	}
	if _, err := w.git(ctx, w.repo.Dir(), env, edits, "update-index", "-z", "--index-info"); err != nil {
		return tree, err
	}
	out, err := w.git(ctx, w.repo.Dir(), env, nil, "write-tree", "--missing-ok")
	if err != nil {
		return tree, err
	}
	if err := w.take(ctx); err != nil {
		return tree, err
	}
	return object.ParseID(strings.TrimSpace(string(out)))
}

// git runs stock git with a git directory, on the session's objects and those of the mount's git directory.
func (w *merging) git(ctx context.Context, dir string, env []string, in []byte, args ...string) ([]byte, error) {
	cmd := gitcmd.New(ctx, args...)
	cmd.Dir, cmd.Stdin = dir, bytes.NewReader(in)
	cmd.Env = append(cmd.Env, "GIT_DIR="+dir, gitcmd.NoPrompt, gitcmd.PlainText, gitcmd.Alternates(w.m.sessionObjects(), filepath.Join(w.m.gitPath(), "objects")))
	if w.objects != "" {
		cmd.Env = append(cmd.Env, "GIT_OBJECT_DIRECTORY="+w.objects)
	}
	cmd.Env = append(cmd.Env, env...)
	return gitcmd.Output(cmd)
}
