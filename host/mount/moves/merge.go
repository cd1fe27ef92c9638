package moves

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/guard"
	"github.com/artifactfs/artifactfs/git/merge"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/treediff"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/mount/origin"
	"github.com/artifactfs/artifactfs/host/mount/staging"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session"
)

// A merge applies the changes of another session to the working tree, in these steps:
//
//	adopt              copies the commits and trees of the other session's checkpoint
//	checkpoint         stores the present working tree, which is ours
//	git merge-tree     merges three trees: the merge base, ours and theirs. The contents of paths that both sessions have changed
//	                   are fetched before, with one request; for other paths, git compares only the ids
//	checkpoint         stores the result, with the conflicts in its index; this checkpoint is never pushed
//	restore --staged   changes the paths that differ from the result; after a crash it is completed like any other restore
//
// The restore makes a checkpoint of the state before it, with which the user can undo the merge. If one of its paths
// has changed since the first checkpoint, it changes nothing, and the merge is made again from the present files.
//
// HEAD and branches do not change. Afterwards the changes of the other session are staged, as after git merge --squash.

// merging is the state of the merge of another session's checkpoint. Only one goroutine uses it.
type merging struct {
	m      *Mover
	repo   *session.Repo      // repository of the mount's own session
	theirs adopted            // checkpoint that is merged
	now    session.Checkpoint // checkpoint of the working tree whose files are merged
	base   object.ID          // tree of the merge base; zero for the empty tree
	merge.Merged
	objects string // directory to which git writes new objects; "" for the object directory of the git directory
}

// Merge merges a checkpoint of another session into the mount. The reply lists the changed paths and the conflicts, and
// names the checkpoint with which the merge can be undone. Errors have a hint.
func (m *Mover) Merge(ctx context.Context, r control.MergeRequest) (control.MergeReply, error) {
	reply, err := m.merge(ctx, r)
	if err != nil {
		return control.MergeReply{}, fault.ExplainSessionAt("merge", "session "+r.Of, err)
	}
	return reply, nil
}

// merge implements Merge, without hints in its errors. It returns fault.ErrReadOnly or fault.ErrNoGitDir if the mount
// cannot merge, and fault.ErrConflicts if the index still contains conflicts of an earlier merge. It does not change
// the working tree before its last step.
func (m *Mover) merge(ctx context.Context, r control.MergeRequest) (reply control.MergeReply, err error) {
	if !m.Mount.Writable {
		return reply, fault.ErrReadOnly
	}
	if _, err := m.Ready(ctx); err != nil {
		return reply, err
	}
	w := &merging{m: m}
	if w.theirs, err = m.adopt(ctx, r.Of, r.SessionRemote, r.ID); err != nil {
		return reply, err
	}
	if w.repo, err = m.Mount.Agent.Open(ctx); err != nil {
		return reply, err
	}
	if w.base, err = w.commonTree(ctx); err != nil {
		return reply, err
	}
	for try := 1; ; try++ {
		reply, err := w.apply(ctx, r)
		var changed fault.RefusalError
		if try == mergeTries || !errors.As(err, &changed) {
			return reply, err
		}
	}
}

// mergeTries is the maximum number of times that a merge is made, each time from the present files, because programs
// change files during the merge that it changes.
const mergeTries = 3

// apply merges the checkpoint w.theirs into the working tree as it is now. It returns a fault.RefusalError, and changes
// nothing, if paths that the merge changes are changed in the meantime.
func (w *merging) apply(ctx context.Context, r control.MergeRequest) (reply control.MergeReply, err error) {
	m, name := w.m, r.Of+"@"+string(w.theirs.checkpoint.ID)
	if w.now, _, err = m.Mount.Agent.Capture(ctx, session.Restore, "before the merge of "+name); err != nil {
		return reply, err
	}
	state, err := w.repo.State(w.now)
	if err != nil {
		return reply, err
	}
	// Index.Special contains the entries with a conflict stage, which an earlier merge may have left.
	if slices.ContainsFunc(state.Index.Special, func(e session.IndexEntry) bool { return e.Stage != 0 }) {
		return reply, fault.ErrConflicts
	}
	if err := w.provide(ctx); err != nil {
		return reply, err
	}
	if err := w.mergeTrees(ctx, name); err != nil {
		return reply, err
	}
	o, err := m.Catalog.OpenMount(m.Mount)
	if err != nil {
		return reply, err
	}
	defer o.Close()
	reply = control.MergeReply{Dir: m.Mount.Dir, Theirs: o.Shown(w.theirs.checkpoint),
		Base:    treediff.Name(w.repo.Format(), w.base),
		Changes: []control.PathChange{}, Conflicts: w.Conflicted(), Kept: []string{},
		Messages: append([]string{}, w.Messages...)}
	paths, merged, err := w.record(ctx, state)
	if err != nil || len(paths) == 0 {
		return reply, err
	}
	// restore writes a journal entry, so that a successor completes the change if this process dies.
	done, err := m.restore(ctx, control.RestoreRequest{Dir: m.Mount.Dir, ID: string(merged.ID), Paths: paths, Staged: true,
		Nonce: r.Nonce}, w.now)
	if err != nil {
		return reply, err
	}
	// w.now lacks what programs have changed during the merge at other paths.
	reply.Before, reply.Changes, reply.Kept = done.Before, done.Changes, done.Kept
	return reply, nil
}

// commonTree returns the tree of the merge base. If one of the two sessions was forked from the other, or both from the
// same checkpoint, the merge base is the checkpoint of the fork. Otherwise the result is that of commonCommit.
func (w *merging) commonTree(ctx context.Context) (object.ID, error) {
	m := w.m
	ours, _, err := session.ReadMeta(w.repo, m.Mount.Session)
	if err != nil {
		return object.ID{}, err
	}
	// The value of Meta.From is the name of the parent session, a space, and the ID of the checkpoint.
	parent, id, _ := strings.Cut(w.theirs.meta.From, " ")
	ourParent, _, _ := strings.Cut(ours.From, " ")
	switch {
	case parent == m.Mount.Session:
		if p, err := w.repo.Find(id); err == nil { // the checkpoint may be missing, because gc removes old ones
			return p.Tree, nil
		}
	case ourParent != "" && (ourParent == w.theirs.checkpoint.Session || ours.From == w.theirs.meta.From):
		base, err := w.repo.Ref(session.BaseRef(m.Mount.Session))
		if err != nil {
			return object.ID{}, err
		}
		if p, err := w.repo.CheckpointAt(base); err == nil {
			return p.Tree, nil
		}
	}
	return w.commonCommit(ctx)
}

// commonCommit returns the tree of the base commit if both sessions have the same base commit, and of the merge base of
// their base commits otherwise. It returns the zero ID if one of the sessions was started on an unborn branch.
func (w *merging) commonCommit(ctx context.Context) (object.ID, error) {
	ours, theirs := w.m.Mount.Record.Commit, w.theirs.meta.Base
	if ours == "" || theirs == "" {
		return object.ID{}, nil
	}
	if ours != theirs {
		base, err := merge.Base(w.runIn(ctx, w.m.Mount.GitDir), ours, theirs)
		if err == nil && base.IsZero() {
			err = errors.New("sessions have no common history")
		}
		if err != nil {
			return object.ID{}, fmt.Errorf("find the merge base of the two sessions: %w", err)
		}
		ours = base.String()
	}
	out, err := w.git(ctx, w.m.Mount.GitDir, nil, nil, "rev-parse", ours+"^{tree}")
	if err != nil {
		return object.ID{}, err
	}
	return object.ParseID(strings.TrimSpace(string(out)))
}

// provide fetches the contents that git compares for the merge, with one request.
func (w *merging) provide(ctx context.Context) error {
	ids, _, err := treediff.ContentsToMerge(ctx, w.m.Contents.View.Tree, w.base, w.now.Tree, w.theirs.checkpoint.Tree)
	ids = slices.DeleteFunc(ids, w.repo.Owned)
	if err != nil || len(ids) == 0 {
		return err
	}
	return w.m.Mount.Owned.Provide(ctx, ids, nil)
}

// mergeTrees merges the trees in a temporary repository, with the attributes and merge drivers of the mount. Then it
// copies the objects that git has created to the session repository. name stands for the other session in conflict
// markers.
func (w *merging) mergeTrees(ctx context.Context, name string) error {
	f := w.repo.Format()
	commits, ours, theirs, err := session.CommitsToMerge(f, w.base, w.now.Tree, w.theirs.checkpoint.Tree)
	if err != nil {
		return err
	}
	if err := w.repo.Write(ctx, commits); err != nil {
		return err
	}
	w.objects = "" // the directory of an earlier merge does not exist any more
	drivers, err := w.drivers(ctx)
	if err != nil {
		return err
	}
	dir, remove, err := disk.TempDir(w.m.State, "merge")
	if err != nil {
		return err
	}
	defer remove()
	w.objects = filepath.Join(dir, "objects")
	// git uses the attributes of the git directory, too; ignore a file that cannot be read, as git does
	own, _ := disk.ReadRegular(filepath.Join(w.m.Mount.GitDir, "info", "attributes"), disk.LargeFile)
	// Git writes the names of refs into conflict markers, so the temporary repository has a ref whose name describes the
	// other checkpoint. The file objects/x is written so that the directory objects exists.
	for file, text := range map[string]string{"HEAD": ours.String() + "\n", "refs/heads/" + name: theirs.String() + "\n",
		"objects/x": "", "config": gitcmd.BareConfig(f), "info/attributes": string(own)} {
		if err = os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o755); err == nil {
			err = os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600)
		}
		if err != nil {
			return err
		}
	}
	run := func(args ...string) ([]byte, error) {
		// Of the commands of merge.Commits, only the last merge creates objects that are needed.
		if slices.Contains(args, "merge-tree") {
			if err := errors.Join(os.RemoveAll(w.objects), os.Mkdir(w.objects, 0o755)); err != nil {
				return nil, err
			}
		}
		return w.git(ctx, dir, nil, nil, args...)
	}
	if w.Merged, err = merge.Commits(run, "HEAD", name, drivers...); err != nil {
		return err
	}
	return w.take(ctx)
}

// drivers returns the settings of merge drivers in the configuration of the git directory, as NAME=VALUE. git reads
// those of the user itself. A git directory that a container can change has none: see package guard.
func (w *merging) drivers(ctx context.Context) (settings []string, err error) {
	text, _ := disk.ReadRegular(filepath.Join(w.m.Mount.GitDir, "config"), disk.LargeFile)
	if !hasDrivers.Match(text) {
		return nil, nil
	}
	out, err := w.git(ctx, w.m.Mount.GitDir, nil, nil, "config", "-z", "--local", "--includes", "--get-regexp",
		`^merge\..*\.(driver|recursive)$`)
	if err != nil && !gitcmd.Exited(err, 1) { // exit status 1: there are none
		return nil, err
	}
	for entry := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		if name, value, ok := strings.Cut(entry, "\n"); ok && !strings.Contains(name, "=") {
			settings = append(settings, name+"="+value)
		}
	}
	return settings, nil
}

// hasDrivers matches the text of a configuration that may define merge drivers.
var hasDrivers = regexp.MustCompile(`(?i)\[\s*(merge|include)`)

// take copies the objects that git has written to the directory w.objects into the session repository.
func (w *merging) take(ctx context.Context) error {
	files, err := disk.Glob(w.objects, "??/*")
	if err != nil {
		return err
	}
	loose := odb.NewLoose(w.objects, w.repo.Format())
	var out []odb.Outgoing
	for _, file := range files {
		id, err := object.ParseID(filepath.Base(filepath.Dir(file)) + filepath.Base(file))
		if err != nil {
			continue // the file is a temporary file of git, and not an object
		}
		t, content, err := loose.Get(id, maxMerged)
		if err != nil {
			return fmt.Errorf("store the result of the merge: %w", err)
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
	return w.m.refreshObjects(w.repo)
}

// maxMerged is the maximum size, in bytes, of an object that a merge may create.
const maxMerged = 512 << 20

// record creates a checkpoint of the merge result, with the conflicts in its index. It returns the checkpoint, and the
// paths at which the result differs from the working tree. If there are no such paths, it creates no checkpoint. Only a
// local ref (session.AdoptedRef) refers to the checkpoint, so it is never pushed. state is the checkpoint state before
// the merge.
func (w *merging) record(ctx context.Context, state session.State) (paths []string, p session.Checkpoint, err error) {
	conflicted := w.Conflicted()
	var edits bytes.Buffer
	zero := strings.Repeat("0", len(w.Result.String()))
	there := map[string]bool{}
	err = treediff.Trees(ctx, w.m.Contents.View.Tree, w.now.Tree, w.Result,
		func(path string, from, to object.TreeEntry) error {
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
	entry := staging.EntriesOf(ctx, w.m.Contents.View.Tree, w.Result)
	// The tree of the index does not contain conflicted paths, because Special contains their stages. A conflicted path
	// must be restored even if its contents are unchanged.
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
	state.Index.Special = slices.DeleteFunc(slices.Clone(state.Index.Special),
		func(e session.IndexEntry) bool { return slices.Contains(paths, e.Path) })
	for _, e := range w.Conflicts {
		state.Index.Special = append(state.Index.Special,
			session.IndexEntry{Path: e.Path, Mode: e.Mode, ID: e.ID, Stage: e.Stage})
	}
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
	p.ID, p.Tree, p.State, p.Prev, p.Reason, p.Time =
		session.NewCheckpointIDAfter(now, w.now.ID), w.Result, id, w.now.ID, session.Merging, now.Truncate(time.Second)
	p.Message = "merge of " + w.theirs.checkpoint.Session + "@" + string(w.theirs.checkpoint.ID)
	commit, err := session.Outgoing(f, object.Commit, p.Encode(object.ID{}))
	if err != nil {
		return nil, p, err
	}
	p.Commit = commit.ID
	err = w.repo.Record(ctx, append(objects, commit),
		[]session.RefChange{{Name: session.AdoptedRef(w.m.Mount.Session, p.ID), New: p.Commit}})
	if err == nil {
		// restore reads the checkpoint state through the mount, which must find the new objects
		err = w.m.refreshObjects(w.repo)
	}
	return paths, p, err
}

// editIndex applies edits to tree and returns the resulting tree. edits has the input format of git update-index -z
// --index-info.
func (w *merging) editIndex(ctx context.Context, tree object.ID, edits []byte) (object.ID, error) {
	dir, remove, err := disk.TempDir(w.m.State, "merge")
	if err != nil {
		return tree, err
	}
	defer remove()
	w.objects = filepath.Join(dir, "objects")
	if err := os.Mkdir(w.objects, 0o755); err != nil {
		return tree, err
	}
	env := []string{"GIT_INDEX_FILE=" + filepath.Join(dir, "index")}
	if _, err := w.git(ctx, w.repo.Dir(), env, nil, "read-tree", treediff.Name(w.repo.Format(), tree)); err != nil {
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

// git runs a git command with the git directory dir and the environment of the mount, and returns its standard output.
// env is added to the environment, and in is the standard input. The objects of the session and of the mount are
// alternates (further directories in which git searches objects). If w.objects is set, git writes new objects there.
func (w *merging) git(ctx context.Context, dir string, env []string, in []byte, args ...string) ([]byte, error) {
	at, err := guard.Open(ctx, dir)
	if err != nil {
		return nil, err
	}
	objects := []string{origin.SessionObjects(w.m.Mount.Home), filepath.Join(w.m.Mount.GitDir, "objects")}
	at.Objects, at.Writes, at.Env = append(objects, at.Objects...), w.objects, env
	if user := w.m.Mount.Request().Environment.ForPrograms(); len(user) > 0 {
		at.Base = gitcmd.Environ(user)
	}
	return at.Output(ctx, string(in), args...)
}

// runIn returns a function that runs git like the method git in the git directory dir, for package merge.
func (w *merging) runIn(ctx context.Context, dir string) merge.Run {
	return func(args ...string) ([]byte, error) { return w.git(ctx, dir, nil, nil, args...) }
}
