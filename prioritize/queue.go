package prioritize

import "github.com/artifactfs/artifactfs/object"

// Want is a blob to request.
type Want struct {
	ID    object.ID
	Class Class
	Path  string // relative to the root of the tree; decides the order within a class
	Seq   uint64 // age: of two wants alike in all else the lower goes first
}

// Queue holds wants in order of urgency: class, then rank of the path, then Seq, then order of
// pushing. Push, Raise, Drop and each want taken cost O(log n). A want takes about 180 bytes, its
// path not counted.
//
// Queue locks nothing: its owner serialises all calls.
type Queue struct {
	slots  []slot  // wants at fixed places
	free   []int32 // unused slots
	heap   []int32 // slots, the most urgent first; a binary heap
	byID   map[object.ID]int32
	counts [classes]int
	pushes uint64
}

// slot is a place for one want. Its index does not change while the want is queued, so byID and
// heap can refer to it.
type slot struct {
	want   Want
	rank   uint8
	at     int32  // place in heap
	pushed uint64 // order of pushing
}

// NewQueue returns an empty queue.
func NewQueue() *Queue { return &Queue{byID: map[object.ID]int32{}} }

// Push queues w. If its id is queued already the want of the better class stays, the earlier of two
// alike.
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

// Raise makes a queued want at least as urgent as c. It reports whether the id is queued.
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

// Drop takes a want out. It reports whether the id was queued.
func (q *Queue) Drop(id object.ID) bool {
	i, ok := q.byID[id]
	if ok {
		q.remove(i)
	}
	return ok
}

// Best is the class of the most urgent want; false: the queue is empty.
func (q *Queue) Best() (Class, bool) {
	if len(q.heap) == 0 {
		return 0, false
	}
	return q.slots[q.heap[0]].want.Class, true
}

// Take removes and returns up to n wants of class worst or better, the most urgent first.
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

// Len counts the queued wants.
func (q *Queue) Len() int { return len(q.heap) }

// LenClass counts the queued wants of each class that has any.
func (q *Queue) LenClass() map[Class]int {
	m := map[Class]int{}
	for c, n := range q.counts {
		if n > 0 {
			m[Class(c)] = n
		}
	}
	return m
}

// replace puts a want of a better class in the place of another of the same id.
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
	*s = slot{} // releases the path
	// The last entry of the heap fills the gap, and then moves up or down to its place.
	q.swap(at, last)
	q.heap = q.heap[:last]
	if last == 0 {
		*q = Queue{byID: map[object.ID]int32{}, pushes: q.pushes} // maps never shrink
		return
	}
	q.free = append(q.free, i)
	if at < last && !q.up(at) {
		q.down(at)
	}
}

// less reports whether the want at place a of the heap is more urgent than the one at b. No two
// wants are equal, since pushed differs.
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

// swap exchanges two places of the heap.
func (q *Queue) swap(a, b int) {
	q.heap[a], q.heap[b] = q.heap[b], q.heap[a]
	q.slots[q.heap[a]].at, q.slots[q.heap[b]].at = int32(a), int32(b)
}

// up moves the want at a place of the heap towards the top while it is more urgent than its parent.
// It reports whether it moved.
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

// down moves the want at a place of the heap towards the bottom while a child is more urgent.
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
