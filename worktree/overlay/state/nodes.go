package state

import "errors"

// nodes finds the record of a node: by the slot number for own nodes, and in a hash table for base nodes.
type nodes struct {
	// own has the records of own nodes, by slot number.
	own slab
	// free is the first slot in the list of free slots; 0 if the list is empty.
	free uint32
	// hole is a slot number. Slots from hole up to own.end may be free although the list of free slots does not contain
	// them, because a replay does not add to that list.
	hole uint32
	// floor is the highest generation that slots without a record may have had before the last dump.
	floor uint32
	// freed is the highest generation of all slots that became free.
	freed uint32
	// base has the records of base nodes, and index maps a base node to its index in base.
	base  slab
	index numbers
	// vacant is the first record in the list of free base records, which are linked by their key; 0 if the list is empty.
	vacant uint32
	counts counts
}

// find returns the record of a node, or nil if there is none.
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

// slot returns the slot number of an own node. The decoder has checked that the number is below maxSlots.
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

// need returns the record of a node, and creates the record if it does not exist.
func (t *Table) need(n Node) *record {
	if r := t.find(n); r != nil {
		return r
	}
	if n.Own() {
		r := t.own.at(slot(n))
		// The slot still has its previous node: that node was dropped, but the replayed records do not contain the drop.
		if r.is(recordUsed) {
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

// drop removes a node and frees its record. It does nothing if the slot of an own node is used by a newer node.
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
		return // a newer node uses the slot, so the node to drop does not exist any more
	}
	if r.is(recordUsed) {
		t.wipe(r)
	}
	// Raise the generation of the slot even if the table never had this node, because the generation has been used.
	r.key = max(r.key, generation(n))
	t.freed = max(t.freed, r.key)
	t.list(slot(n), r)
}

// list adds a slot to the list of free slots, unless the slot is in the list already.
func (t *nodes) list(i uint32, r *record) {
	r.state &^= recordUsed | recordReserved
	if !r.is(recordListed) && i != 0 {
		r.state |= recordListed | t.free<<linkShift
		t.free = i
	}
}

// ErrFull means that no node number is left.
var ErrFull = errors.New("no free node number")

// NewNode reserves an own node. The caller then puts the inode of the node with PutInode, or calls CancelNode. NewNode
// returns ErrFull if no number is left, or the error of Memory.
func (t *Table) NewNode() (Node, error) {
	// Use the slots in the list first, then free slots that a replay has not listed.
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

// counted allocates the memory for the lookup count of a new node. If that fails, it cancels the node and returns the
// error.
func (t *Table) counted(n Node) (Node, error) {
	if err := t.counts.reach(slot(n)); err != nil {
		t.CancelNode(n)
		return 0, err
	}
	return n, nil
}

// reserve reserves slot i for a node with the next generation. It returns false if the slot is in use, or if it has
// used up all its generations.
func (t *nodes) reserve(i uint32, r *record) (Node, bool) {
	g := max(r.key, t.floor)
	if r.is(recordUsed|recordReserved) || g == noGeneration {
		return 0, false
	}
	r.state |= recordReserved
	return Node(g+1)<<32 | Node(i), true
}

// CancelNode frees a node that NewNode reserved. It does nothing if the node's inode was put.
func (t *Table) CancelNode(n Node) {
	if r := t.own.look(slot(n)); r != nil && r.is(recordReserved) {
		t.list(slot(n), r)
	}
}
