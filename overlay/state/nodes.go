package state

import "errors"

// nodes finds the record of a node: an own node's by its slot, a base node's through a hash table.
type nodes struct {
	own    slab
	free   uint32 // the first slot of the list of free ones
	hole   uint32 // slots from here to own.end may be free without being in the list: a replay left them out
	floor  uint32 // generation that slots which were never seen may have had before the last dump
	freed  uint32 // the highest generation of a slot that became free
	base   slab
	index  numbers // base node -> index in base
	vacant uint32  // the first of the list of free base records; their key is the next one's
	counts counts
}

func (t *nodes) find(n Node) *record {
	if n.Own() {
		if r := t.own.look(slot(n)); r != nil && r.is(recordUsed) && r.key == generation(n) {
			return r
		}
		return nil
	}
	if i, ok := t.index.get(uint64(n)); ok {
		return t.base.look(i)
	}
	return nil
}

// slots of own nodes lie below maxSlots, which decoding made sure of.
func slot(n Node) uint32       { return uint32(n) }
func generation(n Node) uint32 { return uint32(n >> 32) }

// node is the inverse of find.
func nodeOf(own bool, i uint32, r *record) Node {
	if own {
		return Node(r.key)<<32 | Node(i)
	}
	return Node(r.key)
}

// need returns the record of a node that something is put into.
func (t *Table) need(n Node) *record {
	if r := t.find(n); r != nil {
		return r
	}
	if n.Own() {
		r := t.own.at(slot(n))
		if r.is(recordUsed) { // the slot's former node: its end is not in what was replayed
			t.wipe(r)
			t.freed = max(t.freed, r.key)
		}
		r.key = generation(n)
		r.state = r.state&^recordReserved | recordUsed
		return r
	}
	i := t.vacant
	if i == 0 {
		i = max(t.base.end, firstRecord)
	}
	r := t.base.at(i)
	if t.vacant != 0 {
		t.vacant = r.key
	}
	r.key, r.state = uint32(n), recordUsed
	t.index.set(uint64(n), i)
	return r
}

// drop forgets a node.
func (t *Table) drop(n Node) {
	if !n.Own() {
		if i, ok := t.index.get(uint64(n)); ok {
			r := t.base.look(i)
			t.wipe(r)
			t.index.remove(uint64(n))
			r.key, t.vacant = t.vacant, i
		}
		return
	}
	r := t.own.at(slot(n))
	if r.is(recordUsed) && r.key != generation(n) {
		return // the slot has gone on
	}
	if r.is(recordUsed) {
		t.wipe(r)
	}
	r.key = max(r.key, generation(n)) // even of a node that was never seen: it is used up
	t.freed = max(t.freed, r.key)
	t.list(slot(n), r)
}

// list makes a slot free.
func (t *nodes) list(i uint32, r *record) {
	r.state &^= recordUsed | recordReserved
	if !r.is(recordListed) && i != 0 {
		r.state |= recordListed | t.free<<linkShift
		t.free = i
	}
}

// ErrFull means that there are no more nodes.
var ErrFull = errors.New("no node left")

// NewNode reserves a node for a PutInode. CancelNode gives it back if that is not to come.
func (t *Table) NewNode() (Node, error) {
	for t.free != 0 {
		i := t.free
		r := t.own.at(i)
		t.free = r.state >> linkShift
		r.state &= (1<<linkShift - 1) &^ recordListed
		if n, ok := t.reserve(i, r); ok {
			return t.counted(n)
		}
	}
	for t.hole = max(t.hole, firstRecord); t.hole < maxSlots && t.floor < noGeneration; {
		i := t.hole
		t.hole++
		if r := t.own.at(i); !r.is(recordListed) {
			if n, ok := t.reserve(i, r); ok {
				return t.counted(n)
			}
		}
	}
	return 0, ErrFull
}

// counted returns a new node if its look-ups can be counted.
func (t *Table) counted(n Node) (Node, error) {
	if err := t.counts.reach(slot(n)); err != nil {
		t.CancelNode(n)
		return 0, err
	}
	return n, nil
}

func (t *nodes) reserve(i uint32, r *record) (Node, bool) {
	g := max(r.key, t.floor)
	if r.is(recordUsed|recordReserved) || g == noGeneration {
		return 0, false
	}
	r.state |= recordReserved
	return Node(g+1)<<32 | Node(i), true
}

// CancelNode frees a node that NewNode reserved. A node that came into use is left alone.
func (t *Table) CancelNode(n Node) {
	if r := t.own.look(slot(n)); r != nil && r.is(recordReserved) {
		t.list(slot(n), r)
	}
}
