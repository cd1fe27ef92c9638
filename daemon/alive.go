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

// beginHandover stores the state of the mount with the keeper (the interface to the supervisor), so that a successor of this
// worker can take over the mount. If that fails, the mount is served anyway, but cannot be taken over.
func (m *mount) beginHandover() {
	h := takeover.State{Phase: takeover.Preparing, ID: m.id, Dir: m.dir, Since: m.since, Request: m.request}
	if m.parent != nil {
		h.ParentDir = m.parent.dir
	}
	m.handover = takeover.Begin(m.daemon.keeper, h, m.daemon.log)
}

// errLocked reports that a lock was held until the deadline of Alive.
var errLocked = errors.New("a lock is held for too long")

// Alive checks that no lock is held forever. It acquires and releases the lock of the mount table and the locks of every mount,
// and returns nil when it has done so. If ctx ends first, it returns an error that wraps errLocked and names the lock that it
// was waiting for. The supervisor replaces a worker that fails this check.
func (d *Daemon) Alive(ctx context.Context) error {
	done := make(chan struct{})
	at := make(chan string, 1) // name of what is being locked
	// ask announces the lock that is about to be acquired. It replaces the previous name in the channel, whether or not that was
	// read.
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

// touch acquires and releases the lock of the mount, and the lock of its inode tree. All code holds these locks briefly.
func (m *mount) touch() {
	m.mu.Lock()
	served := m.cancel != nil
	m.mu.Unlock()
	if served { // only then tree is set, and it stays set
		m.tree.KnownAttr(worktree.Root)
	}
}

// failureOf returns the record of a mount that ended without an unmount, with why as the cause. Credentials are removed from the
// URL.
func failureOf(h takeover.State, why error) statedir.Failure {
	return statedir.Failure{
		Dir: h.Dir, ID: h.ID, Remote: statedir.WithoutSecrets(h.Request.Remote), Session: h.Record.Session,
		Ref: h.Record.Ref, Commit: h.Record.Commit, When: time.Now(), Cause: why.Error(),
	}
}
