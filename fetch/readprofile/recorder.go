package readprofile

import (
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/internal/signal"
)

// Recorder collects the paths of one recording. The methods may be called from any goroutine.
type Recorder struct {
	added chan struct{} // has a token if a path was added since the last receive

	mu    sync.Mutex
	seen  map[string]struct{}
	paths []string
	last  time.Time // time at which the last path was added; zero if there is none
	ended bool
}

// NewRecorder returns a Recorder that has recorded these paths.
func NewRecorder(paths []string) *Recorder {
	r := &Recorder{added: make(chan struct{}, 1), seen: map[string]struct{}{}}
	for _, path := range paths {
		r.Note(path)
	}
	return r
}

// Note records that a program has read the file at path. Only the first read of each path counts. A nil Recorder
// records nothing.
func (r *Recorder) Note(path string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, again := r.seen[path]; again || r.ended || len(r.paths) >= MaxPaths || !validPath(path) {
		return
	}
	r.seen[path] = struct{}{}
	r.paths, r.last = append(r.paths, path), time.Now()
	signal.Send(r.added)
}

// Added returns the channel that receives a token after a path was added. Several paths may share a token.
func (r *Recorder) Added() <-chan struct{} { return r.added }

// Paths returns the recorded paths. The caller must not change the result.
func (r *Recorder) Paths() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.paths[:len(r.paths):len(r.paths)]
}

// Len returns the number of recorded paths, and the time at which the last of them was added.
func (r *Recorder) Len() (n int, last time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.paths), r.last
}

// End returns the recorded paths and frees the memory of the Recorder. Later calls of Note do nothing.
func (r *Recorder) End() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	paths := r.paths
	r.seen, r.paths, r.ended = nil, nil, true
	return paths
}
