package moves

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch/remoteref"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/host/checkout"
	"github.com/artifactfs/artifactfs/host/fault"
)

// Switch changes the working tree, the index and HEAD to another commit. Errors have a hint.
func (m *Mover) Switch(ctx context.Context, r control.SwitchRequest,
	progress func(control.Progress)) (control.SwitchReply, error) {
	start := time.Now()
	reply, err := m.switchTo(ctx, r, progress)
	if err != nil {
		of := fault.Subject{Area: fault.Switch, Verb: "switch", Object: cmp.Or(r.Create, r.Ref), Ref: r.Ref,
			GitDir: m.Mount.GitDir}
		return control.SwitchReply{}, of.Explain(err)
	}
	reply.Took = time.Since(start).Milliseconds()
	m.Log.Info("switched", zap.String("dir", m.Mount.Dir), zap.String("commit", reply.Commit),
		zap.Int64("paths", reply.Paths),
		zap.Int64("total_ms", reply.Took))
	return reply, nil
}

// switchTo implements Switch, without hints in its errors.
func (m *Mover) switchTo(ctx context.Context, r control.SwitchRequest,
	progress func(control.Progress)) (control.SwitchReply, error) {
	if !m.Mount.Writable {
		return control.SwitchReply{}, fault.ErrReadOnly
	}
	git, err := m.Ready(ctx)
	if err != nil {
		return control.SwitchReply{}, err
	}
	return m.MoveTo(ctx, git, checkout.SwitchIntent{Ref: r.Ref, Create: r.Create, Detach: r.Detach}, progress)
}

// MoveTo changes HEAD, the index and the working tree to the destination in the intent want. It first completes changes
// that have failed and could not be undone.
func (m *Mover) MoveTo(ctx context.Context, git *gitdir.Dir, want checkout.SwitchIntent,
	progress func(control.Progress)) (control.SwitchReply, error) {
	if err := m.finishUnfinished(ctx, git); err != nil {
		return control.SwitchReply{}, err
	}
	return m.moveTo(ctx, git, want, nil, progress)
}

// moveTo implements MoveTo. pending is the interrupted switch that is repeated, or nil for a new switch.
func (m *Mover) moveTo(ctx context.Context, git *gitdir.Dir, want checkout.SwitchIntent, pending *checkout.Pending,
	progress func(control.Progress)) (control.SwitchReply, error) {
	var reply control.SwitchReply
	// The user must first complete or abort a merge or rebase that is in progress.
	if what := git.Busy(); what != "" {
		return reply, fault.GitBusyError(what)
	}
	// The switch starts from the current HEAD, because git may have changed HEAD since the mount was created.
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
		Dir: m.Mount.Dir, From: from.Branch, FromCommit: from.Commit.String(), Branch: to.Branch, Commit: to.Commit.String(),
		Created:  to.New,
		Upstream: strings.TrimPrefix(to.Upstream, "refs/remotes/"), Paths: done.Paths, Kept: done.Kept,
	}, nil
}

// forward returns the destination of a switch that moves the current branch to the commit want.Forward, which must be
// on this host.
func forward(ctx context.Context, git *gitdir.Dir, want checkout.SwitchIntent) (gitdir.Destination, error) {
	at, err := git.Commit(ctx, want.Forward)
	if err == nil && at.Commit.IsZero() {
		err = gitdir.ErrNoCommit
	}
	at.Branch = want.Ref
	return gitdir.Destination{Head: at, Name: want.Ref}, err
}

// destination returns the commit to which the intent want switches HEAD. If the branch, tag or commit is only on the
// remote, destination fetches it and its trees with one request.
func (m *Mover) destination(ctx context.Context, git *gitdir.Dir, want checkout.SwitchIntent,
	progress func(control.Progress)) (gitdir.Destination, error) {
	wish := gitdir.Wish{Name: want.Ref, Create: want.Create, Detach: want.Detach}
	to, err := git.Resolve(ctx, wish)
	// No fetch is needed if git has resolved the name, or if no branch, tag or commit on the remote can have this name.
	if !errors.Is(err, gitdir.ErrNoCommit) || want.Ref == "" || want.Ref == "-" {
		return to, err
	}
	progress(control.Progress{Phase: "trees"})
	snap, remoteErr := m.Mount.Store.Acquire(ctx, want.Ref)
	var unknown *remoteref.Error
	if errors.As(remoteErr, &unknown) {
		return to, err
	}
	if remoteErr != nil {
		return to, fault.Remote(remoteErr)
	}
	// The comparison sends no requests, so all trees must be fetched before.
	if err := snap.Wait(ctx); err != nil {
		return to, fault.Remote(err)
	}
	// The commit was fetched without its history. It is recorded as shallow, so that git does not look for its parents.
	if err := errors.Join(git.SetShallow(m.Mount.Store.Boundary()), git.Track(ctx, snap.Ref, snap.Commit)); err != nil {
		return to, err
	}
	return git.Resolve(ctx, wish)
}

// finishSwitch repeats the switch p, which was interrupted. If that fails, finishSwitch calls leave, adds a note to the
// status if the switch is not tried again, and returns the error.
func (m *Mover) finishSwitch(ctx context.Context, git *gitdir.Dir, p *checkout.Pending) error {
	err := p.Err
	if err == nil {
		quiet := func(control.Progress) {}
		_, err = m.moveTo(ctx, git, *p.Switch, p, quiet)
		// The killed process may have created the branch of the switch already.
		if rest, ok := p.Switch.Retry(err); ok {
			_, err = m.moveTo(ctx, git, rest, p, quiet)
		}
	}
	if err != nil && m.leave(ctx, p, "finish a switch that was interrupted", err) {
		m.Mount.Agent.AddNote(fmt.Sprintf("%s was interrupted and cannot be completed (%v): git status lists the paths that "+
			"it may have changed", p.Intent, err))
	}
	return err
}
