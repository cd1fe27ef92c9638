// Package intake stores the blobs of an answer while the decoder works on the next ones. A goroutine stores many
// objects at once, because each write to the cache on disk costs a system call.
package intake

import (
	"io"
	"sync"

	"github.com/artifactfs/artifactfs/git/odb"
)

// The limits of a batch: a larger batch would delay its first objects and use more memory.
const (
	batchObjects = 64
	batchBytes   = 256 << 10 // total size of the contents in memory, in bytes
	batchesAhead = 2         // number of batches that wait to be stored
)

// Intake is a queue of verified objects that are to be stored, in their order. Its methods may be called by one
// goroutine, the decoder's.
type Intake struct {
	store func([]odb.Object) error
	next  []odb.Object // objects that no batch contains yet
	bytes int64        // total size of the contents of next in memory, in bytes
	full  chan []odb.Object

	mu     sync.Mutex
	queued int        // number of batches that are not stored yet
	err    error      // first error that the function store has returned
	stored *sync.Cond // signals that a batch was stored
}

// New returns an Intake that calls the function store with batches of objects, one batch after the other. After an
// error of store, it is not called again, and the files of further objects are removed. The caller must call Close.
func New(store func([]odb.Object) error) *Intake {
	q := &Intake{store: store, full: make(chan []odb.Object, batchesAhead)}
	q.stored = sync.NewCond(&q.mu)
	go q.run()
	return q
}

// run stores the batches.
func (q *Intake) run() {
	for batch := range q.full {
		err := q.failure()
		if err == nil {
			err = q.store(batch)
		} else {
			for _, o := range batch {
				o.Discard()
			}
		}
		q.mu.Lock()
		q.queued--
		if q.err == nil {
			q.err = err
		}
		q.mu.Unlock()
		q.stored.Broadcast()
	}
}

// failure returns the first error that the function store has returned.
func (q *Intake) failure() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.err
}

// Add adds an object. It waits while too many objects are not stored yet. It returns the first error that the function
// store has returned.
func (q *Intake) Add(o odb.Object) error {
	q.next = append(q.next, o)
	if q.bytes += int64(len(o.Data)); len(q.next) < batchObjects && q.bytes < batchBytes {
		return nil
	}
	q.flush()
	return q.failure()
}

// Reader returns a reader of r, the pack from which the decoder takes the objects. Before each read, which may take
// long, it makes a batch of all objects that were added, so that no object waits for the network.
func (q *Intake) Reader(r io.Reader) io.Reader { return reader{q, r} }

type reader struct {
	queue *Intake
	r     io.Reader
}

// Read reads from the underlying reader.
func (r reader) Read(p []byte) (int, error) {
	r.queue.flush()
	return r.r.Read(p)
}

// flush queues the objects in next as a batch.
func (q *Intake) flush() {
	if len(q.next) == 0 {
		return
	}
	q.mu.Lock()
	q.queued++
	q.mu.Unlock()
	q.full <- q.next
	q.next, q.bytes = nil, 0
}

// Await waits until all objects that were added are stored, and returns the first error that the function store has
// returned.
func (q *Intake) Await() error {
	q.flush()
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.queued > 0 {
		q.stored.Wait()
	}
	return q.err
}

// Close waits until all objects are stored, and returns the first error that the function store has returned.
func (q *Intake) Close() error {
	err := q.Await()
	close(q.full)
	return err
}
