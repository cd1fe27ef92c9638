package fuse

import "sync/atomic"

// op is a kind of request.
type op int

const (
	opLookup op = iota
	opGetAttr
	opReadlink
	opReadDir
	opReadDirPlus
	opRead
	opOpen
	opOpenDir
	opStatFs
	opWrite // whatever would change something
	opOther
	ops
)

func (o op) String() string {
	switch o {
	case opLookup:
		return "LOOKUP"
	case opGetAttr:
		return "GETATTR"
	case opReadlink:
		return "READLINK"
	case opReadDir:
		return "READDIR"
	case opReadDirPlus:
		return "READDIRPLUS"
	case opRead:
		return "READ"
	case opOpen:
		return "OPEN"
	case opOpenDir:
		return "OPENDIR"
	case opStatFs:
		return "STATFS"
	case opWrite:
		return "WRITE"
	}
	return "OTHER"
}

// counters counts requests by kind.
type counters [ops]atomic.Uint64

func (c *counters) add(o op) { c[o].Add(1) }

// snapshot gives what was counted; kinds that never came are left out.
func (c *counters) snapshot() map[string]uint64 {
	m := make(map[string]uint64)
	for o := range ops {
		if n := c[o].Load(); n > 0 {
			m[o.String()] = n
		}
	}
	return m
}
