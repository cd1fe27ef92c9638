package mount

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/checkout"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/object"
)

// Switch changes the working tree, the index and HEAD to another commit. Its errors name the cause and a remedy.
func (m *Mount) Switch(ctx context.Context, r control.SwitchRequest, progress func(control.Progress)) (control.SwitchReply, error) {
	start := time.Now()
	reply, err := m.switchOnly(ctx, r, progress)
	if err != nil {
		of := fault.Subject{Area: fault.Switch, Verb: "switch", Object: cmp.Or(r.Create, r.Ref), Ref: r.Ref, GitDir: m.gitPath()}
		return control.SwitchReply{}, of.Explain(err)
	}
	reply.Took = time.Since(start).Milliseconds()
	m.host.Log.Info("switched", zap.String("dir", m.Dir), zap.String("commit", reply.Commit), zap.Int64("paths", reply.Paths),
		zap.Int64("total_ms", reply.Took))
	return reply, nil
}

// switchOnly implements Switch; its errors carry no hints yet.
func (m *Mount) switchOnly(ctx context.Context, r control.SwitchRequest, progress func(control.Progress)) (control.SwitchReply, error) {
	if !m.Writable() {
		return control.SwitchReply{}, fault.ErrReadOnly
	}
	git, err := m.readyGit(ctx)
	if err != nil {
		return control.SwitchReply{}, err
	}
	return m.moveTo(ctx, git, checkout.SwitchIntent{Ref: r.Ref, Create: r.Create, Detach: r.Detach}, nil, progress)
}

// moveTo changes HEAD, the index and the working tree to the destination of want. The parameter pending is the interrupted
// switch that is repeated, or nil for a new switch.
func (m *Mount) moveTo(ctx context.Context, git *gitdir.Dir, want checkout.SwitchIntent, pending *checkout.Pending,
	progress func(control.Progress)) (control.SwitchReply, error) {
	var reply control.SwitchReply
	// A merge or rebase in progress has to be finished or aborted with git first.
	if what := git.Busy(); what != "" {
		return reply, fault.GitBusyError(what)
	}
	// The comparison starts from the current HEAD, which git may have moved since the mount.
	from, err := git.Head(ctx)
	if err != nil {
		return reply, err
	}
	var to gitdir.Destination
	if want.Forward != "" {
		to, err = forward(ctx, git, want)
	} else {
		to, err = m.destination(ctx, git, want, progress)
	}
	if err != nil {
		return reply, err
	}
	done, err := m.checkouts(git).Switch(ctx, from, to, want, pending)
	if err != nil {
		return reply, err
	}
	return control.SwitchReply{
		Dir: m.Dir, From: from.Branch, FromCommit: from.Commit.String(), Branch: to.Branch, Commit: to.Commit.String(), Created: to.New,
		Upstream: strings.TrimPrefix(to.Upstream, "refs/remotes/"), Paths: done.Paths, Kept: done.Kept,
	}, nil
}

// forward returns the current branch with want.Forward as its new commit. That commit must be on this host.
func forward(ctx context.Context, git *gitdir.Dir, want checkout.SwitchIntent) (gitdir.Destination, error) {
	at, err := git.Commit(ctx, want.Forward)
	if err == nil && at.Commit.IsZero() {
		err = gitdir.ErrNoCommit
	}
	at.Branch = want.Ref
	return gitdir.Destination{Head: at, Name: want.Ref}, err
}

// destination returns the commit to switch to. If a branch, tag or commit exists on the remote alone, destination fetches it and
// its trees in one request.
func (m *Mount) destination(ctx context.Context, git *gitdir.Dir, want checkout.SwitchIntent,
	progress func(control.Progress)) (gitdir.Destination, error) {
	wish := gitdir.Wish{Name: want.Ref, Create: want.Create, Detach: want.Detach}
	to, err := git.Resolve(ctx, wish)
	// Git knows the name, or it can never name a commit of the remote.
	if !errors.Is(err, gitdir.ErrNoCommit) || want.Ref == "" || want.Ref == "-" {
		return to, err
	}
	progress(control.Progress{Phase: "trees"})
	snap, remoteErr := m.store.Acquire(ctx, want.Ref)
	var unknown *fetch.RefError
	if errors.As(remoteErr, &unknown) {
		return to, err
	}
	if remoteErr != nil {
		return to, fault.Remote(remoteErr)
	}
	// All trees are needed before the comparison, which sends no requests.
	if err := snap.Wait(ctx); err != nil {
		return to, fault.Remote(err)
	}
	// The fetched commit is recorded as shallow, so that git does not look for its history.
	if err := errors.Join(git.SetShallow(m.store.Boundary()), git.Track(ctx, snap.Ref, snap.Commit)); err != nil {
		return to, err
	}
	return git.Resolve(ctx, wish)
}

// finishSwitch repeats an interrupted switch. If that fails, it removes the switch from the journal.
func (m *Mount) finishSwitch(ctx context.Context, git *gitdir.Dir, p *checkout.Pending) {
	err := p.Err
	if err == nil {
		quiet := func(control.Progress) {}
		_, err = m.moveTo(ctx, git, *p.Switch, p, quiet)
		// The killed process may have created the branch already.
		if rest, ok := p.Switch.Retry(err); ok {
			_, err = m.moveTo(ctx, git, rest, p, quiet)
		}
	}
	if err != nil {
		m.abandonCheckout(ctx, p, "finish a switch that was interrupted", err)
	}
}

// shownFile is the file in a home that stores the id of the tree to prefetch, if that is not the base tree.
const shownFile = "shown"

// show sets the tree that prefetch and readahead use.
func (m *Mount) show(tree object.ID) {
	m.view.Show(tree)
	// If this fails, a later process prefetches the base tree instead.
	if err := disk.WriteFile(filepath.Join(m.home.Dir, shownFile), []byte(tree.String()+"\n"), 0o600); err != nil {
		m.host.Log.Warn("note which tree is shown", zap.Error(err))
	}
	select {
	case m.shown <- struct{}{}:
	default: // a wake-up is pending already
	}
}

// showsOther waits until show is called. It returns false if ctx ends first.
func (m *Mount) showsOther(ctx context.Context) bool {
	select {
	case <-m.shown:
		return true
	case <-ctx.Done():
		return false
	}
}

// showAgain calls show with the tree in shownFile, for a mount that is resumed or taken over.
func (m *Mount) showAgain() {
	text, err := os.ReadFile(filepath.Join(m.home.Dir, shownFile))
	if err != nil {
		return
	}
	if tree, err := object.ParseID(strings.TrimSpace(string(text))); err == nil {
		m.view.Show(tree)
	}
}
