package workday

import (
	"fmt"
	"slices"
	"time"
)

// Saved is a checkpoint that was found after the worker was killed, and the State of the tree that was made of it.
type Saved struct {
	ID     string
	Time   time.Time
	Tree   string
	Head   string
	Branch string // short
	State  State
}

// Limits say what may be lost.
type Limits struct {
	Killed   time.Time
	Interval time.Duration // no State that was there so long before Killed may be
	Local    bool          // promises bind that did not say that it is on the session remote, too
}

// Verdict is the result of verifying a restored state.
type Verdict struct {
	Faults []string
	Exact  bool          // the State is one of the ledger's, in all; else the checkpoint is of the middle of a step
	Lost   time.Duration // of work: from the first State that did not come back until Killed
	Newer  int           // promises that bound
	At     int           // the entry of the ledger whose State it is; -1: none
	Behind time.Duration // how long before the kill the first ref was moved that did not come back so
}

// aside is how far the time of a checkpoint may be from the moment whose files it holds.
const aside = 500 * time.Millisecond

// Judge compares what was found with a ledger.
func Judge(ledger []Entry, s Saved, l Limits) Verdict {
	v := Verdict{At: -1}
	fault := func(format string, args ...any) { v.Faults = append(v.Faults, fmt.Sprintf(format, args...)) }
	for _, e := range ledger {
		if e.Fault != "" && e.At.Before(l.Killed) { // a mount without a daemon shows no tree
			fault("while at work, %s: %s", e.Step, e.Fault)
		}
	}
	for _, c := range []struct{ what, said, is string }{{"tree", s.Tree, s.State.Tree}, {"HEAD", s.Head, s.State.Head}, {"branch", s.Branch, trimHeads(s.State.Branch)}} {
		if c.said != c.is {
			fault("the checkpoint says %s %s, stock git finds %s", c.what, c.said, c.is)
		}
	}

	// States that were so at the time of the checkpoint.
	from, to := s.Time.Add(-aside), s.Time.Add(aside)
	var begun time.Time // of a step, while it is under way
	var at []int
	mid := false
	known := slices.IndexFunc(ledger, func(e Entry) bool { return s.ID != "" && e.Checkpoint == s.ID })
	for i, e := range ledger {
		until := l.Killed // e.State was so until the next step began
		for _, next := range ledger[i+1:] {
			if next.Begins {
				until = next.At
				break
			}
		}
		switch {
		case e.Begins:
			begun = e.At
			if i+1 == len(ledger) && begun.Before(to) {
				mid = true
			}
		case !e.Promise:
			if !begun.IsZero() && begun.Before(to) && e.At.After(from) {
				mid = true
			}
			if e.At.Before(to) && until.After(from) {
				at = append(at, i)
			}
			begun = time.Time{}
		}
	}
	like := func(i int) bool { return ledger[i].State.Differs(s.State) == "" }
	switch {
	case known >= 0:
		v.Exact, v.At = true, known
		if d := ledger[known].State.Differs(s.State); d != "" {
			fault("checkpoint %s that was promised after %q: %s", s.ID, ledger[known].Step, d)
		}
	case slices.ContainsFunc(at, like):
		v.Exact = true
		v.At = at[slices.IndexFunc(at, like)]
	case !mid && len(at) > 0:
		fault("checkpoint %s was made when nothing was under way: %s", s.ID, ledger[at[len(at)-1]].State.Differs(s.State))
	case len(ledger) > 0 && s.Time.Add(aside).Before(ledger[0].At):
		d := ledger[0].State.Differs(s.State)
		if v.Exact, v.At = d == "", 0; d != "" {
			fault("checkpoint %s is of before this worker: %s", s.ID, d)
		}
	}
	for _, e := range ledger {
		if !e.Begins && !e.Promise && e.At.After(s.Time.Add(aside)) && !slices.Equal(e.State.Refs, s.State.Refs) {
			v.Behind = l.Killed.Sub(e.At)
			break
		}
	}

	// What came later than what came back.
	var lost time.Time
	for i, e := range ledger {
		same := e.State.Differs(s.State) == ""
		switch {
		case e.Begins || i == known:
		case e.Promise && (e.Synced || l.Local):
			if v.Newer++; !same && e.Since.After(s.Time.Add(aside)) {
				fault("%s returned %s before the kill, and what it had seen is gone: %s", e.Step, l.Killed.Sub(e.At).Round(time.Millisecond), e.State.Differs(s.State))
			}
		case !e.Promise && lost.IsZero() && !same && e.At.After(s.Time.Add(aside)) && i > known:
			lost = e.At
		}
	}
	if !lost.IsZero() {
		if v.Lost = max(0, l.Killed.Sub(lost)); v.Lost > l.Interval {
			fault("%s of work are lost, more than %s", v.Lost.Round(time.Millisecond), l.Interval)
		}
	}
	return v
}

func trimHeads(ref string) string {
	const heads = "refs/heads/"
	if len(ref) > len(heads) && ref[:len(heads)] == heads {
		return ref[len(heads):]
	}
	return ref
}

// Commits are those that branches named in States of a ledger, at the latest so long before the kill.
func Commits(ledger []Entry, until time.Time) []string {
	seen := map[string]bool{}
	var all []string
	for _, e := range ledger {
		if e.Begins || e.At.After(until) {
			continue
		}
		for _, ref := range e.State.Refs {
			var id, name string
			if n, _ := fmt.Sscan(ref, &id, &name); n == 2 && trimHeads(name) != name && !seen[id] {
				seen[id] = true
				all = append(all, id)
			}
		}
	}
	return all
}
