package agent

import (
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/internal/signal"
)

// gitSigns records that refs, HEAD or the index in the mount's git directory have changed. An update of a branch, HEAD
// or a stash always requires a checkpoint, and soon, because the commits of an updated branch are pushed immediately.
// After any other change, only a capture shows whether a checkpoint is needed; often it is not.
type gitSigns struct {
	moved chan struct{} // holds one token after any change
	refs  chan struct{} // holds one token after a ref was updated

	// The lock mu protects the fields below.
	mu            sync.Mutex
	at            time.Time // time at which a token was last taken from moved
	first, latest time.Time // first and latest update of a ref since the last checkpoint; zero if there was none
}

// newGitSigns returns a gitSigns without recorded changes.
func newGitSigns() gitSigns {
	return gitSigns{moved: make(chan struct{}, 1), refs: make(chan struct{}, 1)}
}

// refMoved records that a ref in the git directory was updated.
func (g *gitSigns) refMoved() {
	g.mu.Lock()
	g.latest = time.Now()
	if g.first.IsZero() {
		g.first = g.latest
	}
	g.mu.Unlock()
	signal.Send(g.refs)
}

// clear removes the recorded updates of refs. It returns false if there were none.
func (g *gitSigns) clear() bool {
	signal.Take(g.refs)
	g.mu.Lock()
	defer g.mu.Unlock()
	moved := !g.first.IsZero()
	g.first, g.latest = time.Time{}, time.Time{}
	return moved
}

// due returns the time at which a checkpoint of updated refs has to be created, or zero if no ref was updated. tried is
// the time of the last decision whether to create a checkpoint, and took the duration of that decision and its
// checkpoint. The longer checkpoints take, the more rarely they are created, so that a rebase of a hundred commits is
// not delayed by a hundred checkpoints.
func (g *gitSigns) due(tried time.Time, took time.Duration) time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.first.IsZero() {
		return time.Time{}
	}
	at := g.latest.Add(gitQuiet)
	if by := g.first.Add(maxGitDelay); by.Before(at) {
		at = by
	}
	if least := tried.Add(min(max(maxGitDelay, 5*took), maxIdleDelay)); !tried.IsZero() && at.Before(least) {
		at = least
	}
	return at
}

// sign puts a token back into the channel moved, because the change that it stands for was not processed.
func (g *gitSigns) sign() {
	signal.Send(g.moved)
}

// noteChange records the present time as the time at which a token was taken from the channel moved.
func (g *gitSigns) noteChange() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.at = time.Now()
}

// last returns the time at which a change of the git directory was last noticed. If the channel moved holds a token, it
// returns the current time.
func (g *gitSigns) last() time.Time {
	if len(g.moved) > 0 {
		return time.Now()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.at
}

// watchFunc is the type of the function Config.Watch.
type watchFunc = func(dir string, wake chan<- struct{}, except ...string) (stop func(), fresh bool, err error)

// watch returns a function that watches a directory for refs with the parameter watch, and sends every change of the
// directory to g.moved too. gitDir is the path of the git directory.
func (g *gitSigns) watch(gitDir string, watch watchFunc) func(string, chan<- struct{}) (func(), bool, error) {
	return func(dir string, wake chan<- struct{}) (func(), bool, error) {
		var except []string
		if dir == gitDir { // a new index moves no ref
			except = []string{"index"}
		}
		theirs, fresh, err := watch(dir, wake, except...)
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
