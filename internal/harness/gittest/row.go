package gittest

import (
	"slices"
	"time"
)

// InARow counts round trips that came one after the other: those of the longest chain of requests in which each was sent when
// the answer to the one before it was known. A request that a client sends because of an answer reaches a server a round trip
// after that began to leave one, and two if a connection is opened in between; what comes earlier was sent without waiting. A
// client that is slow looks as if it had waited, so rtt should be longer than a busy machine holds it up. The chain may go from
// one server to another: all have the same round-trip time.
func InARow(rtt time.Duration, logs ...*Log) int {
	type step struct {
		Request
		opens bool // it is the first on its connection
		turns int  // of the longest chain that ends with it
	}
	var steps []step
	for _, l := range logs {
		seen := map[int]bool{}
		for _, r := range l.Requests() {
			steps = append(steps, step{Request: r, opens: !seen[r.Conn]})
			seen[r.Conn] = true
		}
	}
	slices.SortStableFunc(steps, func(a, b step) int { return a.At.Compare(b.At) })
	longest := 0
	for i := range steps {
		s := &steps[i]
		s.turns = 1
		if s.opens {
			s.turns++
		}
		for _, before := range steps[:i] {
			switch gap := s.At.Sub(before.At.Add(before.FirstByte)); {
			case s.opens && gap >= 2*rtt:
				s.turns = max(s.turns, before.turns+2)
			case gap >= rtt:
				s.turns = max(s.turns, before.turns+1)
			}
		}
		longest = max(longest, s.turns)
	}
	return longest
}
