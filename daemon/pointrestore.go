package daemon

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/mount/mountpoint"
	"github.com/artifactfs/artifactfs/mount/takeover"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/capture"
	"github.com/artifactfs/artifactfs/worktree"
)

// A restore brings files back to what they were at a point, without reading a content. Nothing can be lost by it:
//
//	look at the paths         what is there now
//	point                     keeps all of that, and undoes the restore
//	compare the two points    what neither holds, such as ignored files, is not touched
//	restore.json              what is being done, for who goes on if we die now (finishRestore)
//	worktree.Graft            only where still is what was found before the point was made
//	index                     hears of it, and is brought back too if that is asked for

// restoring is one restore under way.
type restoring struct {
	m      *mount
	repo   *session.Repo
	paths  []string // relative to the mount; none: all
	nonce  string   // of who asked
	target session.Point
	began  session.Point // what there was, if the restore was interrupted and is finished now; zero: it is not
	now    session.Point // what is there
	point  func(context.Context, session.Reason, string) (session.Point, capture.Report, error)
	list   []gitdir.Difference
	found  map[string]worktree.Found // before now was made
	kept   []string
}

// Restore brings files back to what they were at a point.
func (d *Daemon) Restore(ctx context.Context, r control.RestoreRequest, progress func(control.Progress)) (control.RestoreReply, error) {
	m, ok := d.find(r.Dir)
	if !ok || !m.served() {
		return control.RestoreReply{}, fault.NotMounted("restore", r.Dir)
	}
	start := time.Now()
	reply, err := m.restore(ctx, r)
	if err != nil {
		return control.RestoreReply{}, fault.Subject{Area: fault.Restore, Verb: "restore", Object: m.dir, Checkpoint: "checkpoint " + r.ID, ID: r.ID, GitDir: m.gitPath()}.Explain(err)
	}
	if !r.DryRun {
		d.log.Info("restored", zap.String("dir", m.dir), zap.String("checkpoint", reply.Checkpoint.ID), zap.Int("paths", len(reply.Changes)),
			zap.Duration("took", time.Since(start)))
	}
	return reply, nil
}

func (m *mount) restore(ctx context.Context, r control.RestoreRequest) (reply control.RestoreReply, err error) {
	if !m.writable() {
		return reply, fault.ErrReadOnly
	}
	if !m.triedGit(ctx) {
		return reply, errors.Join(ctx.Err(), fault.ErrNoGitDir)
	}
	m.mu.Lock()
	git, ready := m.git.dir, m.gitReady
	m.mu.Unlock()
	if !ready {
		return reply, fault.ErrNoGitDir
	}
	if done, ok := m.takeRestored(r.Nonce); ok {
		return done, nil
	}
	if r.Of != "" {
		a, err := m.adopt(ctx, r.Of, r.SessionRemote, r.ID)
		if err != nil {
			return reply, err
		}
		r.ID = string(a.point.ID)
	}
	w := &restoring{m: m, nonce: r.Nonce, found: map[string]worktree.Found{}, point: m.agent.Capture}
	for _, p := range r.Paths {
		if p = filepath.ToSlash(filepath.Clean(p)); p == "." {
			w.paths = nil
			break
		} else if !filepath.IsLocal(p) {
			return reply, fmt.Errorf("%s is not in the mount", p)
		}
		w.paths = append(w.paths, p)
	}
	lock, err := git.LockIndex(ctx)
	if err != nil {
		return reply, err
	}
	defer lock.Release() // it is given up already if all goes well
	if err := w.compare(ctx, r.ID); err != nil {
		return reply, err
	}
	if r.DryRun {
		return w.reply(true)
	}
	if err := w.carryOut(ctx, git, lock, r.Staged); err != nil {
		return reply, err
	}
	return w.reply(false)
}

// reply tells what was done, or would be.
func (w *restoring) reply(dry bool) (control.RestoreReply, error) {
	o, err := w.m.openedSession()
	if err != nil {
		return control.RestoreReply{}, err
	}
	defer o.close()
	reply := control.RestoreReply{Dir: w.m.dir, Checkpoint: o.shown(w.target), DryRun: dry, Changes: w.changes(), Kept: []string{}}
	if dry {
		return reply, nil
	}
	before := o.shown(w.now)
	reply.Before, reply.Kept = &before, append(reply.Kept, w.kept...)
	reply.Changes = slices.DeleteFunc(reply.Changes, func(c control.PathChange) bool { return slices.Contains(w.kept, c.Path) })
	return reply, nil
}

// compare finds out what differs between what is there and the point. What was found at a path is what it was before the
// point was made which has it.
func (w *restoring) compare(ctx context.Context, id string) (err error) {
	m := w.m
	if w.repo, err = m.agent.Open(ctx); err != nil {
		return err
	}
	if w.target, err = findPoint(ctx, w.repo, m, id); err != nil { // before the point is made, which is the newest then
		return err
	}
	if w.now, _, err = w.point(ctx, session.Restore, ""); err != nil {
		return err
	}
	const tries = 5 // somebody may be writing without end
	for try := 0; ; try++ {
		if err := w.differences(ctx); err != nil {
			return err
		}
		for _, d := range w.list {
			if w.found[d.Path], err = m.tree.Find(ctx, d.Path); err != nil {
				return err
			}
		}
		before := w.now
		if w.now, _, err = w.point(ctx, session.Restore, ""); err != nil {
			return err
		}
		if w.now.Tree == before.Tree || try == tries {
			break
		}
	}
	if err := w.known(ctx); err != nil {
		return err
	}
	return w.differences(ctx)
}

// known sees that each path that was asked for is one of this point or of what is there.
func (w *restoring) known(ctx context.Context) error {
	for _, p := range w.paths {
		for _, tree := range []object.ID{w.target.Tree, w.now.Tree, {}} {
			if tree.IsZero() {
				return fault.NoPathError{Path: p}
			}
			has, err := w.has(ctx, tree, p)
			if err != nil {
				return err
			}
			if has {
				break
			}
		}
	}
	return nil
}

func (w *restoring) has(ctx context.Context, tree object.ID, at string) (bool, error) {
	name, rest, deeper := strings.Cut(at, "/")
	entries, err := w.m.view.Tree(ctx, tree)
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(entries, func(e object.TreeEntry) bool { return e.Name == name })
	if i < 0 || deeper && entries[i].Mode != object.ModeDir {
		return false, nil
	}
	if !deeper {
		return true, nil
	}
	return w.has(ctx, entries[i].ID, rest)
}

// differences lists the paths that are to change, in the order of a walk.
func (w *restoring) differences(ctx context.Context) error {
	w.list = w.list[:0]
	redirects := w.m.redirects.Paths()
	err := diffDirs(ctx, w.m.view.Tree, w.now.Tree, w.target.Tree, func(path string, from, to object.TreeEntry) error {
		elsewhere := slices.ContainsFunc(redirects, func(dir string) bool { return strings.HasPrefix(path+"/", dir) })
		if !w.wants(path) || elsewhere || from.Mode == object.ModeGitlink || to.Mode == object.ModeGitlink {
			return nil
		}
		w.list = append(w.list, gitdir.Difference{Path: path, OldMode: from.Mode, NewMode: to.Mode, Old: from.ID, New: to.ID})
		return nil
	})
	if err != nil {
		return err
	}
	return w.spareChanged(ctx)
}

// wants says whether a path is one of those that were asked for, or below one.
func (w *restoring) wants(at string) bool {
	return len(w.paths) == 0 || slices.ContainsFunc(w.paths, func(p string) bool { return at == p || strings.HasPrefix(at, p+"/") })
}

func (w *restoring) changes() []control.PathChange {
	list := make([]control.PathChange, 0, len(w.list))
	for _, d := range w.list {
		list = append(list, pathChange(d.Path, object.TreeEntry{Mode: d.OldMode, ID: d.Old}, object.TreeEntry{Mode: d.NewMode, ID: d.New}))
	}
	return list
}

// plan makes grafts of the differences. A path whose place is taken by what points do not hold stays as it is.
func (w *restoring) plan(ctx context.Context) ([]worktree.Graft, error) {
	p := &plan{m: w.m, to: map[string]gitdir.Difference{}, gone: map[string]bool{}}
	for _, d := range w.list {
		if d.NewMode == 0 {
			p.gone[d.Path] = true
		}
	}
	above := map[string]bool{}
	var dirs map[string]uint32 // permissions of empty directories
	if slices.ContainsFunc(w.list, func(d gitdir.Difference) bool { return d.NewMode == object.ModeDir }) {
		state, err := w.stateOf(ctx, w.target)
		if err != nil {
			return nil, err
		}
		dirs = state.Dirs
	}
	for _, d := range w.list {
		over, looked := w.found[d.Path]
		g := worktree.Graft{Path: d.Path, Mode: d.NewMode, ID: d.New, Over: over, Perm: dirs[d.Path]}
		switch {
		case !looked: // somebody has just begun to change it
			w.kept = append(w.kept, d.Path)
			continue
		case d.NewMode == 0, d.NewMode == object.ModeDir && isDir(over):
		case over.Node == 0:
			taken, err := w.takenAbove(ctx, d.Path, p.gone, above)
			if err != nil {
				return nil, err
			}
			if taken {
				w.kept = append(w.kept, d.Path)
				continue
			}
		case isDir(over):
			left, err := p.left(ctx, over.Node, d.Path)
			if err != nil {
				return nil, err
			}
			if len(left) > 0 {
				w.kept = append(w.kept, d.Path)
				continue
			}
			p.clearAway(&g)
		}
		p.grafts = append(p.grafts, g)
	}
	p.dirsAbove(dirs)
	return append(p.grafts, p.clear...), nil
}

// dirsAbove adds the directories above empty ones that have permissions of their own.
func (p *plan) dirsAbove(perms map[string]uint32) {
	added := map[string]bool{}
	for _, g := range p.grafts {
		if g.Mode != object.ModeDir {
			continue
		}
		for dir := parentOf(g.Path); dir != "" && !added[dir]; dir = parentOf(dir) {
			added[dir] = true
			if perm, ok := perms[dir]; ok {
				p.grafts = append(p.grafts, worktree.Graft{Path: dir, Mode: object.ModeDir, Perm: perm})
			}
		}
	}
}

// takenAbove says whether there is something else where a directory of a path has to be, that does not go.
func (w *restoring) takenAbove(ctx context.Context, at string, gone, known map[string]bool) (bool, error) {
	for dir := path.Dir(at); dir != "."; dir = path.Dir(dir) {
		taken, ok := known[dir]
		if !ok {
			f, err := w.m.tree.Find(ctx, dir)
			if err != nil {
				return false, err
			}
			taken = f.Node != 0 && !isDir(f) && !gone[dir]
			known[dir] = taken
		}
		if taken {
			return true, nil
		}
	}
	return false, nil
}

// carryOut changes files and index. It gives up the lock if it succeeds.
func (w *restoring) carryOut(ctx context.Context, git *gitdir.Dir, lock *gitdir.LockedIndex, staged bool) error {
	m := w.m
	if m.handover.Stale() {
		m.server.Invalidate(m.staleAfter(ctx, w.list))
	}
	x, err := lock.Read()
	if err != nil {
		return err
	}
	grafts, err := w.plan(ctx)
	if err != nil {
		return err
	}
	device, err := mountpoint.DeviceOf(m.dir)
	if err != nil {
		return err
	}
	var index *restoredIndex
	if staged {
		if index, err = w.stagedThen(ctx, git); err != nil {
			return err
		}
	}
	if err := w.keepTarget(ctx); err != nil {
		return err
	}
	if err := w.noteRestore(staged); err != nil {
		return err
	}
	defer m.forgetRestore()          // a process that is here to see how it went has told it
	ctx = context.WithoutCancel(ctx) // what was begun is finished; it waits for nothing far away
	m.handover.Update(func(h *takeover.State) { h.Stale = true })
	done, err := m.tree.Graft(ctx, w.target.Tree, grafts, x.Token)
	m.server.Refresh(done.Since.Open)
	m.server.Invalidate(done.Stale)
	m.handover.Update(func(h *takeover.State) { h.Stale = false })
	if err != nil {
		return err
	}
	for i, g := range grafts {
		if done.Done[i].Kept {
			w.kept = append(w.kept, g.Path)
		}
	}
	written := time.Now().Truncate(time.Second).Add(time.Second)
	index.renew(x, grafts, done, device)
	return lock.Replace(x, written)
}

// keepTarget has the tree stay that the working tree is about to show parts of, even if gc drops the point.
func (w *restoring) keepTarget(ctx context.Context) error {
	defer w.repo.Working()()
	if _, err := w.repo.Find(string(w.target.ID)); err != nil { // gc was faster
		return err
	}
	ref := session.RestoredRef(w.repo.Session(), w.target.ID)
	return w.repo.Update(ctx, []session.RefChange{{Name: ref, New: w.target.Tree, Force: true}})
}
