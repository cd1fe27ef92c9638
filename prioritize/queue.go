package prioritize

import "github.com/artifactfs/artifactfs/object"

// Want is a blob that somebody wants.
type Want struct {
	ID    object.ID
	Class Class
	Path  string // relative to the mount's root; decides the order within a class
	Seq   uint64 // age: of two wants alike in all else the lower goes first
}

// Queue orders wants by urgency. It is not locked: its owner is.
type Queue struct {
	wants map[object.ID]Want
}

// NewQueue returns an empty queue.
func NewQueue() *Queue { return &Queue{wants: map[object.ID]Want{}} }

// Push queues w. If its id is queued already, the want of the better class stays, the older of two alike.
func (q *Queue) Push(w Want) {}

// Raise makes a queued want at least as urgent as c. It says whether the id is queued.
func (q *Queue) Raise(id object.ID, c Class) bool { return false }

// Drop takes a want out. It says whether the id was queued.
func (q *Queue) Drop(id object.ID) bool { return false }

// Best is the class of the most urgent want; false: the queue is empty.
func (q *Queue) Best() (Class, bool) { return 0, false }

// Take removes and returns up to n wants of class worst or better, the most urgent first.
func (q *Queue) Take(worst Class, n int) []Want { return nil }

// Len counts the queued wants.
func (q *Queue) Len() int { return len(q.wants) }

// LenClass counts the queued wants of each class that has any.
func (q *Queue) LenClass() map[Class]int { return nil }
