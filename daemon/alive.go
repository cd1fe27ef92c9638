package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/artifactfs/artifactfs/mount/takeover"
	"github.com/artifactfs/artifactfs/statedir"
	"github.com/artifactfs/artifactfs/worktree"
)

// beginHandover makes the mount known to a successor from now on. A mount that cannot be kept is served as one without a keeper.
func (m *mount) beginHandover() {
	h := takeover.State{Phase: takeover.Preparing, ID: m.id, Dir: m.dir, Since: m.since, Request: m.request}
	if m.parent != nil {
		h.Around = m.parent.dir
	}
	m.handover = takeover.Begin(m.daemon.keeper, h, m.daemon.log)
}

// errLocked reports a lock that was held for too long.
var errLocked = errors.New("a lock is held for too long")

// Alive returns nil if every mount answers from memory, so that this process can serve. It returns errLocked if that takes until ctx
// ends.
func (d *Daemon) Alive(ctx context.Context) error {
	done := make(chan struct{})
	at := make(chan string, 1) // what is being asked
	ask := func(what string) {
		select {
		case <-at:
		default:
		}
		at <- what
	}
	go func() { // it never ends if a lock is never released: the process is about to be killed then
		defer close(done)
		ask("the registry")
		for _, m := range d.list() {
			ask(m.dir)
			m.touch()
		}
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("ask %s: %w", <-at, errLocked)
	}
}

// touch acquires and releases the locks of a mount, none of which is held for long.
func (m *mount) touch() {
	m.mu.Lock()
	served := m.cancel != nil
	m.mu.Unlock()
	if served { // the tree is there, and stays
		m.tree.KnownAttr(worktree.Root)
	}
}

func failureOf(h takeover.State, why error) statedir.Failure {
	return statedir.Failure{
		Dir: h.Dir, ID: h.ID, Remote: statedir.WithoutSecrets(h.Request.Remote), Session: h.Record.Session, Ref: h.Record.Ref, Commit: h.Record.Commit,
		When: time.Now(), Cause: why.Error(),
	}
}
