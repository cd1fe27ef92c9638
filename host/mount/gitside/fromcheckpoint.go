package gitside

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/git/promisor"
	"github.com/artifactfs/artifactfs/host/checkout"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/mount/origin"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/carry"
)

// provider returns the source from which git commands in the mount get missing objects. If the mount starts from a
// checkpoint, the source includes the objects of the session.
func (s *Side) provider() promisor.Provider {
	if s.Mount.Record.Checkpoint != nil {
		return s.Mount.Owned
	}
	return s.Mount.Store
}

// applyCheckpoint sets the options o of a new git directory to the branches, stashes and files that the checkpoint has
// recorded from which the mount starts. It returns the index of the checkpoint, or nil if the mount starts from a
// commit or git's index exists already. It sets o.Session for every mount that starts from a checkpoint, so that git
// finds the objects of the session.
func (s *Side) applyCheckpoint(o *gitdir.Options) (*session.Index, error) {
	if s.Mount.Record.Checkpoint == nil {
		return nil, nil
	}
	o.Session = origin.SessionObjects(s.Mount.Home)
	// If there is an index, an earlier mount has already created the git directory from the checkpoint.
	if HasIndex(s.Mount.GitDir) {
		o.Ref = "" // an empty Ref keeps the branches of the existing git directory
		return nil, nil
	}
	repo, err := session.OpenRepo(filepath.Join(s.Mount.Home, statedir.SessionRepoName),
		session.RepoOptions{Format: o.Format, Session: s.Mount.Session, ReadOnly: true, Borrow: []string{o.Objects}})
	if err != nil {
		return nil, err
	}
	defer repo.Close()
	commit, err := object.ParseID(s.Mount.Record.Checkpoint.Commit)
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
	// The entries of the reflogs for HEAD and the stashes contain the committers of the commits.
	committers := map[object.ID]string{}
	for _, s := range state.Stashes {
		committers[s.Commit] = committerOf(repo, s.Commit)
	}
	committers[state.Head] = committerOf(repo, state.Head)
	o.State, o.Committer = gitState(state), func(id object.ID) string { return committers[id] }
	return &state.Index, nil
}

// gitState returns the parts of a checkpoint state that a new git directory needs, in the form of package gitdir.
func gitState(s session.State) *gitdir.State {
	g := &gitdir.State{Branch: s.Branch, Head: s.Head, Refs: s.Refs, Remote: s.Remote,
		Files: make(map[string]gitdir.File, len(s.Files))}
	for _, stash := range s.Stashes {
		g.Stashes = append(g.Stashes, gitdir.Stash(stash))
	}
	for name, f := range s.Files {
		g.Files[name] = gitdir.File(f)
	}
	return g
}

// SetUp sets the permissions of directories in a new mount to those that the checkpoint has recorded, because git's
// trees do not contain them, adds the files in carried, and sets the times of paths to those in times, unless these are
// nil. It also records that linked worktrees are to be restored. It must be called before the kernel knows any inode of
// the mount. It returns an error if the branch of a new HEAD cannot be created.
func (s *Side) SetUp(ctx context.Context, times *worktree.Times, carried *carry.Files) error {
	if s.Resumed || !s.Mount.Writable {
		return nil
	}
	if s.Mount.Record.Checkpoint == nil {
		snap := s.Contents.Snapshot()
		return s.checkHead(session.State{Head: snap.Commit, Branch: snap.Ref, Refs: []packedrefs.Ref{{Name: snap.Ref}}})
	}
	state, err := object.ParseID(s.Mount.Record.Checkpoint.State)
	if err != nil {
		return err
	}
	repo, err := session.OpenRepo(filepath.Join(s.Mount.Home, statedir.SessionRepoName), session.RepoOptions{
		Format: s.Mount.Store.Format(), Session: s.Mount.Session, ReadOnly: true,
		Borrow: []string{filepath.Join(s.Mount.Store.GitDir(), "objects")},
	})
	if err != nil {
		return err
	}
	defer repo.Close()
	then, err := repo.State(session.Checkpoint{State: state})
	if err != nil {
		return err
	}
	s.begun.leftOut, s.begun.allLeftOut = then.Left, int64(len(then.Left))
	if commit, err := object.ParseID(s.Mount.Record.Checkpoint.Commit); err == nil {
		if p, err := repo.CheckpointAt(commit); err == nil {
			s.begun.allLeftOut = p.Left
		}
	}
	if err := s.checkHead(then); err != nil {
		return err
	}
	if err := s.beginWorktrees(then); err != nil {
		return err
	}
	for dir, perm := range then.Dirs {
		n, err := s.Index.Tree.Resolve(ctx, dir)
		if err == nil {
			_, err = s.Index.Tree.SetAttr(ctx, n, worktree.Change{Set: worktree.SetMode, Mode: perm})
		}
		if err != nil {
			return fmt.Errorf("set the mode of %s: %w", dir, err)
		}
	}
	if carried != nil {
		if err := s.Index.Tree.Overlay().Adopt(ctx, carried); err != nil {
			return fmt.Errorf("carry files of the parent session: %w", err)
		}
	}
	if times == nil {
		return nil
	}
	return s.setTimes(ctx, *times)
}

// timesWait is the time for which a fork waits for the trees that it needs to set the times of paths.
const timesWait = 5 * time.Second

// setTimes sets the times of paths. If trees that are needed for this cannot be fetched, all paths keep the time of the
// checkpoint, and if the disk is full, some of them. It then sets s.begun.note.
func (s *Side) setTimes(ctx context.Context, times worktree.Times) error {
	limited, cancel := context.WithTimeout(ctx, timesWait)
	defer cancel()
	err := s.Index.Tree.Overlay().SetTimes(limited, times)
	switch {
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, worktree.ErrNoTimes), errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		s.Log.Warn("keep the times of files in a fork", zap.String("dir", s.Mount.Dir), zap.Error(err))
		s.begun.note = fmt.Sprintf("files have the time of the checkpoint, and not those of the forked session: %v", err)
		return nil
	case err != nil:
		return fmt.Errorf("set the times of files: %w", err)
	}
	return nil
}

// LeftOut returns the first paths that the checkpoint does not contain from which a new mount has started, and the
// number of all these paths. It returns nothing if the mount has started from a commit, or if its session existed on
// this host.
func (s *Side) LeftOut() ([]session.LeftOut, int64) { return s.begun.leftOut, s.begun.allLeftOut }

// Note returns a text for the user about what SetUp could not do, or "".
func (s *Side) Note() string { return s.begun.note }

// HeadName returns HEAD in the form of gitdir.Dir.HeadName, also if the git directory does not exist yet. If s is nil,
// it returns "".
func (s *Side) HeadName() string {
	if s == nil {
		return ""
	}
	return cmp.Or(gitdir.HeadNameAt(s.Mount.GitDir), s.Mount.Record.FirstHead())
}

// checkHead returns an error if HEAD of the new git directory cannot be as the record requires. start is the state in
// which the git directory starts otherwise.
func (s *Side) checkHead(start session.State) error {
	head := s.Mount.Record.Fork.Head
	switch {
	case head == nil:
		return nil
	case head.Detach && start.Head.IsZero():
		return gitdir.ErrNoCommit
	case head.Detach:
		return nil
	}
	// At its end, a rebase moves the branch with which it has begun, and not the new one.
	for name := range start.Files {
		if strings.HasPrefix(name, "rebase-merge/") || strings.HasPrefix(name, "rebase-apply/") {
			return fault.GitBusyError("rebasing")
		}
	}
	return gitdir.CheckBranch(head.Ref(), head.Reset, start.Refs)
}

// beginWorktrees records in the journal that the linked worktrees of the checkpoint state then are to be restored.
// Finish restores them before git commands can run. If the state lists invalid worktrees, which may come from other
// users of the session remote, none is restored.
func (s *Side) beginWorktrees(then session.State) error {
	list, err := then.Worktrees(s.Mount.Store.Format())
	if err != nil {
		s.Mount.Agent.AddNote(fmt.Sprintf("linked worktrees of the checkpoint could not be restored: %v", err))
		return nil
	}
	if len(list) == 0 {
		return nil
	}
	s.relinks = true
	intent := checkout.WorktreesIntent{State: s.Mount.Record.Checkpoint.State}
	_, err = checkout.OpenJournal(s.Mount.Home).Begin(checkout.Intent{Worktrees: &intent})
	return err
}

// Relinks reports whether this process restores linked worktrees before git commands can run.
func (s *Side) Relinks() bool { return s.relinks }

// committerOf returns the committer and the date of a commit in the format of a reflog entry, or "" if the commit
// cannot be read.
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
