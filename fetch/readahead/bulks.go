package readahead

import (
	"sync"

	"github.com/artifactfs/artifactfs/git/object"
)

// maxBulkRefusals is the number of refused bulk requests after which no further one is sent to a remote.
const maxBulkRefusals = 3

// Bulks records the objects that the remote refused to send with their contents. Some servers refuse wants of trees,
// although they send commits with their trees. The zero value is ready to use.
type Bulks struct {
	mu      sync.Mutex
	refused map[object.ID]struct{}
	n       int // number of refused requests
}

// MayTry reports whether a request for an object with its contents may succeed.
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
