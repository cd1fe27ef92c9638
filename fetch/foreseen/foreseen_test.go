package foreseen

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/fetch/readprofile"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/prioritize"
)

// place is a mount's view of a tree in memory, with a remote that a test can hold.
type place struct {
	*Prefetcher
	pipe  *pipeline.Pipeline
	trees map[object.ID][]object.TreeEntry // by the ids of the trees

	mu      sync.Mutex
	here    map[object.ID]bool // contents on this host
	batches [][]string         // paths of the requests, each as it was sent
	read    map[object.ID]int  // number of reads of each tree
	bytes   int64              // bytes that have arrived
	fail    error              // error of Entries
}

func idOf(kind, path string) object.ID {
	id, err := object.Hash(object.SHA1, object.Blob, []byte(kind+path))
	if err != nil {
		panic(err)
	}
	return id
}

// newPlace returns a view of a tree with these files, in the order of the tree. Requests wait until hold is closed;
// nil: they do not wait. Each file has 10 bytes.
func newPlace(t *testing.T, hold <-chan struct{}, files ...string) *place {
	t.Helper()
	p := &place{trees: map[object.ID][]object.TreeEntry{}, here: map[object.ID]bool{}, read: map[object.ID]int{}}
	known := map[string]bool{}
	for _, path := range files {
		mode, id := object.ModeFile, idOf("file", path)
		for path != "" {
			dir, name := "", path
			if i := strings.LastIndexByte(path, '/'); i >= 0 {
				dir, name = path[:i], path[i+1:]
			}
			if known[path] {
				break
			}
			known[path] = true
			tree := idOf("dir", dir)
			p.trees[tree] = append(p.trees[tree], object.TreeEntry{Mode: mode, Name: name, ID: id})
			path, mode, id = dir, object.ModeDir, idOf("dir", dir)
		}
	}
	send := func(ctx context.Context, b *pipeline.Batch, arrived func(object.ID, []byte)) error {
		var paths []string
		for _, w := range b.Wants {
			paths = append(paths, w.Path)
		}
		p.mu.Lock()
		p.batches = append(p.batches, paths)
		p.mu.Unlock()
		if hold != nil {
			select {
			case <-hold:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		for _, w := range b.Wants {
			p.mu.Lock()
			p.here[w.ID] = true
			p.bytes += 10
			p.mu.Unlock()
			arrived(w.ID, make([]byte, 10))
		}
		return nil
	}
	cached := func(object.ID) bool { return false }
	p.pipe = pipeline.New(pipeline.Config{Send: send, Cached: cached, Deadline: time.Minute, Log: zap.NewNop()})
	t.Cleanup(p.pipe.Close)
	walk := func(from string, visit func(File) bool) {
		i := max(slices.Index(files, from)+1, 0)
		for _, path := range files[i:] {
			if !visit(File{idOf("file", path), path}) {
				return
			}
		}
	}
	p.Prefetcher = New(Source{
		Pipe: p.pipe, Tree: func() object.ID { return idOf("dir", "") }, Entries: p.entries, Missing: p.missing,
		Walk:     func(_ context.Context, visit func(File) bool) error { walk("", visit); return nil },
		WalkFrom: func(_ context.Context, path string, visit func(File) bool) error { walk(path, visit); return nil },
		AwaitRoom: func(ctx context.Context, room int) error {
			if !p.pipe.AwaitRoom(ctx, room) {
				return ctx.Err()
			}
			return nil
		},
		AwaitDone: func(ctx context.Context) error {
			for p.pipe.Prefetching() > 0 {
				select {
				case <-time.After(time.Millisecond):
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		},
		BytesIn: func() int64 {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.bytes
		},
	})
	return p
}

func (p *place) entries(ctx context.Context, tree object.ID) ([]object.TreeEntry, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.read[tree]++
	return p.trees[tree], errors.Join(p.fail, ctx.Err())
}

func (p *place) missing(id object.ID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.here[id]
}

// sent returns the paths of all requests.
func (p *place) sent() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Concat(p.batches...)
}

func profileOf(paths ...string) readprofile.Profile {
	var profile readprofile.Profile
	for _, path := range paths {
		profile.Paths = append(profile.Paths, readprofile.Path{Name: path})
	}
	return profile
}

// The files of a profile are requested in its order, without those that are on this host or not in the tree, and each
// directory is read once.
func TestRun(t *testing.T) {
	p := newPlace(t, nil, "a/b/1", "a/b/2", "a/c", "d")
	p.here[idOf("file", "a/c")] = true
	profile := profileOf("d", "a/b/2", "a/none", "a", "d/below", "a/c", "a/b/1", "")
	if left, err := p.Run(t.Context(), profile, 0); err != nil || left != 0 {
		t.Errorf("run without a budget: got %d, %v", left, err)
	}
	if got, want := p.sent(), []string{"d", "a/b/2", "a/b/1"}; !slices.Equal(got, want) {
		t.Errorf("requested files: got %q, want %q", got, want)
	}
	for tree, n := range p.read {
		if n != 1 {
			t.Errorf("tree %s was read %d times, want 1", tree, n)
		}
	}
	if p.Lacks(t.Context(), profile) {
		t.Error("the profile lacks contents after the prefetch")
	}
	// The rest of the tree follows the paths of a profile of the whole tree.
	p = newPlace(t, nil, "a/b/1", "a/b/2", "a/c", "d")
	profile = profileOf("d")
	profile.Whole = true
	if _, err := p.Run(t.Context(), profile, 0); err != nil {
		t.Fatal(err)
	}
	if got := p.sent(); len(got) != 4 || got[0] != "d" {
		t.Errorf("requested files of the whole tree: got %q, want d and the 3 others", got)
	}
	if n, err := p.CountFiles(t.Context(), 3); err != nil || n != 3 {
		t.Errorf("number of files, at most 3: got %d, %v", n, err)
	}
}

// Run requests no further files when the budget is spent, and returns what is left of it.
func TestBudget(t *testing.T) {
	var files []string
	for i := range 3 * queueAhead {
		files = append(files, fmt.Sprintf("%05d", i))
	}
	p := newPlace(t, nil, files...)
	// The first part is sent at once, and is larger than the budget.
	left, err := p.Run(t.Context(), profileOf(files...), 10*pipeline.FirstPrefetchBatch)
	if n := len(p.sent()); err != nil || left > 0 || n < pipeline.FirstPrefetchBatch || n == len(files) {
		t.Errorf("run with a budget of %d files: got %d requested, %d bytes left, %v",
			pipeline.FirstPrefetchBatch, n, left, err)
	}
	p = newPlace(t, nil, files[:5]...)
	if left, err := p.Run(t.Context(), profileOf(files...), 1000); err != nil || left != 950 {
		t.Errorf("budget of 1000 bytes after 5 files: got %d left, %v, want 950", left, err)
	}
}

// While a profile is prefetched, a reader that waits for one of its files also requests the files that follow in the
// profile.
func TestAfter(t *testing.T) {
	for _, whole := range []bool{false, true} {
		t.Run(fmt.Sprint("whole ", whole), func(t *testing.T) {
			var files, profile []string
			for i := range 6000 { // far more than the requests in flight have
				files = append(files, fmt.Sprintf("%05d", i))
			}
			for i := range files {
				profile = append(profile, files[(i*7)%len(files)])
			}
			hold := make(chan struct{})
			p := newPlace(t, hold, files...)
			after := func(path string) (pipeline.Neighbours, bool) { return p.After(t.Context(), idOf("file", path), path) }
			if _, ok := after(profile[5900]); ok {
				t.Error("neighbours before a prefetch: got some, want none")
			}
			list := profileOf(profile...)
			if whole {
				list = readprofile.Profile{Whole: true}
			}
			done := make(chan error)
			go func() {
				_, err := p.Run(context.Background(), list, 0)
				done <- err
			}()
			await.Until(t, "all files are queued, and the first are requested", func() bool {
				return p.pipe.Prefetching() == len(files) && len(p.sent()) > 0
			})
			first := p.sent()[0]
			if c, ok := after(first); !ok || len(c.Wants) != 0 || c.Patience != pipeline.HedgeCrawl {
				t.Errorf("neighbours of a file that is being requested: got %d, %v, want a patient reader alone", len(c.Wants), ok)
			}
			p.mu.Lock()
			p.here[idOf("file", profile[5001])] = true
			p.here[idOf("file", "05001")] = true
			p.mu.Unlock()
			read, want := profile[5000], profile[5002]
			if whole {
				read, want = "05000", "05002"
			}
			c, ok := after(read)
			if !ok || len(c.Wants) != alongside || c.Wants[0].Path != want || c.Wants[0].Class != prioritize.Sibling {
				t.Errorf("neighbours of %s: got %d, %v, want %d from %s on", read, len(c.Wants), ok, alongside, want)
			}
			if _, ok := after("elsewhere"); ok != whole {
				t.Errorf("neighbours of a file that is not in the profile: got %v, want %v", ok, whole)
			}
			close(hold)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if _, ok := after(read); ok {
				t.Error("neighbours after the prefetch: got some, want none")
			}
		})
	}
}

// A prefetch ends with its context, and with a tree that cannot be read. What cannot be looked up at once counts as
// missing.
func TestPrefetchEnds(t *testing.T) {
	hold := make(chan struct{})
	defer close(hold)
	p := newPlace(t, hold, "a/1")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := p.Run(ctx, profileOf("a/1"), 0)
		done <- err
	}()
	await.Until(t, "the file is requested", func() bool { return len(p.sent()) == 1 })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("prefetch whose context has ended: got %v, want %v", err, context.Canceled)
	}
	p = newPlace(t, nil, "a/1")
	p.here[idOf("file", "a/1")] = true
	p.fail = errors.New("no connection")
	if left, err := p.Run(t.Context(), profileOf("a/1"), 100); !errors.Is(err, p.fail) || left != 100 {
		t.Errorf("prefetch without a tree: got %d, %v, want the whole budget and %v", left, err, p.fail)
	}
	if !p.Lacks(t.Context(), profileOf("a/1")) {
		t.Error("a profile whose trees cannot be read lacks nothing")
	}
	p.source.Entries = func(ctx context.Context, _ object.ID) ([]object.TreeEntry, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if !p.Lacks(t.Context(), profileOf("a/1")) {
		t.Error("a profile whose trees do not arrive lacks nothing")
	}
}
