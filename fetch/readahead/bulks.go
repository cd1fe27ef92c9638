package readahead

import (
	"sync"

	"github.com/artifactfs/artifactfs/git/object"
)

// maxBulkRefusals is the number of refused bulk requests after which no further one is sent to a remote.
const maxBulkRefusals = 3

// Bulks records the objects that the remote did not send with their contents, although commits and trees of the same remote were
// fetched. Some servers refuse wants of trees. The zero value is ready to use.
type Bulks struct {
	mu      sync.Mutex
	refused map[object.ID]struct{}
	n       int // number of refused requests
}

// MayTry reports whether an object may be wanted with its contents.
func (b *Bulks) MayTry(id object.ID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, refused := b.refused[id]
	return !refused && b.n < maxBulkRefusals
}

// Refuse records that a request for these objects has failed.
func (b *Bulks) Refuse(ids []object.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refused == nil {
		b.refused = map[object.ID]struct{}{}
	}
	for _, id := range ids {
		b.refused[id] = struct{}{}
	}
	b.n++
}
