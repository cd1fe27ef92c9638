package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/mount/mountpoint"
	"github.com/artifactfs/artifactfs/mount/takeover"
	"github.com/artifactfs/artifactfs/object"
)

// A switch moves HEAD, index and working tree to another commit without reading a content. Its steps, of which each
// leaves something that git tells the truth of:
//
//	index.lock       no git command changes the index any more
//	decide           by the two trees, the index and the overlay; what git would refuse is refused, and nothing was done
//	switch.json      what is being done, for who mounts this again if we die now: it does it again
//	worktree.Graft   paths are noted as changed, then changed; the kernel is told to look again
//	index            takes the place of the old one, and of index.lock
//	HEAD             and its reflog, last, as git does it
//
// Done again, paths that show the target's blobs already are done.

// switchFile is in the mount's home as long as a switch is under way.
const switchFile = "switch.json"

// Switch moves a mounted working tree to another commit.
func (d *Daemon) Switch(ctx context.Context, r control.SwitchRequest, progress func(control.Progress)) (control.SwitchReply, error) {
	m, ok := d.find(r.Dir)
	if !ok || !m.served() {
		return control.SwitchReply{}, fault.NotMounted("switch", r.Dir)
	}
	start := time.Now()
	reply, err := m.switchTo(ctx, r, progress)
	if err != nil {
		return control.SwitchReply{}, fault.Subject{Area: fault.Switch, Verb: "switch", Object: cmp.Or(r.Create, r.Ref), Ref: r.Ref, GitDir: m.gitPath()}.Explain(err)
	}
	reply.Took = time.Since(start).Milliseconds()
	d.log.Info("switched", zap.String("dir", m.dir), zap.String("commit", reply.Commit), zap.Int64("paths", reply.Paths), zap.Int64("total_ms", reply.Took))
	return reply, nil
}

func (m *mount) switchTo(ctx context.Context, r control.SwitchRequest, progress func(control.Progress)) (control.SwitchReply, error) {
	if !m.writable() {
		return control.SwitchReply{}, fault.ErrReadOnly
	}
	if !m.triedGit(ctx) {
		return control.SwitchReply{}, errors.Join(ctx.Err(), fault.ErrNoGitDir)
	}
	m.mu.Lock()
	git, ready := m.git.dir, m.gitReady
	m.mu.Unlock()
	if !ready {
		return control.SwitchReply{}, fault.ErrNoGitDir
	}
	return m.moveTo(ctx, git, r, false, progress)
}

// moveTo is switchTo where there is a git directory. Again says that some of it may be done already.
func (m *mount) moveTo(ctx context.Context, git *gitdir.Dir, r control.SwitchRequest, again bool, progress func(control.Progress)) (control.SwitchReply, error) {
	var reply control.SwitchReply
	if what := git.Busy(); what != "" {
		return reply, fault.GitBusyError(what)
	}
	from, err := git.Head(ctx)
	if err != nil {
		return reply, err
	}
	var to gitdir.Destination
	if r.Forward != "" {
		to, err = forward(ctx, git, r)
	} else {
		to, err = m.destination(ctx, git, r, progress)
	}
	if err != nil {
		return reply, err
	}
	lock, err := git.LockIndex(ctx)
	if err != nil {
		return reply, err
	}
	reply, err = m.change(ctx, git, lock, from.Tree, to.Tree, lasting(r, to), again)
	if err != nil {
		return reply, errors.Join(err, lock.Release())
	}
	// Done again, HEAD may have been moved already: the reflog shall not say that it was moved to where it was.
	switch {
	case again && from.Branch == to.Branch && from.Commit == to.Commit && !to.New:
	case r.Forward != "":
		err = git.Forward(ctx, to.Branch, from.Commit, to.Commit, "follow: moving from "+from.Commit.String()+" to "+to.Commit.String())
	default:
		err = git.Move(ctx, from, to)
	}
	if err != nil { // git says what differs from HEAD; nobody shall move it later behind the user's back
		return reply, errors.Join(err, m.forgetSwitch())
	}
	if err := m.forgetSwitch(); err != nil {
		m.daemon.log.Warn("forget a switch that is done", zap.Error(err))
	}
	m.show(to.Tree)
	reply.Dir, reply.From, reply.FromCommit = m.dir, from.Branch, from.Commit.String()
	reply.Branch, reply.Commit, reply.Created, reply.Upstream = to.Branch, to.Commit.String(), to.New, strings.TrimPrefix(to.Upstream, "refs/remotes/")
	return reply, nil
}

// forward is the branch that HEAD is on, at another commit that is here.
func forward(ctx context.Context, git *gitdir.Dir, r control.SwitchRequest) (gitdir.Destination, error) {
	at, err := git.Commit(ctx, r.Forward)
	if err == nil && at.Commit.IsZero() {
		err = gitdir.ErrNoCommit
	}
	at.Branch = r.Ref
	return gitdir.Destination{Head: at, Name: r.Ref}, err
}

// lasting is a request that means the same when HEAD has been moved: "-" and "HEAD~2" do not.
func lasting(r control.SwitchRequest, to gitdir.Destination) control.SwitchRequest {
	switch {
	case r.Forward != "", r.Create != "": // found to be there when it is done again
	case to.Branch != "":
		r.Ref = to.Branch
	default:
		r.Ref = to.Commit.String()
	}
	return r
}

// destination finds out where to go. What only the remote knows is brought here: the commit and its trees, in one
// request.
func (m *mount) destination(ctx context.Context, git *gitdir.Dir, r control.SwitchRequest, progress func(control.Progress)) (gitdir.Destination, error) {
	wish := gitdir.Wish{Name: r.Ref, Create: r.Create, Detach: r.Detach}
	to, err := git.Resolve(ctx, wish)
	if !errors.Is(err, gitdir.ErrNoCommit) || r.Ref == "" || r.Ref == "-" {
		return to, err
	}
	progress(control.Progress{Phase: "trees"})
	snap, remoteErr := m.store.Acquire(ctx, r.Ref)
	var unknown *fetch.RefError
	if errors.As(remoteErr, &unknown) {
		return to, err
	}
	if remoteErr != nil {
		return to, fault.Remote(remoteErr)
	}
	if err := snap.Wait(ctx); err != nil {
		return to, fault.Remote(err)
	}
	if err := errors.Join(git.SetShallow(m.store.Boundary()), git.Track(ctx, snap.Ref, snap.Commit)); err != nil {
		return to, err
	}
	return git.Resolve(ctx, wish)
}

// change brings index and working tree from one tree to another. It gives up the lock if it succeeds.
func (m *mount) change(ctx context.Context, git *gitdir.Dir, lock *gitdir.LockedIndex, from, to object.ID, r control.SwitchRequest, again bool) (reply control.SwitchReply, err error) {
	list, err := git.Differences(ctx, from, to)
	if err != nil {
		return reply, err
	}
	if m.handover.Stale() {
		m.server.Invalidate(m.staleAfter(ctx, list))
	}
	x, err := lock.Read()
	if err != nil {
		return reply, err
	}
	p, err := m.planSwitch(ctx, git, x, list, again)
	if err != nil {
		return reply, err
	}
	device, err := mountpoint.DeviceOf(m.dir)
	if err != nil {
		return reply, err
	}
	staged, err := git.Staged(ctx, to)
	if err != nil {
		return reply, err
	}
	missing, err := m.missing(ctx, git, to)
	if err != nil {
		return reply, err
	}
	if err := m.noteSwitch(r); err != nil {
		return reply, err
	}
	ctx = context.WithoutCancel(ctx) // what was begun is finished; it waits for nothing far away
	m.handover.Update(func(h *takeover.State) { h.Stale = true })
	done, err := m.tree.Graft(ctx, to, append(p.grafts, p.clear...), x.Token)
	m.server.Refresh(done.Since.Open)
	m.server.Invalidate(done.Stale)
	m.handover.Update(func(h *takeover.State) { h.Stale = false })
	if err != nil {
		// What was done is on record as changed; nobody shall go on with it behind the user's back.
		return reply, errors.Join(err, m.forgetSwitch())
	}
	written := time.Now().Truncate(time.Second).Add(time.Second)
	entries, kept := p.changes(done.Done, device)
	m.renew(x, entries, done.Since, m.others(ctx, slices.Concat(missing, staged)), written)
	m.setTrees(ctx, x, to, except(staged, entries))
	reply.Paths, reply.Kept = int64(len(entries)), kept
	return reply, lock.Replace(x, written)
}

// noteSwitch makes sure that the switch is finished if this process ends in the middle of it.
func (m *mount) noteSwitch(r control.SwitchRequest) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return disk.WriteFile(filepath.Join(m.home.Dir, switchFile), append(text, '\n'), 0o600)
}

func (m *mount) forgetSwitch() error {
	err := os.Remove(filepath.Join(m.home.Dir, switchFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// finishSwitch does again what a process began that ended in the middle of it. If that cannot be done, the working tree
// is as that process left it, and git says so.
func (m *mount) finishSwitch(ctx context.Context, git *gitdir.Dir) {
	if !m.writable() && !m.request.Follow {
		return
	}
	text, err := os.ReadFile(filepath.Join(m.home.Dir, switchFile))
	began := !errors.Is(err, fs.ErrNotExist)
	if lockErr := git.BreakLocks(ctx); lockErr != nil {
		m.daemon.log.Warn("break the locks of an interrupted switch", zap.String("dir", m.dir), zap.Error(lockErr))
	}
	if !began {
		return
	}
	var r control.SwitchRequest
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err == nil {
		_, err = m.moveTo(ctx, git, r, true, func(control.Progress) {})
	}
	if errors.Is(err, gitdir.ErrBranchExists) { // it was made, and HEAD not moved yet
		_, err = m.moveTo(ctx, git, control.SwitchRequest{Dir: r.Dir, Ref: r.Create}, true, func(control.Progress) {})
	}
	if err != nil {
		m.daemon.log.Warn("finish a switch that was interrupted", zap.String("dir", m.dir), zap.Error(errors.Join(err, m.forgetSwitch())))
	}
}

// shownFile says which tree a mount shows, if that is not the base tree.
const shownFile = "shown"

// show makes what is read together, and what is hydrated, go by another tree.
func (m *mount) show(tree object.ID) {
	m.view.Show(tree)
	if err := disk.WriteFile(filepath.Join(m.home.Dir, shownFile), []byte(tree.String()+"\n"), 0o600); err != nil {
		m.daemon.log.Warn("note which tree is shown", zap.Error(err))
	}
	select {
	case m.shown <- struct{}{}:
	default: // it will be looked at anyway
	}
}

// showsOther waits until another tree is shown; false: ctx has ended.
func (m *mount) showsOther(ctx context.Context) bool {
	select {
	case <-m.shown:
		return true
	case <-ctx.Done():
		return false
	}
}

// showAgain is show for a mount that goes on.
func (m *mount) showAgain() {
	text, err := os.ReadFile(filepath.Join(m.home.Dir, shownFile))
	if err != nil {
		return
	}
	if tree, err := object.ParseID(strings.TrimSpace(string(text))); err == nil {
		m.view.Show(tree)
	}
}
