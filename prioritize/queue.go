package prioritize

import "github.com/artifactfs/artifactfs/git/object"

// Want is a blob that is to be requested from the remote.
type Want struct {
	ID    object.ID
	Class Class
	Path  string // path relative to the root of the tree; the order within a class depends on it
	Seq   uint64 // age: among wants of equal class and rank, the lowest Seq is first
}

// Queue holds wants, ordered by urgency: by class, then by rank of the path, then by Seq, then in the order in which
// they were pushed. Push, Raise, Drop and taking one want cost O(log n). A want takes about 180 bytes of memory, not
// counting its path.
//
// A Queue has no lock, so its owner must serialize all calls.
type Queue struct {
	slots  []slot              // the wants; a want keeps its slot while it is queued
	free   []int32             // indexes of unused slots
	heap   []int32             // indexes of slots, as a binary heap; the first is the most urgent
	byID   map[object.ID]int32 // index of the slot for each id
	counts [classes]int        // number of wants of each class
	pushes uint64              // number of calls of Push so far
}

// slot holds one want. The index of the slot does not change while the want is queued, so the fields byID and heap of
// the Queue can refer to the slot by its index.
type slot struct {
	want   Want
	rank   uint8
	at     int32  // position of the slot in Queue.heap
	pushed uint64 // value of Queue.pushes when the want was pushed
}

// NewQueue returns an empty queue.
func NewQueue() *Queue { return &Queue{byID: map[object.ID]int32{}} }

// Push queues w. If a want with the same id is already queued, Push keeps only the want with the more urgent class, or
// the queued want if the classes are equal.
func (q *Queue) Push(w Want) {
	w.Class = min(w.Class, Last)
	if i, ok := q.byID[w.ID]; ok {
		if w.Class < q.slots[i].want.Class {
			q.replace(i, w)
		}
		return
	}
	var i int32
	if n := len(q.free); n > 0 {
		i, q.free = q.free[n-1], q.free[:n-1]
	} else {
		i = int32(len(q.slots))
		q.slots = append(q.slots, slot{})
	}
	q.pushes++
	q.slots[i] = slot{w, rank(w.Class, w.Path), int32(len(q.heap)), q.pushes}
	q.byID[w.ID] = i
	q.heap = append(q.heap, i)
	q.counts[w.Class]++
	q.up(len(q.heap) - 1)
}

// Raise changes the class of the queued want with this id to c if c is more urgent. It reports whether the id is
// queued.
func (q *Queue) Raise(id object.ID, c Class) bool {
	i, ok := q.byID[id]
	if !ok {
		return false
	}
	if w := q.slots[i].want; c < w.Class {
		w.Class = c
		q.replace(i, w)
	}
	return true
}

// Drop removes a want from the queue. It reports whether the id was queued.
func (q *Queue) Drop(id object.ID) bool {
	i, ok := q.byID[id]
	if ok {
		q.remove(i)
	}
	return ok
}

// Best returns the class of the most urgent want. It returns false if the queue is empty.
func (q *Queue) Best() (Class, bool) {
	if len(q.heap) == 0 {
		return 0, false
	}
	return q.slots[q.heap[0]].want.Class, true
}

// Take removes up to n wants from the queue and returns them, the most urgent want first. It takes no want whose class
// is less urgent than the class worst.
func (q *Queue) Take(worst Class, n int) []Want {
	var taken []Want
	for len(taken) < n && len(q.heap) > 0 {
		i := q.heap[0]
		if q.slots[i].want.Class > worst {
			break
		}
		taken = append(taken, q.slots[i].want)
		q.remove(i)
	}
	return taken
}

// Len returns the number of queued wants.
func (q *Queue) Len() int { return len(q.heap) }

// LenClass returns the number of queued wants of each class. Classes without wants are left out.
func (q *Queue) LenClass() map[Class]int {
	m := map[Class]int{}
	for c, n := range q.counts {
		if n > 0 {
			m[Class(c)] = n
		}
	}
	return m
}

// replace replaces the want in slot i by the want w, which must have the same id and a more urgent class.
func (q *Queue) replace(i int32, w Want) {
	s := &q.slots[i]
	q.counts[s.want.Class]--
	q.counts[w.Class]++
	s.want, s.rank = w, rank(w.Class, w.Path)
	q.up(int(s.at))
}

// remove takes the want in slot i out of the queue.
func (q *Queue) remove(i int32) {
	s := &q.slots[i]
	at, last := int(s.at), len(q.heap)-1
	delete(q.byID, s.want.ID)
	q.counts[s.want.Class]--
	// Clear the slot, so that the memory of the path can be freed.
	*s = slot{}
	// The last entry of the heap moves to the gap, and from there up or down to its position.
	q.swap(at, last)
	q.heap = q.heap[:last]
	if last == 0 {
		*q = Queue{byID: map[object.ID]int32{}, pushes: q.pushes} // replace the map, because Go maps never shrink
		return
	}
	q.free = append(q.free, i)
	if at < last && !q.up(at) {
		q.down(at)
	}
}

// less reports whether the want at position a of the heap is more urgent than the want at position b. No two wants are
// equally urgent, because the field pushed is different in each.
func (q *Queue) less(a, b int) bool {
	x, y := &q.slots[q.heap[a]], &q.slots[q.heap[b]]
	switch {
	case x.want.Class != y.want.Class:
		return x.want.Class < y.want.Class
	case x.rank != y.rank:
		return x.rank < y.rank
	case x.want.Seq != y.want.Seq:
		return x.want.Seq < y.want.Seq
	}
	return x.pushed < y.pushed
}

// swap exchanges the entries at two positions of the heap.
func (q *Queue) swap(a, b int) {
	q.heap[a], q.heap[b] = q.heap[b], q.heap[a]
	q.slots[q.heap[a]].at, q.slots[q.heap[b]].at = int32(a), int32(b)
}

// up moves the want at a position of the heap towards the top, while it is more urgent than its parent. It reports
// whether the want was moved.
func (q *Queue) up(at int) (moved bool) {
	for at > 0 {
		parent := (at - 1) / 2
		if !q.less(at, parent) {
			break
		}
		q.swap(at, parent)
		at, moved = parent, true
	}
	return moved
}

// down moves the want at a position of the heap towards the bottom, while one of its children is more urgent.
func (q *Queue) down(at int) {
	for {
		child := 2*at + 1
		if child >= len(q.heap) {
			return
		}
		if child+1 < len(q.heap) && q.less(child+1, child) {
			child++
		}
		if !q.less(child, at) {
			return
		}
		q.swap(at, child)
		at = child
	}
}
