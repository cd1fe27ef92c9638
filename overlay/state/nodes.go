package state

import "errors"

// nodes finds the record of a node: own nodes by slot number, base nodes by a hash table.
type nodes struct {
	own    slab
	free   uint32 // first slot of the list of free slots
	hole   uint32 // slots from hole to own.end may be free without being in the list: a replay does not list them
	floor  uint32 // highest generation that slots never seen may have had before the last dump
	freed  uint32 // highest generation of a slot that became free
	base   slab
	index  numbers // index in base of each base node
	vacant uint32  // first of the list of free base records, which are linked by their key
	counts counts
}

// find returns the record of a node, or nil.
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

// slot returns the slot number of an own node. It is below maxSlots, which the decoder has checked.
func slot(n Node) uint32 { return uint32(n) }

// generation returns the generation of an own node, which is at least 1.
func generation(n Node) uint32 { return uint32(n >> 32) }

// nodeOf returns the node of the record at index i of its slab.
func nodeOf(own bool, i uint32, r *record) Node {
	if own {
		return Node(r.key)<<32 | Node(i)
	}
	return Node(r.key)
}

// need returns the record of a node, and creates it if it does not exist.
func (t *Table) need(n Node) *record {
	if r := t.find(n); r != nil {
		return r
	}
	if n.Own() {
		r := t.own.at(slot(n))
		if r.is(recordUsed) { // the slot's former node, whose drop is not in the replayed records
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

// drop removes a node and frees its record.
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
		return // the slot is used by a newer node
	}
	if r.is(recordUsed) {
		t.wipe(r)
	}
	r.key = max(r.key, generation(n)) // also for a node that was never seen: its generation is used up
	t.freed = max(t.freed, r.key)
	t.list(slot(n), r)
}

// list adds a slot to the list of free slots.
func (t *nodes) list(i uint32, r *record) {
	r.state &^= recordUsed | recordReserved
	if !r.is(recordListed) && i != 0 {
		r.state |= recordListed | t.free<<linkShift
		t.free = i
	}
}

// ErrFull means that no node number is left.
var ErrFull = errors.New("no node left")

// NewNode reserves an own node for a PutInode. The caller must call CancelNode if it does not put the inode. It returns
// ErrFull if no number is left, or the error of Memory.
func (t *Table) NewNode() (Node, error) {
	// Listed slots are used first, then slots that a replay did not list.
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

// counted allocates the memory for a new node's lookup count, and cancels the node if that fails.
func (t *Table) counted(n Node) (Node, error) {
	if err := t.counts.reach(slot(n)); err != nil {
		t.CancelNode(n)
		return 0, err
	}
	return n, nil
}

// reserve reserves slot i with the next generation; false: the slot is in use or its generations are used up.
func (t *nodes) reserve(i uint32, r *record) (Node, bool) {
	g := max(r.key, t.floor)
	if r.is(recordUsed|recordReserved) || g == noGeneration {
		return 0, false
	}
	r.state |= recordReserved
	return Node(g+1)<<32 | Node(i), true
}

// CancelNode frees a node that NewNode reserved. It does nothing if the node is in use.
func (t *Table) CancelNode(n Node) {
	if r := t.own.look(slot(n)); r != nil && r.is(recordReserved) {
		t.list(slot(n), r)
	}
}
