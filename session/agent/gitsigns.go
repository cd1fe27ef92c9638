package agent

import (
	"sync"
	"time"
)

// gitSigns notes that something has changed in the git directory: refs, HEAD, the index. Many such changes are not part of a
// checkpoint; whether they are is found out when one is made. Moves of branches, HEAD and stashes always are: their commits
// are pushed at once, and the checkpoint that belongs to them must follow soon.
type gitSigns struct {
	moved chan struct{} // holds one
	refs  chan struct{} // holds one, after a ref has moved

	mu            sync.Mutex
	at            time.Time // of the latest sign that was taken from moved
	first, latest time.Time // moves of refs that are in no checkpoint: the first, and the latest; zero: there are none
}

func newGitSigns() gitSigns {
	return gitSigns{moved: make(chan struct{}, 1), refs: make(chan struct{}, 1)}
}

// refMoved notes the move of a ref.
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

// clear forgets moves of refs, and reports whether there were any.
func (g *gitSigns) clear() bool {
	drain(g.refs)
	g.mu.Lock()
	defer g.mu.Unlock()
	moved := !g.first.IsZero()
	g.first, g.latest = time.Time{}, time.Time{}
	return moved
}

// due returns when a checkpoint of moved refs is to be made; zero: none has moved. tried is when the last one was decided on,
// which took so long. One that takes long is made more rarely, so that a rebase of a hundred commits does not wait for it.
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

// sign puts a token back that was taken from moved.
func (g *gitSigns) sign() {
	select {
	case g.moved <- struct{}{}:
	default:
	}
}

// heard notes that a token was taken from moved.
func (g *gitSigns) heard() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.at = time.Now()
}

// last returns the time of the latest change, as far as tokens were taken.
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

// watch returns a watch that also sends to moved.
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
