package mount

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/internal/index"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/promisor"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/treediff"
	"github.com/artifactfs/artifactfs/worktree"
)

// provider returns the source of the objects that git requests. A mount that starts from a checkpoint also supplies the objects
// of its session.
func (m *Mount) provider() promisor.Provider {
	if m.record.Checkpoint != nil {
		return m.owned
	}
	return m.store
}

// likeCheckpoint fills o so that a new git directory gets the branches, stashes and files that the mount's start checkpoint
// recorded. It returns the index of that checkpoint. It returns nil if the mount starts from a commit, or if git's index exists
// already. o.Session is set for every mount that starts from a checkpoint, so that git finds the objects of the session.
func (m *Mount) likeCheckpoint(o *gitdir.Options) (*session.Index, error) {
	if m.record.Checkpoint == nil {
		return nil, nil
	}
	o.Session = m.SessionObjects()
	// An existing index shows that an earlier mount has written the git directory.
	if m.hasIndex() {
		o.Ref = "" // keep the branches of the existing git directory
		return nil, nil
	}
	repo, err := session.OpenRepo(m.sessionRepoDir(),
		session.RepoOptions{Format: o.Format, Session: m.Session, ReadOnly: true, Borrow: []string{o.Objects}})
	if err != nil {
		return nil, err
	}
	defer repo.Close()
	commit, err := object.ParseID(m.record.Checkpoint.Commit)
	if err != nil {
		return nil, err
	}
	p, err := repo.CheckpointAt(commit)
	if err != nil {
		return nil, err
	}
	state, err := repo.State(p)
	if err != nil {
		return nil, err
	}
	// The git directory's reflogs need the committers of HEAD and of the stashes.
	committers := map[object.ID]string{}
	for _, s := range state.Stashes {
		committers[s.Commit] = committerOf(repo, s.Commit)
	}
	committers[state.Head] = committerOf(repo, state.Head)
	o.State, o.Committer = gitState(state), func(id object.ID) string { return committers[id] }
	return &state.Index, nil
}

// gitState returns the parts of a checkpoint state that are needed to create a git directory.
func gitState(s session.State) *gitdir.State {
	g := &gitdir.State{Branch: s.Branch, Head: s.Head, Refs: s.Refs, Remote: s.Remote, Files: make(map[string]gitdir.File, len(s.Files))}
	for _, stash := range s.Stashes {
		g.Stashes = append(g.Stashes, gitdir.Stash(stash))
	}
	for name, f := range s.Files {
		g.Files[name] = gitdir.File(f)
	}
	return g
}

// likeCheckpointDirs sets the permissions of directories in a new mount to those recorded in its start checkpoint, because git's
// tree objects do not store permissions of directories. It is called before the kernel knows any inode of the mount.
func (m *Mount) likeCheckpointDirs(ctx context.Context) error {
	if m.record.Checkpoint == nil || m.resumed || !m.Writable() {
		return nil
	}
	state, err := object.ParseID(m.record.Checkpoint.State)
	if err != nil {
		return err
	}
	repo, err := session.OpenRepo(m.sessionRepoDir(), session.RepoOptions{Format: m.store.Format(), Session: m.Session, ReadOnly: true,
		Borrow: []string{filepath.Join(m.store.GitDir(), "objects")}})
	if err != nil {
		return err
	}
	defer repo.Close()
	s, err := repo.State(session.Checkpoint{State: state})
	if err != nil {
		return err
	}
	for dir, perm := range s.Dirs {
		n, err := m.tree.Resolve(ctx, dir)
		if err == nil {
			_, err = m.tree.SetAttr(ctx, n, worktree.Change{Set: worktree.SetMode, Mode: perm})
		}
		if err != nil {
			return fmt.Errorf("set the mode of %s: %w", dir, err)
		}
	}
	return nil
}

// committerOf returns the committer and date of a commit in the form of a reflog entry; "" if the commit cannot be read.
func committerOf(repo *session.Repo, id object.ID) string {
	if id.IsZero() {
		return ""
	}
	t, content, err := repo.Get(id, object.MaxCommitSize)
	if err != nil || t != object.Commit {
		return ""
	}
	head, _, _ := strings.Cut(string(content), "\n\n")
	for line := range strings.Lines(head) {
		if who, ok := strings.CutPrefix(line, "committer "); ok {
			return strings.TrimSuffix(who, "\n")
		}
	}
	return ""
}

// staged returns the differences between an index and the mounted tree. If the index has entries of git add -N, staged also
// stores the empty blob, because git expects to find it.
func (m *Mount) staged(ctx context.Context, x *session.Index) (*gitdir.Staged, error) {
	if slices.ContainsFunc(x.Special, func(e session.IndexEntry) bool { return e.IntentToAdd }) {
		empty, err := emptyBlob(m.store.Format())
		if err == nil {
			err = m.owned.Keep(ctx, []odb.Outgoing{empty})
		}
		if err != nil {
			return nil, fmt.Errorf("keep what was staged: %w", err)
		}
	}
	read := func(ctx context.Context, id object.ID) ([]object.TreeEntry, error) { return m.view.Tree(ctx, id) }
	return stagedAgainst(ctx, read, m.snapshot().Tree, x, m.store.Format(), func(id object.ID) (int64, bool) {
		_, n, err := m.owned.Size(id)
		return n, err == nil
	})
}

// stagedAgainst returns the differences between the index x and a tree. The function size returns the size of a blob in bytes,
// and false if the size is not known.
func stagedAgainst(ctx context.Context, read treediff.Reader, tree object.ID, x *session.Index, f object.Format,
	size func(object.ID) (int64, bool)) (*gitdir.Staged, error) {
	s := &gitdir.Staged{}
	special := map[string]session.IndexEntry{}
	var conflicts []session.IndexEntry
	for _, e := range x.Special {
		if e.Stage == 0 {
			special[e.Path] = e
		} else {
			conflicts = append(conflicts, e)
		}
	}
	for path, e := range special { // these entries are listed even if the tree has the same mode and ID, because of their flags
		if !e.IntentToAdd {
			s.Changes = append(s.Changes, index.Change{Entry: special0(e)})
			continue
		}
		empty, err := emptyBlob(f)
		if err != nil {
			return nil, err
		}
		s.Changes = append(s.Changes, index.Change{Entry: index.Entry{Path: path, Mode: e.Mode, ID: empty.ID, IntentToAdd: true,
			AssumeValid: e.AssumeValid, SkipWorktree: e.SkipWorktree}})
	}
	err := treediff.Trees(ctx, read, tree, x.Tree, func(path string, from, to object.TreeEntry) error {
		if _, isSpecial := special[path]; isSpecial {
			return nil
		}
		c := index.Change{Entry: index.Entry{Path: path, Mode: to.Mode, ID: to.ID}, Gone: to.Mode == 0}
		if to.Mode.IsBlob() {
			if n, ok := size(to.ID); ok {
				c.Entry.Stat.Size = uint32(n)
			}
		}
		s.Changes = append(s.Changes, c)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("compare what was staged: %w", err)
	}
	// The index format orders entries by path, then stage.
	slices.SortFunc(conflicts, func(a, b session.IndexEntry) int {
		if n := strings.Compare(a.Path, b.Path); n != 0 {
			return n
		}
		return int(a.Stage) - int(b.Stage)
	})
	for _, e := range conflicts {
		// A path with conflicts has no entry of stage 0.
		s.Changes = slices.DeleteFunc(s.Changes, func(c index.Change) bool { return c.Entry.Path == e.Path })
		s.Others = append(s.Others, special0(e))
	}
	s.Trees = treesOf(ctx, read, x.Tree)
	return s, nil
}

// emptyBlob returns the empty blob. Git's index refers to it for a file that was added with git add -N, and git expects the blob
// in its object store.
func emptyBlob(f object.Format) (odb.Outgoing, error) { return session.Outgoing(f, object.Blob, nil) }

// special0 converts an index entry of package session to one of package index.
func special0(e session.IndexEntry) index.Entry {
	return index.Entry{Path: e.Path, Mode: e.Mode, ID: e.ID, Stage: e.Stage, AssumeValid: e.AssumeValid, SkipWorktree: e.SkipWorktree}
}

// treesOf returns a function that looks up the tree of a directory below root. That function returns false if the directory does
// not exist or cannot be read. It caches every tree that it has read, and is not safe for concurrent use.
func treesOf(ctx context.Context, read treediff.Reader, root object.ID) func(dir string) (object.ID, bool) {
	trees := map[string]object.ID{"": root}
	var find func(dir string) object.ID
	find = func(dir string) object.ID {
		// The recursion ends at the root, which is in the map from the start.
		if tree, ok := trees[dir]; ok {
			return tree
		}
		parent := parentOf(dir)
		above := find(parent)
		trees[dir] = object.ID{}
		if above.IsZero() {
			return above
		}
		entries, err := read(ctx, above)
		if err != nil {
			return object.ID{}
		}
		for _, e := range entries {
			if e.Mode == object.ModeDir {
				trees[path.Join(parent, e.Name)] = e.ID
			}
		}
		return trees[dir]
	}
	return func(dir string) (object.ID, bool) {
		tree := find(dir)
		return tree, !tree.IsZero()
	}
}

// parentOf returns the parent directory of a path in a tree; "" is the root.
func parentOf(p string) string {
	if parent := path.Dir(p); parent != "." {
		return parent
	}
	return ""
}
