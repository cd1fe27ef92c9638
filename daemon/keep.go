package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// Keeper keeps open files for the process that goes on when this one has died, by whatever. What it was given before that
// counts, whether it has heard of it yet or not.
type Keeper interface {
	// Keep keeps a file in place of the one that it had by that name.
	Keep(name string, f *os.File) error
	// Drop forgets one.
	Drop(name string) error
}

// errLocked says that a lock was not given up for too long.
var errLocked = errors.New("a lock is held for too long")

// Alive says whether this process can still serve: every mount answers what it has in memory. ctx bounds how long that
// may take.
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
	go func() { // it stays if a lock is never given up: the process is then about to be ended
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

// touch takes the locks of a mount that are never held for long.
func (m *mount) touch() {
	m.mu.Lock()
	served := m.cancel != nil
	m.mu.Unlock()
	if served { // the tree is there, and stays
		m.tree.Stats()
	}
}
