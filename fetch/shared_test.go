package fetch

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/fetch/treewalk"
	"github.com/artifactfs/artifactfs/git/convert"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// Background work for mounts of the same tree is done once: contents are requested once although several mounts
// prefetch them, and trees are scanned and counted once.
func TestMountsOfATreeShareWhatGoesOnBehind(t *testing.T) {
	files := map[string]gittest.File{
		"README.md": {Data: []byte("read\n")}, "go.mod": {Data: []byte("module m\n")}, ".gitignore": {Data: []byte("*.o\n")},
		"src/.gitignore": {Data: []byte("x\n")},
		"src/a.go":       {Data: []byte("package a\n")}, "src/a_test.go": {Data: []byte("package a_test\n")},
		".gitattributes": {Data: []byte("*.txt text\n")},
		"docs/page.md":   {Data: []byte("page\n")}, "picture.png": {Data: []byte("\x89PNG")},
		"vendor/v.go": {Data: []byte("package v\n")}, "link": {Data: []byte("README.md"), Mode: "120000"},
	}
	server, s, snap := serveFiles(t, files)
	var views []*View
	for range 4 {
		v := s.View(snap, convert.Settings{}, nil)
		defer v.Close()
		views = append(views, v)
	}
	empty := views[0].CountsSince(t.Context(), time.Now())
	server.Log().Reset()
	var all sync.WaitGroup
	for _, v := range views {
		all.Go(func() {
			if err := v.Prefetch(t.Context(), PrefetchAll, 0); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for id, n := range must2(server.Log().Blobs()) {
		if n > 1 {
			t.Errorf("object %s was sent %d times", id, n)
		}
	}
	hydrated := time.Now()
	for i, v := range views {
		if h := v.CountsSince(t.Context(), hydrated); h.Fetched != len(files) || h.Blobs != len(files) {
			t.Errorf("mount %d: got counts %+v, before %+v", i, h, empty)
		}
		if c := s.counts.known[snap.Tree]; i > 0 && c.began.Before(hydrated) {
			t.Error("an old number was reported")
		}
		ignore, attributes, n, err := v.GitConfigFiles(t.Context())
		if err != nil || len(ignore) != 2 || ignore[1].Path != "src/.gitignore" || len(attributes) != 1 || n != len(files) {
			t.Errorf("mount %d: got ignore %v, attributes %v, %d files: %v", i, ignore, attributes, n, err)
		}
	}
	began := s.counts.known[snap.Tree].began
	views[3].CountsSince(t.Context(), hydrated)
	if at := s.counts.known[snap.Tree].began; !at.Equal(began) || len(s.counts.configFiles) != 1 {
		t.Error("the tree was counted or scanned for each mount")
	}

	// A view in which nothing was read knows the sizes, so that the kernel sends no LOOKUP for each listed file.
	fresh := s.View(snap, convert.Settings{}, nil)
	defer fresh.Close()
	s.trees.Walk(t.Context(), snap.Tree, "", func(f treewalk.File) bool {
		if n, ok := fresh.KnownSize(Blob{ID: f.ID, Path: f.Path, Link: f.Mode == object.ModeSymlink}); !ok ||
			int(n) != len(files[f.Path].Data) {
			t.Errorf("size of %s: got %d, %v, want %d", f.Path, n, ok, len(files[f.Path].Data))
		}
		return true
	})

	ended, end := context.WithCancel(t.Context())
	end()
	if h := views[0].CountsSince(ended, time.Now().Add(time.Hour)); h.Blobs != len(files) {
		t.Errorf("reply to a caller that does not wait: got %+v", h)
	}

	// A caller that waits for the work of another can be cancelled.
	done, err := s.prefetches.Begin(t.Context(), prefetchKey{snap.Tree, PrefetchAll, 0})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := views[0].Prefetch(ctx, PrefetchAll, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("the cancelled caller: got %v", err)
	}
	done()
	if err := views[0].Prefetch(t.Context(), PrefetchAll, 0); err != nil {
		t.Error(err)
	}
}

func must2[A, B any](a A, _ B) A { return a }
