package fetch

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/fetch/readprofile"
	"github.com/artifactfs/artifactfs/fetch/treewalk"
	"github.com/artifactfs/artifactfs/git/convert"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// newProfiled returns a server of a repository with 40 directories of 20 files, a view of its commit in a new store,
// and the paths of one file in each directory, in an order that is not the order of the tree.
func newProfiled(t *testing.T) (server *gittest.Server, v *View, paths []string) {
	t.Helper()
	files := map[string]gittest.File{}
	for d := range 40 {
		for f := range 20 {
			files[fmt.Sprintf("d%02d/f%02d", d, f)] = gittest.File{Data: fmt.Appendf(nil, "%d %d\n", d, f)}
		}
		paths = append(paths, fmt.Sprintf("d%02d/f%02d", (7*d)%40, d%20))
	}
	server, s, snap := serveFiles(t, files)
	v = s.View(snap, convert.Settings{}, nil)
	t.Cleanup(v.Close)
	server.Log().Reset()
	return server, v, paths
}

// profileOf returns a profile with these paths.
func profileOf(paths ...string) readprofile.Profile {
	return readprofile.Profile{}.Merge(readprofile.Recording{Paths: paths, Ended: time.Now()})
}

// wanted returns the numbers of requests for blobs and of their wants.
func wanted(t *testing.T, server *gittest.Server) (requests, blobs int) {
	t.Helper()
	for _, r := range server.Log().Requests() {
		if len(r.Wants) > 0 {
			requests++
			blobs += len(r.Wants)
		}
	}
	return requests, blobs
}

func TestPrefetchOfAProfileIsOneRequest(t *testing.T) {
	server, v, paths := newProfiled(t)
	extra := []string{"vanished", "d00/vanished", "d00", "d00/f00/below", "no/such/directory"}
	if _, err := v.Foreseen.Run(t.Context(), profileOf(slices.Concat(extra, paths)...), 0); err != nil {
		t.Fatal(err)
	}
	if requests, blobs := wanted(t, server); requests != 1 || blobs != len(paths) {
		t.Errorf("prefetch: %d requests for %d blobs, want 1 for %d\n%s", requests, blobs, len(paths), server.Log())
	}
	for _, path := range paths {
		if v.missing(blobAt(t, v, path).ID) {
			t.Errorf("contents of %s are missing after the prefetch", path)
		}
	}
	if v.Foreseen.Lacks(t.Context(), profileOf(paths...)) || !v.Foreseen.Lacks(t.Context(), profileOf("d00/f19")) {
		t.Error("Lacks does not report which of the profiles has missing contents")
	}
}

func TestProfileOfTheWholeTreeFetchesAll(t *testing.T) {
	server, v, _ := newProfiled(t)
	if _, err := v.Foreseen.Run(t.Context(), readprofile.Profile{Whole: true}, 0); err != nil {
		t.Fatal(err)
	}
	if requests, blobs := wanted(t, server); requests > 2 || blobs != 800 {
		t.Errorf("prefetch: %d requests for %d blobs, want at most 2 for 800", requests, blobs)
	}
}

func TestProfileKeepsToTheBudget(t *testing.T) {
	_, v, paths := newProfiled(t)
	left, err := v.Foreseen.Run(t.Context(), profileOf(paths...), 1<<20)
	if err != nil || left >= 1<<20 || left < 1<<20-40*6 {
		t.Errorf("budget of 1 MiB after 40 small files: %d bytes are left, error %v", left, err)
	}
	if left, err = v.Foreseen.Run(t.Context(), readprofile.Profile{Whole: true}, 1); err != nil || left > 0 {
		t.Errorf("budget of 1 byte after the whole tree: %d bytes are left, error %v; want none", left, err)
	}
}

func TestReadsAreRecordedInOrder(t *testing.T) {
	_, v, paths := newProfiled(t)
	r := readprofile.NewRecorder(nil)
	v.Record(r)
	for _, path := range []string{paths[3], paths[1], paths[3], paths[2]} {
		c, err := v.Open(t.Context(), blobAt(t, v, path))
		if err != nil {
			t.Fatal(err)
		}
		c.Release()
	}
	c, err := v.OpenAlone(t.Context(), blobAt(t, v, paths[9])) // git's index, not a program, reads this file
	if err != nil {
		t.Fatal(err)
	}
	c.Release()
	if got, want := r.Paths(), []string{paths[3], paths[1], paths[2]}; !slices.Equal(got, want) {
		t.Errorf("recorded paths: got %q, want %q", got, want)
	}
}

// blobAt returns the blob at a path of the tree that a view shows.
func blobAt(t *testing.T, v *View, path string) Blob {
	t.Helper()
	var found Blob
	if _, err := v.store.trees.Walk(context.Background(), v.Shown(), "", func(f treewalk.File) bool {
		if f.Path == path {
			found = Blob{ID: f.ID, Path: path}
		}
		return found.ID.IsZero()
	}); err != nil || found.ID.IsZero() {
		t.Fatalf("find %s: %v", path, err)
	}
	return found
}
