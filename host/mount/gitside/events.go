package gitside

import (
	"context"
	"sync"
	"sync/atomic"
)

// Events has the events of a mount's background work for which git commands and requests wait. The methods may be
// called from any goroutine.
type Events struct {
	// These channels are closed after the first attempt to create the git directory, to fetch the history, and to
	// prefetch contents. The attempt may have failed.
	GitTried, HistoryTried, HydrateTried chan struct{}

	// WantGit makes the mount create the git directory at once, although other mounts are being started.
	WantGit func()

	gitWanted     chan struct{}   // closed by WantGit
	historyWanted atomic.Bool     // whether a git command is waiting for the history
	gone          <-chan struct{} // closed when the mount has ended
}

// NewEvents returns the events of a mount. gone is closed when the mount has ended.
func NewEvents(gone <-chan struct{}) *Events {
	e := &Events{
		GitTried: make(chan struct{}), HistoryTried: make(chan struct{}), HydrateTried: make(chan struct{}),
		gitWanted: make(chan struct{}), gone: gone,
	}
	e.WantGit = sync.OnceFunc(func() { close(e.gitWanted) })
	return e
}

// AwaitGit calls WantGit and waits until the mount has tried to create the git directory. It returns false if ctx or
// the mount ends first.
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
