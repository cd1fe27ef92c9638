package moves

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/treediff"
	"github.com/artifactfs/artifactfs/host/checkout"
	"github.com/artifactfs/artifactfs/host/mount/staging"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/worktree"
)

// A checkpoint contains the linked worktrees that were inside the mount (session.Worktree). Those whose directories do
// not exist any more are created again by a restore, and by the first mount of a session on this host. Their files show
// blobs of a tree, which are not fetched before they are read. Then the files are created by which git finds the
// worktree: its directory in the git directory, and the file .git in the working tree. A worktree whose directory
// exists is never changed.

// relinking is a restore of linked worktrees in progress.
type relinking struct {
	*restoring
	git   *gitdir.Dir
	state object.ID          // commit that stores the state of the checkpoint
	list  []session.Worktree // worktrees to restore, sorted by path
}

// finishWorktrees restores the linked worktrees of the intent p, and ends the intent. It adds a note to the status for
// each worktree that cannot be restored, and returns these worktrees by path, with the causes.
func (m *Mover) finishWorktrees(ctx context.Context, git *gitdir.Dir,
	p *checkout.Pending) (failed map[string]error, err error) {
	failed = map[string]error{}
	err = m.restoreWorktrees(ctx, git, p, failed)
	if ctx.Err() != nil { // the next process that serves the mount repeats the intent
		return nil, ctx.Err()
	}
	if err != nil {
		m.Mount.Agent.AddNote(fmt.Sprintf("linked worktrees of the checkpoint could not be restored: %v", err))
		m.Log.Warn("restore linked worktrees", zap.String("dir", m.Mount.Dir), zap.Error(err))
		if p.Worktrees != nil {
			for _, path := range p.Worktrees.Paths {
				failed[path] = err
			}
		}
	}
	for path, err := range failed {
		m.Mount.Agent.AddNote(fmt.Sprintf("linked worktree %s of the checkpoint could not be restored: %v", path, err))
		m.Log.Warn("restore linked worktree", zap.String("dir", m.Mount.Dir), zap.String("path", path), zap.Error(err))
	}
	return failed, p.End()
}

// restoreWorktrees restores the linked worktrees of the intent p. It adds those that cannot be restored to failed, by
// path.
func (m *Mover) restoreWorktrees(ctx context.Context, git *gitdir.Dir, p *checkout.Pending,
	failed map[string]error) error {
	if p.Err != nil {
		return p.Err
	}
	state, err := object.ParseID(p.Worktrees.State)
	if err != nil {
		return err
	}
	repo, err := m.Mount.Agent.Open(ctx)
	if err != nil {
		return err
	}
	r := &relinking{restoring: m.newRestoring(git, repo, nil), git: git, state: state}
	if r.list, err = r.linked(ctx, session.Checkpoint{State: state}); err != nil {
		return err
	}
	first := len(p.Worktrees.Paths) == 0
	if !first {
		r.list = slices.DeleteFunc(r.list,
			func(l session.Worktree) bool { return !slices.Contains(p.Worktrees.Paths, l.Path) })
	}
	for len(r.list) > 0 && ctx.Err() == nil {
		n := 1 // worktrees in the first one are restored together with it
		for n < len(r.list) && strings.HasPrefix(r.list[n].Path, r.list[0].Path+"/") {
			n++
		}
		group := r.list[:n]
		r.list = r.list[n:]
		if err := r.restore(ctx, group, first); err != nil {
			failed[group[0].Path] = err
		}
	}
	return nil
}

// linked returns the linked worktrees of the checkpoint p, sorted so that those in another one follow it.
func (w *restoring) linked(ctx context.Context, p session.Checkpoint) ([]session.Worktree, error) {
	state, err := w.stateOf(ctx, p)
	if err != nil {
		return nil, err
	}
	list, err := state.Worktrees(w.m.Mount.Store.Format())
	slices.SortFunc(list, func(a, b session.Worktree) int {
		return slices.Compare(strings.Split(a.Path, "/"), strings.Split(b.Path, "/"))
	})
	return list, err
}

// nameWorktrees sets w.Elsewhere to the paths of the linked worktrees of the target. If they cannot be read, it logs
// the error.
func (w *restoring) nameWorktrees(ctx context.Context) {
	has, err := w.repo.HasWorktrees(w.Target)
	var list []session.Worktree
	if has && err == nil {
		list, err = w.linked(ctx, w.Target)
	}
	if err != nil {
		w.m.Log.Warn("read linked worktrees of a checkpoint", zap.String("checkpoint", string(w.Target.ID)), zap.Error(err))
	}
	for _, l := range list {
		w.Elsewhere = append(w.Elsewhere, l.Path)
	}
}

// missingWorktrees returns the elements of w.Elsewhere that are to be restored: their directories do not exist, and
// they are among the requested paths.
func (w *restoring) missingWorktrees(ctx context.Context) (paths []string, err error) {
	for _, path := range w.Elsewhere {
		f, err := w.m.Tree.Find(ctx, path)
		if err != nil {
			return nil, err
		}
		if f.Node == 0 && w.Wants(path) {
			paths = append(paths, path)
		}
	}
	return paths, nil
}

// restore restores the linked worktree group[0], and the others in group, which are inside of it. first states that the
// mount starts with the checkpoint.
func (r *relinking) restore(ctx context.Context, group []session.Worktree, first bool) error {
	m := r.m
	// The checkpoint may be from other users of the session remote, who could make a directory of the main working tree a
	// linked worktree.
	if base := m.Contents.Snapshot().Tree; first && !base.IsZero() {
		if e, err := treediff.EntryAt(ctx, r.m.Contents.View.Tree, base, group[0].Path); err != nil {
			return err
		} else if e.Mode != 0 {
			return errInMain
		}
	}
	if f, err := m.Tree.Find(ctx, group[0].Path+"/.git"); err == nil && f.Node != 0 {
		return nil // a killed process has restored it already
	}
	commit, err := r.repo.Commit(group[0].Files)
	if err != nil {
		return err
	}
	for _, l := range group {
		r.fetchTrees(ctx, l.Commit)
	}
	tree, list, err := r.filesOf(ctx, commit.Tree, group[0].Path)
	if err != nil {
		return err
	}
	r.expect(ctx, tree)
	hold := session.RefChange{Name: session.RestoredWorktreesRef(r.repo.Session(), r.state), New: commit.Tree, Force: true}
	if err := r.repo.Update(ctx, []session.RefChange{hold}); err != nil {
		return err
	}
	var ready []*gitFiles
	defer func() {
		for _, g := range ready {
			os.RemoveAll(g.made)
		}
	}()
	for _, l := range group {
		g, err := r.prepare(ctx, l)
		if err != nil {
			return err
		}
		ready = append(ready, g)
	}
	lock, err := r.git.LockIndex(ctx)
	if err != nil {
		return err
	}
	defer lock.Release() // has no effect if Add has succeeded, because Add has then released the lock
	paths := make([]string, len(group))
	for i, l := range group {
		paths[i] = l.Path
	}
	return r.Checkout.Add(ctx, lock, commit.Tree, list, checkout.WorktreesIntent{State: r.state.String(), Paths: paths},
		func() error {
			for i, g := range ready {
				if err := g.place(); err != nil {
					for _, g := range ready[:i] {
						err = errors.Join(err, g.remove())
					}
					return err
				}
			}
			return nil
		})
}

// maxOwned is the maximum number of commits of the session that fetchTrees follows to find their base commit.
const maxOwned = 1000

// fetchTrees fetches all trees of the commit id from the mounted remote in one request. They can be missing, because a
// linked worktree may be on another branch than the session. For a commit that only the session has, fetchTrees fetches
// the trees of the newest ancestor that the mounted remote has. If the fetch fails, each tree is fetched when it is
// read.
func (r *relinking) fetchTrees(ctx context.Context, id object.ID) {
	for n := 0; !id.IsZero() && r.repo.Owned(id); n++ {
		info, err := r.repo.Commit(id)
		if err != nil || len(info.Parents) == 0 || n == maxOwned {
			return
		}
		id = info.Parents[0]
	}
	store := r.m.Mount.Store
	if id.IsZero() || store.HasCommit(id) {
		return
	}
	snap, err := store.Acquire(ctx, id.String())
	if err == nil {
		err = snap.Wait(ctx)
	}
	if err != nil {
		r.m.Log.Debug("fetch trees of linked worktree", zap.String("commit", id.String()), zap.Error(err))
	}
}

// errInMain means that a checkpoint contains the same path in the tree of the main working tree and as a linked
// worktree.
var errInMain = errors.New("path is in the main working tree of the checkpoint")

// filesOf returns the tree at a path in the tree full, and the files and empty directories of that tree as additions to
// the working tree.
func (r *relinking) filesOf(ctx context.Context, full object.ID,
	path string) (tree object.ID, list []checkout.Difference, err error) {
	e, err := treediff.EntryAt(ctx, r.m.Contents.View.Tree, full, path)
	if err == nil && e.Mode != object.ModeDir {
		err = fmt.Errorf("find %s in the checkpoint: %w", path, os.ErrNotExist)
	}
	if err != nil {
		return tree, nil, err
	}
	tree = e.ID
	err = treediff.WithDirs(ctx, r.m.Contents.View.Tree, object.ID{}, tree,
		func(at string, _, e object.TreeEntry) error {
			if at = path + "/" + at; object.CanShowPath(at) {
				list = append(list, checkout.Difference{Path: at, NewMode: e.Mode, New: e.ID})
			}
			return nil
		})
	if err == nil && len(list) == 0 {
		list = append(list, checkout.Difference{Path: path, NewMode: object.ModeDir, New: tree})
	}
	return tree, list, err
}

// expect registers the contents of a linked worktree that are not in the base commit, so that they are requested from
// the session remote first. tree is the tree of the worktree's files.
func (r *relinking) expect(ctx context.Context, tree object.ID) {
	base, err := r.m.Mount.Record.Base()
	if err != nil || r.m.Contents.Objects.SessionRemote == nil {
		return
	}
	var ids []object.ID
	err = treediff.Trees(ctx, r.m.Contents.View.Tree, base.Tree, tree, func(_ string, _, to object.TreeEntry) error {
		if to.Mode.IsBlob() {
			ids = append(ids, to.ID)
		}
		return nil
	})
	if err == nil {
		r.m.Mount.Owned.Expect(r.m.Mount.Owned.Missing(ids))
	}
}

// gitFiles has the files by which git finds a linked worktree, in a temporary directory until they are moved to their
// places.
type gitFiles struct {
	m      *Mover
	path   string // path of the linked worktree in the mount
	made   string // temporary directory with the files of dir
	dir    string // directory of the linked worktree below worktrees/ in the git directory
	seenAs string // path of dir as git in the mount sees it
	again  bool   // whether dir exists, because the user has removed the directory of the worktree without git
	linked bool   // whether the file .git was created
	// operation has the names, in made, of files and directories that record an operation in progress.
	operation []string
	put       bool // whether the directory dir was created
}

// madePrefix is the prefix of the names of temporary directories, in which the git directory of a linked worktree is
// made before it gets its name.
const madePrefix = "artifactfs-worktree-"

// removeMade removes the temporary directories that killed processes have left in a git directory. It ignores errors,
// because git does not look into these directories.
func removeMade(gitDir string) {
	entries, _ := os.ReadDir(gitDir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), madePrefix) {
			os.RemoveAll(filepath.Join(gitDir, e.Name()))
		}
	}
}

// prepare writes the files that a linked worktree has in the git directory to a temporary directory.
func (r *relinking) prepare(ctx context.Context, l session.Worktree) (*gitFiles, error) {
	root, err := realDir(r.m.Mount.Dir)
	if err != nil {
		return nil, err
	}
	link := filepath.Join(root, filepath.FromSlash(l.Path), ".git") + "\n"
	g := &gitFiles{m: r.m, path: l.Path}
	if g.dir, g.again, err = freeDir(filepath.Join(r.m.Mount.GitDir, "worktrees", l.Name), link); err != nil {
		return nil, err
	}
	g.seenAs = g.dir
	if a, err := r.m.Tree.Lookup(ctx, worktree.Root, ".git"); err == nil && a.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		g.seenAs = filepath.Join(root, ".git", "worktrees", filepath.Base(g.dir))
	}
	head := l.Commit.String()
	if l.Branch != "" {
		tip, err := session.NewRefDir(r.m.Mount.GitDir, r.m.Mount.Store.Format()).Ref(l.Branch)
		if err != nil {
			return nil, err
		}
		if !tip.IsZero() || l.Commit.IsZero() { // if neither is true, the branch was deleted
			head = "ref: " + l.Branch
		}
	}
	if g.made, err = os.MkdirTemp(r.m.Mount.GitDir, madePrefix); err != nil {
		return nil, err
	}
	err = os.Chmod(g.made, 0o755)
	for name, text := range map[string]string{"HEAD": head + "\n", "commondir": "../..\n", "gitdir": link} {
		err = errors.Join(err, os.WriteFile(filepath.Join(g.made, name), []byte(text), 0o644))
	}
	for name, f := range l.Operation {
		if gitdir.Carries(name) { // the state is not trusted
			at, mode := filepath.Join(g.made, filepath.FromSlash(name)), os.FileMode(0o644)
			if f.Exec {
				mode = 0o755
			}
			err = errors.Join(err, os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, f.Content, mode))
			if top, _, _ := strings.Cut(name, "/"); !slices.Contains(g.operation, top) {
				g.operation = append(g.operation, top)
			}
		}
	}
	if err = errors.Join(err, r.writeIndex(ctx, filepath.Join(g.made, "index"), &l.Index)); err != nil {
		os.RemoveAll(g.made)
		return nil, err
	}
	return g, nil
}

// realDir returns the path of a mount with the symbolic links in its parent directory resolved, as git writes it.
func realDir(dir string) (string, error) {
	above, err := filepath.EvalSymlinks(filepath.Dir(dir))
	return filepath.Join(above, filepath.Base(dir)), err
}

// freeDir returns the directory dir or, if another linked worktree uses that, dir with the lowest free number as
// suffix. link is the contents of the file gitdir in it. again is true if the directory exists with these contents.
func freeDir(dir, link string) (free string, again bool, err error) {
	for n := range session.MaxWorktrees {
		at := dir
		if n > 0 {
			at = fmt.Sprintf("%s%d", dir, n)
		}
		text, err := disk.ReadRegular(filepath.Join(at, "gitdir"), disk.SmallFile)
		if err == nil && string(text) == link {
			return at, true, nil
		}
		if _, err := os.Lstat(at); errors.Is(err, os.ErrNotExist) {
			return at, false, nil
		}
	}
	return "", false, fmt.Errorf("create %s: %w", dir, os.ErrExist)
}

// writeIndex writes the index of a checkpoint state to the file name, and copies staged contents to the git directory.
func (r *relinking) writeIndex(ctx context.Context, name string, of *session.Index) error {
	noSize := func(object.ID) (int64, bool) { return 0, false }
	f := r.m.Mount.Store.Format()
	s, err := staging.Against(ctx, r.m.Contents.View.Tree, object.ID{}, of, f, noSize)
	if err != nil {
		return err
	}
	s.Trees = nil // git may lack the trees of the index
	if err := r.keepForGit(ctx, s); err != nil {
		return err
	}
	x := &index.Index{Format: f}
	s.Apply(x)
	file, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = x.WriteTo(file)
	return errors.Join(err, file.Close())
}

// place moves the files to their places. If it returns an error, it has changed nothing.
func (g *gitFiles) place() (err error) {
	ctx := context.Background() // nothing here waits for the network
	defer func() {
		if err != nil {
			err = errors.Join(err, g.remove())
		}
	}()
	dir, err := g.m.Tree.Resolve(ctx, g.path)
	if err != nil {
		return err
	}
	a, err := g.m.Tree.Attr(ctx, dir)
	if err != nil {
		return err
	}
	file, err := g.m.Tree.Mknod(ctx, dir, ".git", syscall.S_IFREG|0o644, 0, worktree.Cred{UID: a.UID, GID: a.GID})
	if err != nil {
		return err
	}
	g.linked = true
	if _, err := g.m.Tree.Write(ctx, file.Node, []byte("gitdir: "+g.seenAs+"\n"), 0, false); err != nil {
		return err
	}
	g.m.Server.Invalidate(worktree.Stale{Places: []worktree.Place{{Dir: dir, Name: ".git"}}, Nodes: []worktree.Node{dir},
		Dirs: map[worktree.Node]bool{dir: true}})
	if err := os.MkdirAll(filepath.Dir(g.dir), 0o755); err != nil {
		return err
	}
	if !g.again {
		err := os.Rename(g.made, g.dir)
		g.put = err == nil
		return err
	}
	for _, name := range g.operation {
		if err := os.RemoveAll(filepath.Join(g.dir, name)); err != nil {
			return err
		}
	}
	for _, name := range slices.Concat(g.operation, []string{"index", "HEAD", "commondir", "gitdir"}) {
		if err := os.Rename(filepath.Join(g.made, name), filepath.Join(g.dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// remove removes the files that place has created.
func (g *gitFiles) remove() error {
	var err error
	if dir, e := g.m.Tree.Resolve(context.Background(), g.path); e == nil && g.linked {
		err = g.m.Tree.Unlink(context.Background(), dir, ".git")
	}
	if g.put {
		err = errors.Join(err, os.RemoveAll(g.dir))
	}
	return err
}
