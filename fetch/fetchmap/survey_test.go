package fetchmap

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
)

// forest is a Tree in memory.
type forest struct {
	root  object.ID
	trees map[object.ID][]object.TreeEntry
	blobs map[object.ID]*state
	asked int // calls of BlobState
}

type state struct {
	size             int64
	fetched, pending bool
}

func (f *forest) Shown() object.ID { return f.root }

func (f *forest) LocalTree(id object.ID) ([]object.TreeEntry, bool) {
	entries, ok := f.trees[id]
	return entries, ok
}

func (f *forest) BlobState(id object.ID) (size int64, fetched, pending bool) {
	f.asked++
	b := f.blobs[id]
	return b.size, b.fetched, b.pending
}

// grow makes a tree of files, whose names are paths. The size of a file is 10 times its number, from 1.
func grow(t testing.TB, paths ...string) *forest {
	t.Helper()
	f := &forest{trees: map[object.ID][]object.TreeEntry{}, blobs: map[object.ID]*state{}}
	n := 0
	id := func() object.ID {
		n++
		id, err := object.ParseID(fmt.Sprintf("%040x", n))
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	dirs := map[string]object.ID{"": id()}
	f.root = dirs[""]
	f.trees[f.root] = nil
	for i, path := range paths {
		dir := ""
		for {
			name, rest, deeper := strings.Cut(strings.TrimPrefix(path[len(dir):], "/"), "/")
			above := dirs[dir]
			if !deeper {
				blob := id()
				f.blobs[blob] = &state{size: int64(10 * (i + 1))}
				f.trees[above] = append(f.trees[above], object.TreeEntry{Name: name, Mode: object.ModeFile, ID: blob})
				break
			}
			dir = path[:len(path)-len(rest)-1]
			if _, ok := dirs[dir]; !ok {
				dirs[dir] = id()
				f.trees[dirs[dir]] = nil
				f.trees[above] = append(f.trees[above], object.TreeEntry{Name: name, Mode: object.ModeDir, ID: dirs[dir]})
			}
		}
	}
	return f
}

// blob returns the state of the file at a path.
func (f *forest) blob(t testing.TB, path string) *state {
	t.Helper()
	id := f.root
	for part := range strings.SplitSeq(path, "/") {
		for _, e := range f.trees[id] {
			if e.Name == part {
				id = e.ID
				break
			}
		}
	}
	if f.blobs[id] == nil {
		t.Fatalf("the tree has no file %s", path)
	}
	return f.blobs[id]
}

// text returns a map as text: name:files/fetched/fetching(below).
func text(d MapDir) string {
	s := fmt.Sprintf("%s:%d/%d/%d", d.Name, d.Files, d.Fetched, d.Fetching)
	switch {
	case d.Own:
		s = "(own)" + s
	case d.More > 0:
		s = fmt.Sprintf("(%d more)%s", d.More, s)
	}
	if len(d.Dirs) > 0 {
		var below []string
		for _, b := range d.Dirs {
			below = append(below, text(b))
		}
		s += "(" + strings.Join(below, " ") + ")"
	}
	return s
}

func check(t *testing.T, what string, s *Survey, r MapRequest, want string) Map {
	t.Helper()
	m := s.Map(r, Counters{})
	if got := text(m.Tree); got != want {
		t.Errorf("%s: got %s, want %s", what, got, want)
	}
	return m
}

func TestSurvey(t *testing.T) {
	f := grow(t, "README", "src/a.go", "src/b.go", "src/deep/er/c.go", "src/deep/er/d.go", "doc/x.md")
	s := NewSurvey(f, Counters{})
	if m := s.Map(MapRequest{}, Counters{}); m.Known || m.Tree.Files != 0 {
		t.Errorf("map before the first count: %+v", m)
	}
	f.blob(t, "src/a.go").fetched = true
	f.blob(t, "src/deep/er/c.go").pending = true
	s.Update()
	m := check(t, "first count", s, MapRequest{}, ":6/1/1(src:4/1/1(deep/er:2/0/1 (own):2/1/0) doc:1/0/0 (own):1/0/0)")
	if !m.Known || m.Tree.Bytes != 210 || m.Tree.FetchedBytes != 20 {
		t.Errorf("map: known %v, %d bytes, %d fetched", m.Known, m.Tree.Bytes, m.Tree.FetchedBytes)
	}
	f.blob(t, "src/deep/er/c.go").fetched = true
	f.blob(t, "src/deep/er/d.go").pending = true
	f.asked = 0
	s.Update()
	if f.asked != 5 {
		t.Errorf("update asked for %d blobs, want the 5 that were missing", f.asked)
	}
	check(t, "after an arrival", s, MapRequest{}, ":6/2/1(src:4/2/1(deep/er:2/1/1 (own):2/1/0) doc:1/0/0 (own):1/0/0)")
	check(t, "a directory", s, MapRequest{Path: "src"}, ":4/2/1(deep/er:2/1/1 (own):2/1/0)")
	check(t, "one that does not exist", s, MapRequest{Path: "none", Boxes: 3}, ":6/2/1(src:4/2/1 doc:1/0/0 (own):1/0/0)")
	for _, b := range f.blobs {
		b.fetched = true
	}
	s.Update()
	f.asked = 0
	s.Update()
	if f.asked != 0 {
		t.Errorf("update of a complete tree asked for %d blobs", f.asked)
	}
	check(t, "complete", s, MapRequest{Path: "doc"}, ":1/1/0")
	s.counted = time.Now().Add(-recount - time.Second)
	f.blob(t, "doc/x.md").fetched = false
	s.Update()
	check(t, "after an eviction", s, MapRequest{Path: "doc"}, ":1/0/0")
}

// Files whose sizes are unknown count as the average until they are known, also those that are fetched.
func TestSurveyOfUnknownSizes(t *testing.T) {
	f := grow(t, "a/1", "a/2", "b/3")
	f.blob(t, "b/3").size = -1
	s := NewSurvey(f, Counters{})
	s.Update()
	if m := s.Map(MapRequest{Bytes: true}, Counters{}); m.Tree.Bytes != 45 || m.Tree.Dirs[0].Name != "a" {
		t.Errorf("map with an unknown size: %+v", m.Tree)
	}
	f.blob(t, "b/3").fetched = true
	s.Update()
	if m := s.Map(MapRequest{Bytes: true}, Counters{}); m.Tree.Bytes != 45 || m.Tree.Fetched != 1 ||
		m.Tree.FetchedBytes != 0 {
		t.Errorf("map with a file of unknown size: %+v", m.Tree)
	}
	f.blob(t, "b/3").size = 1000
	s.Update()
	if m := s.Map(MapRequest{Bytes: true}, Counters{}); m.Tree.Bytes != 1030 || m.Tree.FetchedBytes != 1000 ||
		m.Tree.Dirs[0].Name != "b" {
		t.Errorf("map with the size: %+v", m.Tree)
	}
}

func TestSurveyOfMissingDirectory(t *testing.T) {
	f := grow(t, "a/b/1", "c/2")
	var missing object.ID
	var entries []object.TreeEntry
	for _, e := range f.trees[f.root] {
		if e.Name == "a" {
			missing, entries = e.ID, f.trees[e.ID]
			delete(f.trees, e.ID)
		}
	}
	s := NewSurvey(f, Counters{})
	s.Update()
	m := check(t, "tree that is not complete", s, MapRequest{}, ":1/0/0(c:1/0/0 a:0/0/0)")
	if !m.Tree.Unlisted || m.Tree.Dirs[0].Unlisted || !m.Tree.Dirs[1].Unlisted {
		t.Errorf("unlisted directories: %+v", m.Tree)
	}
	f.trees[missing] = entries
	s.Update()
	check(t, "after the directory has arrived", s, MapRequest{}, ":2/0/0(a/b:1/0/0 c:1/0/0)")
}

func TestRequestsAreCountedInTheirDirectories(t *testing.T) {
	f := grow(t, "src/a.go", "src/deep/b.go", "doc/x.md")
	s := NewSurvey(f, Counters{Requests: 1000, Waited: 100, Reads: 500})
	s.Update()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				s.Note(Event{Weight: 1, Path: "src/deep/b.go", Bytes: 3})
				s.Note(Event{Weight: 1, Path: "src/deep/b.go", Bytes: 3, Waited: true})
				s.Note(Event{Weight: 1, Path: "src"})
				s.Note(Event{Weight: 1, Path: "src/new/dir/file"})
				s.Note(Event{Weight: 1, Path: "(inode 7)"})
			}
		})
	}
	wg.Wait()
	f.root, f.trees[f.blobs0()] = f.blobs0(), f.trees[f.root] // another tree with the same directories
	s.Update()
	now := Counters{Requests: 3500, Waited: 600, Reads: 1400}
	m := s.Map(MapRequest{}, now)
	if m.Requests != 2500 || m.Waited != 500 || m.Reads != 900 || m.Hits != 400 || m.ReadBytes != 2400 {
		t.Errorf("counts: %+v", m)
	}
	got := map[string][2]int64{}
	for _, d := range m.Tree.Dirs {
		got[d.Name] = [2]int64{d.Requests, d.Waited}
	}
	if m.Tree.Requests != 2000 || got["src"] != [2]int64{1600, 400} || got["doc"] != [2]int64{} {
		t.Errorf("requests by directory: %v of %d", got, m.Tree.Requests)
	}
	if m := s.Map(MapRequest{}, now); m.Requests != 0 || m.Hits != 0 || m.Tree.Requests != 0 {
		t.Errorf("counts of the next message: %+v", m)
	}
}

// blobs0 returns an id that no object of the tree has.
func (f *forest) blobs0() object.ID {
	id, _ := object.ParseID(strings.Repeat("f", 40))
	return id
}

// A map has at most so many directories, whatever the tree looks like, and loses no file.
func TestMapIsBounded(t *testing.T) {
	var paths []string
	for i := range 300 {
		for j := range 30 {
			paths = append(paths, fmt.Sprintf("d%d/e%d/f", i, j))
		}
	}
	for i := range 200 { // a deep one
		paths = append(paths, strings.Repeat("deep/", i)+"f")
	}
	s := NewSurvey(grow(t, paths...), Counters{})
	s.Update()
	for _, boxes := range []int{0, 1, 10, 100, 600, 1 << 30} {
		m := s.Map(MapRequest{Boxes: boxes}, Counters{})
		n := 0
		var walk func(d MapDir)
		walk = func(d MapDir) {
			var files int64
			for _, b := range d.Dirs {
				n++
				files += b.Files
				walk(b)
			}
			if len(d.Dirs) > 0 && files != d.Files {
				t.Errorf("%d directories: %q has %d files, those shown in it %d", boxes, d.Name, d.Files, files)
			}
		}
		walk(m.Tree)
		want := boxes
		if want == 0 {
			want = DefaultBoxes
		}
		if n > min(want, MaxBoxes) || boxes >= 100 && n < 50 {
			t.Errorf("map has %d directories, want at most %d", n, boxes)
		}
		if m.Tree.Files != int64(len(paths)) {
			t.Errorf("map has %d files, want %d", m.Tree.Files, len(paths))
		}
	}
}

// Beyond a number of missing blobs, a survey keeps none of them in memory.
func TestSurveyOfManyMissingBlobs(t *testing.T) {
	f := grow(t, "a/1", "a/2")
	s := NewSurvey(f, Counters{})
	s.Update()
	w := walk{tree: f, byPath: map[string]int{}, blobs: make([]blob, maxBlobs)}
	w.enter(f.root, "", "")
	if !w.many || w.blobs != nil || w.dirs[1].Files != 2 {
		t.Errorf("walk: many %v, %d blobs, %d files", w.many, len(w.blobs), w.dirs[1].Files)
	}
	s.again = true
	f.blob(t, "a/1").fetched = true
	s.Update()
	if m := s.Map(MapRequest{}, Counters{}); m.Tree.Fetched != 1 {
		t.Errorf("fetched: got %d, want 1", m.Tree.Fetched)
	}
}

func BenchmarkUpdate(b *testing.B) {
	var paths []string
	for i := range 100_000 {
		paths = append(paths, fmt.Sprintf("d%d/e%d/f%d", i%50, i%1000, i))
	}
	f := grow(b, paths...)
	s := NewSurvey(f, Counters{})
	s.Update()
	b.Run("missing", func(b *testing.B) {
		for b.Loop() {
			s.Update()
		}
	})
	b.Run("map", func(b *testing.B) {
		for b.Loop() {
			s.Map(MapRequest{}, Counters{})
		}
	})
	b.Run("note", func(b *testing.B) {
		for b.Loop() {
			s.Note(Event{Weight: 1, Path: "d1/e1/f1"})
		}
	})
}
