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

// beginHandover stores the state of the mount with the keeper, so that a successor can take the mount over. If that fails, the
// mount is served as one without a keeper.
func (m *mount) beginHandover() {
	h := takeover.State{Phase: takeover.Preparing, ID: m.id, Dir: m.dir, Since: m.since, Request: m.request}
	if m.parent != nil {
		h.ParentDir = m.parent.dir
	}
	m.handover = takeover.Begin(m.daemon.keeper, h, m.daemon.log)
}

// errLocked reports that a lock was held until the deadline of Alive.
var errLocked = errors.New("a lock is held for too long")

// Alive acquires and releases the lock of the registry and those of every mount, and returns nil if it could. If ctx ends
// before, it returns an error that wraps errLocked and names the mount whose lock is held. The supervisor replaces a worker
// that fails this check.
func (d *Daemon) Alive(ctx context.Context) error {
	done := make(chan struct{})
	at := make(chan string, 1) // name of what is being locked
	// ask replaces the name in at, whether or not it was read.
	ask := func(what string) {
		select {
		case <-at:
		default:
		}
		at <- what
	}
	// The goroutine leaks if a lock is never released, but then the supervisor kills this process.
	go func() {
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

// touch acquires and releases the locks of the mount and of its tree. No code holds them for long.
func (m *mount) touch() {
	m.mu.Lock()
	served := m.cancel != nil
	m.mu.Unlock()
	if served { // only then tree is set, and it stays set
		m.tree.KnownAttr(worktree.Root)
	}
}

// failureOf returns the record of a mount that ended without an unmount, with why as the cause. It has no secrets.
func failureOf(h takeover.State, why error) statedir.Failure {
	return statedir.Failure{
		Dir: h.Dir, ID: h.ID, Remote: statedir.WithoutSecrets(h.Request.Remote), Session: h.Record.Session,
		Ref: h.Record.Ref, Commit: h.Record.Commit, When: time.Now(), Cause: why.Error(),
	}
}
