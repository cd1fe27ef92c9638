package gittest

import (
	"slices"
	"time"
)

// InARow returns the number of sequential round trips: the length of the longest chain of requests in which each
// request was sent after the answer to the previous request had arrived. A request that a client sends because of an
// answer reaches the server one round trip after the answer began to leave the server, or two round trips after that if
// a connection is opened in between. A request that arrives earlier was sent without waiting for the answer. A slow
// client looks as if it had waited, so rtt should be longer than the delays of a busy machine. A chain may continue on
// another server; all servers must have the same round-trip time.
func InARow(rtt time.Duration, logs ...*Log) int {
	type step struct {
		Request
		opens bool // the request is the first request on its connection
		turns int  // length of the longest chain that ends with this request
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
