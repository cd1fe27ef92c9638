package named

import (
	"sync"

	"github.com/artifactfs/artifactfs/git/object"
)

// Background collects, in a goroutine of its own, the ids of the blobs that trees name, so that the caller, which
// decodes the trees, does not wait.
type Background struct {
	names   *Collector // belongs to the goroutine until Finish returns
	batches chan []namingTree
	batch   []namingTree // trees that were not passed on yet
	size    int          // total size of batch in bytes
	done    sync.WaitGroup
}

// namingTree is a tree whose names are collected, with the base of its delta. The base is nil if the tree was not a
// delta, or if its base was not in memory.
type namingTree struct{ base, content []byte }

// A batch of trees is passed on when it has batchTrees trees or batchBytes bytes. At most batchesWaiting batches wait.
const (
	batchTrees     = 64
	batchBytes     = 256 << 10
	batchesWaiting = 4
)

// NewBackground starts the goroutine. The caller must call Finish.
func NewBackground(f object.Format) *Background {
	batches := make(chan []namingTree, batchesWaiting)
	c := &Background{names: NewCollector(f), batches: batches}
	c.done.Go(func() {
		for batch := range batches {
			for _, t := range batch {
				c.names.AddChanged(t.base, t.content)
			}
		}
	})
	return c
}

// Add passes a tree to the goroutine. The caller must not modify the contents any more. If base is not nil, it is a
// tree that was passed before.
func (c *Background) Add(base, content []byte) {
	c.batch = append(c.batch, namingTree{base, content})
	if c.size += len(base) + len(content); len(c.batch) == batchTrees || c.size >= batchBytes {
		c.batches <- c.batch
		c.batch, c.size = make([]namingTree, 0, batchTrees), 0
	}
}

// Finish ends the goroutine and returns the names.
func (c *Background) Finish() *Collector {
	if c.batches != nil {
		c.batches <- c.batch
		close(c.batches)
		c.batches = nil
	}
	c.done.Wait()
	return c.names
}
