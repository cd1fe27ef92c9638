package agent

import (
	"context"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/clock"
	"github.com/artifactfs/artifactfs/session"
)

// When checkpoints are made without a request.
const (
	idleRest = 2 * time.Second  // writes are over when there was none for so long
	idleMost = 10 * time.Second // between the checkpoints of a program that keeps writing, and until a change is in one

	gitRest = 200 * time.Millisecond // a git command is over when it has moved no ref for so long
	gitMost = time.Second            // between the checkpoints of one that keeps moving refs, and until a move is in one

	removalRest = time.Second // between the checkpoints of a program that keeps removing files
)

// schedule is a policy.
type schedule struct {
	kind  control.Policy
	every time.Duration // of PolicyInterval
}

// due returns when a checkpoint of changed files is to be made: first and last are the times of the first and the last change
// that is in none, made is that of the last checkpoint.
func (s schedule) due(first, last, made time.Time) time.Time {
	if s.kind == control.PolicyInterval {
		return first.Add(s.every)
	}
	at := last.Add(idleRest)
	if most := first.Add(idleMost); most.Before(at) {
		at = most
	}
	if least := made.Add(idleMost); !made.IsZero() && at.Before(least) {
		at = least
	}
	return at
}

// waiting is what makeCheckpoints knows of changes that are in no checkpoint.
type waiting struct {
	agent          *Agent
	noticed, signs <-chan struct{} // of files, and of the git directory; nil: they alone are no reason for a checkpoint
	removed        <-chan struct{} // many files were removed
	first          time.Time       // change that is in no checkpoint; zero: there is none
	made           time.Time       // when the last checkpoint was made
	tried          time.Time       // when it was last decided whether one is to be made
	took           time.Duration   // that decision, with the checkpoint
}

// makeCheckpoints makes checkpoints by the policy until ctx ends. It waits for the working tree and the git directory to
// report a change: an idle mount costs nothing.
func (w *waiting) makeCheckpoints(ctx context.Context) {
	a := w.agent
	w.removed = a.config.Removals.MassRemoval()
	if a.policy() != control.PolicyBeforeRisk {
		w.noticed, w.signs = a.config.Tree.Noticed(), a.git.moved
		if a.unsaved() { // changed while an earlier process served the mount
			w.first = time.Now()
		}
	}
	retry := retryFirst
	for {
		reason, ok := w.await(ctx)
		if !ok {
			return
		}
		// Changes that were reported until now are in the checkpoint.
		moved := a.git.clear()
		drain(w.noticed)
		drain(w.signs)
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
			retry = retryFirst
			continue
		}
		if moved {
			a.git.refMoved()
		}
		if w.noticed != nil {
			w.first = time.Now()
		}
		if !clock.Wait(ctx, retry) {
			return
		}
		retry = min(2*retry, retryMost)
	}
}

// await waits until a checkpoint is due, and returns its reason; false: ctx has ended.
func (w *waiting) await(ctx context.Context) (session.Reason, bool) {
	git := &w.agent.git
	for {
		if drain(w.signs) {
			git.heard()
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
				git.heard()
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

// next returns when the next checkpoint is due, by what is known now, and its reason; zero: none is.
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
		drain(w.removed)
		soon := w.tried.Add(min(max(removalRest, 5*w.took), idleMost))          // removed contents are kept until then
		if rested := latest.Add(removalRest / 4); !full && rested.After(soon) { // hashing them would slow down the removal
			soon = rested
		}
		if at.IsZero() || soon.Before(at) {
			at, reason = soon, session.Removal
		}
	}
	return at, reason
}
