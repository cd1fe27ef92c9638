package gittest

import (
	"sync"
	"time"
)

// queue contains the pieces of data that are under way in one direction, in order, each with its time of arrival.
type queue struct {
	limit int

	mu        sync.Mutex
	changed   sync.Cond
	pieces    []piece
	bytes     int
	ended     bool
	endAt     time.Time
	abandoned bool
}

type piece struct {
	data []byte
	at   time.Time
}

func newQueue(limit int) *queue {
	q := &queue{limit: limit}
	q.changed.L = &q.mu
	return q
}

// push adds a piece to the queue. It waits while too many bytes are in the queue. It returns false if the reader has
// ended.
func (q *queue) push(p []byte, at time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.bytes >= q.limit && !q.abandoned {
		q.changed.Wait()
	}
	if q.abandoned {
		return false
	}
	q.pieces = append(q.pieces, piece{p, at})
	q.bytes += len(p)
	q.changed.Broadcast()
	return true
}

// end records that no more pieces follow. The end of the stream arrives at the time at.
func (q *queue) end(at time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended, q.endAt = true, at
	q.changed.Broadcast()
}

// pop waits for the next piece and removes it from the queue. ok is false at the end of the stream.
func (q *queue) pop() (p []byte, at time.Time, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.pieces) == 0 {
		if q.ended {
			return nil, q.endAt, false
		}
		q.changed.Wait()
	}
	first := q.pieces[0]
	q.pieces[0] = piece{}
	q.pieces = q.pieces[1:]
	q.bytes -= len(first.data)
	q.changed.Broadcast()
	return first.data, first.at, true
}

func (q *queue) abandon() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.abandoned = true
	q.changed.Broadcast()
}
