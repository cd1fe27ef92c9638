package agent

import (
	"context"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/signal"
	"github.com/artifactfs/artifactfs/session"
)

// These times determine when checkpoints are created automatically.
const (
	idleQuiet = 2 * time.Second // a checkpoint is created when no file has changed for this time
	// maxIdleDelay is the maximum time until a change is in a checkpoint, and the minimum time between two checkpoints
	// while a program keeps writing.
	maxIdleDelay = 10 * time.Second

	gitQuiet = 200 * time.Millisecond // a git command counts as finished when it has updated no ref for this time
	// maxGitDelay is the maximum time until an updated ref is in a checkpoint, and the minimum time between two
	// checkpoints while a command keeps updating refs.
	maxGitDelay = time.Second

	removalPause = time.Second // minimum time between two checkpoints while a program keeps removing files
)

// schedule is the policy that decides when checkpoints are created.
type schedule struct {
	kind  control.Policy
	every time.Duration // interval between checkpoints with PolicyInterval
}

// due returns the time at which a checkpoint of changed files has to be created. first and last are the times of the
// first and the last change since the last checkpoint, and made is the time of the last checkpoint.
func (s schedule) due(first, last, made time.Time) time.Time {
	if s.kind == control.PolicyInterval {
		return first.Add(s.every)
	}
	at := last.Add(idleQuiet)
	if most := first.Add(maxIdleDelay); most.Before(at) {
		at = most
	}
	if least := made.Add(maxIdleDelay); !made.IsZero() && at.Before(least) {
		at = least
	}
	return at
}

// waiting is the state of the loop that creates checkpoints: the channels that report changes, and the times of past
// changes and checkpoints.
type waiting struct {
	agent *Agent
	// channels for changes of files and of the git directory; nil if such changes cause no checkpoints
	noticed, signs <-chan struct{}
	removed        <-chan struct{} // channel that reports removals of many files
	first          time.Time       // time of the first change since the last checkpoint; zero if there is none
	made           time.Time       // time of the last checkpoint
	tried          time.Time       // time of the last decision whether to create a checkpoint
	took           time.Duration   // duration of that decision and, if a checkpoint was created, of its creation
}

// makeCheckpoints creates checkpoints according to the policy until ctx ends. It blocks until the working tree or the
// git directory reports a change, so an idle mount uses no processor time.
func (w *waiting) makeCheckpoints(ctx context.Context) {
	a := w.agent
	w.removed = a.config.Removals.MassRemoval()
	if a.policy() != control.PolicyBeforeRisk {
		w.noticed, w.signs = a.config.Tree.Noticed(), a.git.moved
		if a.unsaved() { // files changed before a takeover or a resume
			w.first = time.Now()
		}
	}
	failures := 0
	for {
		reason, ok := w.await(ctx)
		if !ok {
			return
		}
		// The next checkpoint will contain the changes that were reported before this line, so forget these changes.
		moved := a.git.clear()
		signal.Take(w.noticed)
		signal.Take(w.signs)
		w.first, w.tried = time.Time{}, time.Now()
		var made bool
		var err error
		if reason == session.Removal || a.unsaved() && !a.config.Followed(ctx) {
			_, made, err = a.Checkpoint(ctx, reason, "")
		}
		w.took = time.Since(w.tried)
		if made {
			w.made = time.Now()
		}
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			failures = 0
			continue
		}
		if moved {
			a.git.refMoved()
		}
		if w.noticed != nil {
			w.first = time.Now()
		}
		if failures++; !pauses.Wait(ctx, failures) {
			return
		}
	}
}

// await waits until a checkpoint is due, and returns the reason for the checkpoint. It returns false if ctx has ended.
func (w *waiting) await(ctx context.Context) (session.Reason, bool) {
	git := &w.agent.git
	for {
		if signal.Take(w.signs) {
			git.noteChange()
			if w.first.IsZero() {
				w.first = time.Now()
			}
		}
		at, reason := w.next()
		if at.IsZero() {
			select {
			case <-w.removed:
			case <-w.noticed:
				w.first = time.Now()
			case <-w.signs:
				git.noteChange()
				w.first = time.Now()
			case <-git.refs:
			case <-ctx.Done():
				return "", false
			}
			continue
		}
		wait := time.Until(at)
		if wait <= 0 {
			return reason, true
		}
		select {
		case <-w.removed:
		case <-time.After(wait):
		case <-git.refs:
		case <-ctx.Done():
			return "", false
		}
	}
}

// next returns the time at which the next checkpoint is due, and its reason. The time is zero if no checkpoint is due.
func (w *waiting) next() (time.Time, session.Reason) {
	a := w.agent
	at, reason := a.git.due(w.tried, w.took), session.Git
	if !w.first.IsZero() {
		a.mu.Lock()
		s := a.schedule
		a.mu.Unlock()
		last := a.config.Tree.LastChange()
		if heard := a.git.last(); heard.After(last) {
			last = heard
		}
		if by := s.due(w.first, last, w.made); at.IsZero() || by.Before(at) {
			at, reason = by, session.Idle
			if s.kind == control.PolicyInterval {
				reason = session.Interval
			}
		}
	}
	if latest, full, many := a.config.Removals.MassRemoved(); many {
		signal.Take(w.removed)
		// A removal causes no checkpoint before the time in the variable soon. Until then the contents of the removed files
		// are kept, so that the checkpoint can still contain them.
		soon := w.tried.Add(min(max(removalPause, 5*w.took), maxIdleDelay))
		// Wait until no file has been removed for a while, because hashing the files would slow the removal down.
		if rested := latest.Add(removalPause / 4); !full && rested.After(soon) {
			soon = rested
		}
		if at.IsZero() || soon.Before(at) {
			at, reason = soon, session.Removal
		}
	}
	return at, reason
}
