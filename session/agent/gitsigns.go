package agent

import (
	"sync"
	"time"
)

// gitSigns records that refs, HEAD or the index in the git directory have changed. Many such changes do not affect a
// checkpoint, which is only known after the capture. Moves of branches, HEAD and stashes always do: their commits are
// pushed at once, and the checkpoint that belongs to them must follow soon.
type gitSigns struct {
	moved chan struct{} // holds one token after any change
	refs  chan struct{} // holds one token after a ref has moved

	// mu guards the fields below.
	mu            sync.Mutex
	at            time.Time // when the latest token was taken from moved
	first, latest time.Time // first and latest move of a ref that no checkpoint has; zero if there is none
}

// newGitSigns returns gitSigns without a change.
func newGitSigns() gitSigns {
	return gitSigns{moved: make(chan struct{}, 1), refs: make(chan struct{}, 1)}
}

// refMoved records the move of a ref.
func (g *gitSigns) refMoved() {
	g.mu.Lock()
	g.latest = time.Now()
	if g.first.IsZero() {
		g.first = g.latest
	}
	g.mu.Unlock()
	select {
	case g.refs <- struct{}{}:
	default:
	}
}

// clear removes recorded moves of refs, and reports whether there were any.
func (g *gitSigns) clear() bool {
	drain(g.refs)
	g.mu.Lock()
	defer g.mu.Unlock()
	moved := !g.first.IsZero()
	g.first, g.latest = time.Time{}, time.Time{}
	return moved
}

// due returns when to make a checkpoint of moved refs; zero if none has moved. tried is the time of the previous
// decision, and took is how long it took with its checkpoint. The longer checkpoints take, the more rarely they are
// made, so that a rebase of a hundred commits does not wait for each of them.
func (g *gitSigns) due(tried time.Time, took time.Duration) time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.first.IsZero() {
		return time.Time{}
	}
	at := g.latest.Add(gitRest)
	if by := g.first.Add(gitMost); by.Before(at) {
		at = by
	}
	if least := tried.Add(min(max(gitMost, 5*took), idleMost)); !tried.IsZero() && at.Before(least) {
		at = least
	}
	return at
}

// sign returns a token that was taken from moved.
func (g *gitSigns) sign() {
	select {
	case g.moved <- struct{}{}:
	default:
	}
}

// heard records that a token was taken from moved.
func (g *gitSigns) heard() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.at = time.Now()
}

// last returns the time of the latest known change: now if a token is waiting in moved.
func (g *gitSigns) last() time.Time {
	if len(g.moved) > 0 {
		return time.Now()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.at
}

// watchFunc is the type of Config.Watch.
type watchFunc = func(dir string, wake chan<- struct{}) (stop func(), fresh bool, err error)

// watch returns a watch function that also sends to moved.
func (g *gitSigns) watch(watch watchFunc) watchFunc {
	return func(dir string, wake chan<- struct{}) (func(), bool, error) {
		theirs, fresh, err := watch(dir, wake)
		if err != nil || !fresh {
			return nil, false, err
		}
		ours, fresh, err := watch(dir, g.moved)
		if err != nil {
			theirs()
			return nil, false, err
		}
		if !fresh {
			return theirs, true, nil
		}
		return func() { theirs(); ours() }, true, nil
	}
}
