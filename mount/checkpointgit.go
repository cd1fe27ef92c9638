package mount

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/mount/staging"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/promisor"
	"github.com/artifactfs/artifactfs/session"
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
		empty, err := staging.EmptyBlob(m.store.Format())
		if err == nil {
			err = m.owned.Keep(ctx, []odb.Outgoing{empty})
		}
		if err != nil {
			return nil, fmt.Errorf("keep what was staged: %w", err)
		}
	}
	read := func(ctx context.Context, id object.ID) ([]object.TreeEntry, error) { return m.view.Tree(ctx, id) }
	return staging.Against(ctx, read, m.snapshot().Tree, x, m.store.Format(), func(id object.ID) (int64, bool) {
		_, n, err := m.owned.Size(id)
		return n, err == nil
	})
}
