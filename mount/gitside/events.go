package gitside

import (
	"context"
	"sync"
	"sync/atomic"
)

// Events are the events in the background work of a mount that git commands and requests wait for. The methods are safe for concurrent
// use.
type Events struct {
	// These channels are closed after the first attempt to create the git directory, to fetch the history, or to prefetch
	// contents, even if that attempt failed.
	GitTried, HistoryTried, HydrateTried chan struct{}

	// WantGit makes the mount create the git directory without waiting for its turn among the mounts of the daemon.
	WantGit func()

	gitWanted     chan struct{}   // closed by WantGit
	historyWanted atomic.Bool     // a git command waits for history
	gone          <-chan struct{} // closed when the mount has ended
}

// NewEvents returns the events of a mount that closes gone when it has ended.
func NewEvents(gone <-chan struct{}) *Events {
	e := &Events{
		GitTried: make(chan struct{}), HistoryTried: make(chan struct{}), HydrateTried: make(chan struct{}),
		gitWanted: make(chan struct{}), gone: gone,
	}
	e.WantGit = sync.OnceFunc(func() { close(e.gitWanted) })
	return e
}

// AwaitGit waits until the mount has tried to create the git directory, and calls WantGit before. It returns false if ctx or the mount
// ends first.
func (e *Events) AwaitGit(ctx context.Context) bool {
	e.WantGit()
	return e.Await(ctx, e.GitTried)
}

// GitWasTried reports whether the mount has tried to create the git directory.
func (e *Events) GitWasTried() bool {
	select {
	case <-e.GitTried:
		return true
	default:
		return false
	}
}

// Await waits until the channel what is closed. It returns false if ctx or the mount ends first.
func (e *Events) Await(ctx context.Context, what <-chan struct{}) bool {
	select {
	case <-what:
		return true
	case <-ctx.Done():
	case <-e.gone:
	}
	return false
}
