package workday

import (
	"fmt"
	"slices"
	"time"
)

// Saved is a checkpoint that was restored after the worker was killed, and the State of the restored tree.
type Saved struct {
	ID     string
	Time   time.Time
	Tree   string
	Head   string
	Branch string // short name of the branch
	State  State
}

// Limits states how much may be lost.
type Limits struct {
	Killed   time.Time
	Interval time.Duration // a State that had existed for at least this time at the time Killed must not be lost
	// true if promises must be kept even if they do not state that the checkpoint is on the session remote
	Local bool
}

// Verdict is the result of Judge.
type Verdict struct {
	Faults []string
	// true if the State is equal to a State of the ledger; false if the checkpoint was made during a step
	Exact  bool
	Lost   time.Duration // time from the first State that was not restored until Killed
	Newer  int           // number of promises that were checked
	At     int           // index of the ledger entry with the restored State; -1 if there is none
	Behind time.Duration // time from the first update of a ref that was not restored until Killed
}

// aside is the maximum difference between the recorded time of a checkpoint and the moment whose files it contains.
const aside = 500 * time.Millisecond

// Judge compares the restored State of s with a ledger and returns the faults that it finds.
func Judge(ledger []Entry, s Saved, l Limits) Verdict {
	v := Verdict{At: -1}
	fault := func(format string, args ...any) { v.Faults = append(v.Faults, fmt.Sprintf(format, args...)) }
	for _, e := range ledger {
		if e.Fault != "" {
			fault("while at work, %s: %s", e.Step, e.Fault)
		}
	}
	for _, c := range []struct{ what, said, is string }{{"tree", s.Tree, s.State.Tree}, {"HEAD", s.Head, s.State.Head},
		{"branch", s.Branch, trimHeads(s.State.Branch)}} {
		if c.said != c.is {
			fault("the checkpoint says %s %s, stock git finds %s", c.what, c.said, c.is)
		}
	}

	// Find the States that existed at the time of the checkpoint.
	from, to := s.Time.Add(-aside), s.Time.Add(aside)
	var begun time.Time // start of the step that was in progress
	var at []int
	mid := false
	known := slices.IndexFunc(ledger, func(e Entry) bool { return s.ID != "" && e.Checkpoint == s.ID })
	for i, e := range ledger {
		until := l.Killed // the State of e existed until the next step began
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

	// Find the States that are newer than the restored one.
	var lost time.Time
	for i, e := range ledger {
		same := e.State.Differs(s.State) == ""
		switch {
		case e.Begins || i == known:
		case e.Promise && (e.Synced || l.Local):
			if v.Newer++; !same && e.Since.After(s.Time.Add(aside)) {
				fault("%s returned %s before the kill, and what it had seen is gone: %s", e.Step,
					l.Killed.Sub(e.At).Round(time.Millisecond), e.State.Differs(s.State))
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

// Commits returns the commits that branches named in the States of a ledger before the time until.
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
