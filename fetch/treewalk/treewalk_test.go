package treewalk_test

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/fetch/treewalk"
	"github.com/artifactfs/artifactfs/git/object"
)

// trees are trees by their ids. Those in missing are on the remote only.
type trees struct {
	all     map[object.ID][]object.TreeEntry
	missing map[object.ID]bool
}

var errAway = errors.New("away")

func (s *trees) Entries(_ context.Context, id object.ID) ([]object.TreeEntry, error) {
	if id.IsZero() {
		return nil, nil
	}
	entries, ok := s.all[id]
	if !ok {
		return nil, errAway
	}
	return entries, nil
}

func (s *trees) Local(id object.ID) ([]object.TreeEntry, bool) {
	entries, ok := s.all[id]
	return entries, ok && !s.missing[id]
}

// put stores a tree with paths, which are sorted. A path that ends with "@" is a submodule.
func (s *trees) put(dir string, paths []string) object.ID {
	var entries []object.TreeEntry
	for len(paths) > 0 {
		name, _, deep := strings.Cut(paths[0], "/")
		var below []string
		for len(paths) > 0 && (paths[0] == name || strings.HasPrefix(paths[0], name+"/")) {
			below, paths = append(below, strings.TrimPrefix(paths[0], name+"/")), paths[1:]
		}
		e := object.TreeEntry{Name: strings.TrimSuffix(name, "@"), Mode: object.ModeFile, ID: idOf(path.Join(dir, name))}
		switch {
		case deep:
			e.Mode, e.ID = object.ModeDir, s.put(path.Join(dir, name), below)
		case strings.HasSuffix(name, "@"):
			e.Mode = object.ModeGitlink
		case strings.HasSuffix(name, ".link"):
			e.Mode = object.ModeSymlink
		}
		entries = append(entries, e)
	}
	id := idOf("tree " + dir)
	s.all[id] = entries
	return id
}

// idOf returns the id of a name.
func idOf(name string) object.ID {
	id, err := object.Hash(object.SHA1, object.Blob, []byte(name))
	if err != nil {
		panic(err)
	}
	return id
}

var files = []string{"a", "d/a", "d/e/x", "d/e/y.link", "d/f", "m@", "s/t/u", "z"}

func newTrees() (*trees, object.ID) {
	s := &trees{map[object.ID][]object.TreeEntry{}, map[object.ID]bool{}}
	return s, s.put("", files)
}

// collector collects the paths of visited files, until it has most of them.
type collector struct {
	t    *testing.T
	most int
	got  []string
}

func (c *collector) visit(f treewalk.File) bool {
	if f.ID != idOf(f.Path) || (f.Mode == object.ModeSymlink) != strings.HasSuffix(f.Path, ".link") {
		c.t.Errorf("file %s: got id %s and mode %o", f.Path, f.ID, f.Mode)
	}
	c.got = append(c.got, f.Path)
	return len(c.got) != c.most
}

func TestWalkVisitsAllFiles(t *testing.T) {
	s, root := newTrees()
	s.missing[root] = true // Walk waits for it
	c := &collector{t: t}
	on, err := treewalk.Walker{Trees: s}.Walk(t.Context(), root, "", c.visit)
	want := slices.DeleteFunc(slices.Clone(files), func(p string) bool { return p == "m@" })
	if !on || err != nil || !slices.Equal(c.got, want) {
		t.Errorf("walk: got %q, %v, %v, want %q", c.got, on, err, want)
	}
	c = &collector{t: t, most: 3}
	if on, err := (treewalk.Walker{Trees: s}).Walk(t.Context(), root, "", c.visit); on || err != nil ||
		!slices.Equal(c.got, want[:3]) {
		t.Errorf("walk until the third file: got %q, %v, %v, want %q", c.got, on, err, want[:3])
	}
	delete(s.all, idOf("tree d/e"))
	c = &collector{t: t}
	if _, err := (treewalk.Walker{Trees: s}).Walk(t.Context(), root, "", c.visit); !errors.Is(err, errAway) ||
		!slices.Equal(c.got, want[:2]) {
		t.Errorf("walk to a tree that cannot be fetched: got %q, %v, want the error after %q", c.got, err, want[:2])
	}
}

func TestWalkBelowDirectory(t *testing.T) {
	s, root := newTrees()
	w := treewalk.Walker{Trees: s}
	d, err := w.Find(t.Context(), root, "d/e")
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{t: t}
	if _, err := w.Walk(t.Context(), d, "d/e", c.visit); err != nil ||
		!slices.Equal(c.got, []string{"d/e/x", "d/e/y.link"}) {
		t.Errorf("walk of d/e: got %q, %v", c.got, err)
	}
}

// WalkLocal skips what is not on this host, and Local makes it an error.
func TestMissingTrees(t *testing.T) {
	s, root := newTrees()
	s.missing[idOf("tree d/e")] = true
	c := &collector{t: t}
	treewalk.Walker{Trees: s}.WalkLocal(root, "", func(f treewalk.File) { c.visit(f) })
	if want := []string{"a", "d/a", "d/f", "s/t/u", "z"}; !slices.Equal(c.got, want) {
		t.Errorf("files on this host: got %q, want %q", c.got, want)
	}
	local := treewalk.Walker{Trees: treewalk.Local{Trees: s}}
	on, err := local.Walk(t.Context(), root, "", func(treewalk.File) bool { return true })
	if on || !errors.Is(err, treewalk.ErrMissing) {
		t.Errorf("walk of a tree that is not on this host: got %v, want ErrMissing", err)
	}
	empty := object.EmptyTree(object.SHA1)
	if on, err = local.Walk(t.Context(), empty, "", func(treewalk.File) bool { return true }); !on || err != nil {
		t.Errorf("walk of the empty tree, which is nowhere stored: got %v, %v", on, err)
	}
}

// For every file, WalkFrom visits exactly the files that follow in the order, and WalkDir those of them in the same
// directory.
func TestWalksFromFile(t *testing.T) {
	s, root := newTrees()
	w := treewalk.Walker{Trees: s}
	all := slices.DeleteFunc(slices.Clone(files), func(p string) bool { return p == "m@" })
	for _, o := range []treewalk.Order{treewalk.Forward, treewalk.Backward} {
		order := slices.Clone(all)
		if o == treewalk.Backward {
			slices.Reverse(order)
		}
		for i, from := range order {
			what := fmt.Sprintf("from %s, backward %v", from, bool(o))
			c := &collector{t: t}
			if err := w.WalkFrom(t.Context(), root, from, o, c.visit); err != nil || !slices.Equal(c.got, order[i+1:]) {
				t.Errorf("walk %s: got %q, %v, want %q", what, c.got, err, order[i+1:])
			}
			beside := slices.DeleteFunc(slices.Clone(order[i+1:]), func(p string) bool { return path.Dir(p) != path.Dir(from) })
			c = &collector{t: t}
			if err := w.WalkDir(t.Context(), root, from, o, c.visit); err != nil || !slices.Equal(c.got, beside) {
				t.Errorf("walk of the directory %s: got %q, %v, want %q", what, c.got, err, beside)
			}
			if len(beside) > 1 {
				c = &collector{t: t, most: 1}
				if err := w.WalkDir(t.Context(), root, from, o, c.visit); err != nil || !slices.Equal(c.got, beside[:1]) {
					t.Errorf("walk to the next file %s: got %q, %v, want %q", what, c.got, err, beside[:1])
				}
			}
		}
	}
	c := &collector{t: t, most: 1}
	if err := w.WalkFrom(t.Context(), root, "d/e/x", treewalk.Forward, c.visit); err != nil ||
		!slices.Equal(c.got, []string{"d/e/y.link"}) {
		t.Errorf("walk to the next file: got %q, %v, want d/e/y.link", c.got, err)
	}
	c = &collector{t: t}
	if err := w.WalkFrom(t.Context(), root, "d/none", treewalk.Forward, c.visit); err != nil ||
		!slices.Equal(c.got, []string{"s/t/u", "z"}) {
		t.Errorf("walk from a file that does not exist: got %q, %v, want the files after its directory", c.got, err)
	}
}

func TestFindDirectory(t *testing.T) {
	s, root := newTrees()
	w := treewalk.Walker{Trees: s}
	for dir, want := range map[string]object.ID{
		"": root, "d": idOf("tree d"), "d/e": idOf("tree d/e"), "s/t": idOf("tree s/t"), "a": {}, "m": {}, "d/e/x": {},
		"none": {}, "d/none/x": {},
	} {
		if got, err := w.Find(t.Context(), root, dir); err != nil || got != want {
			t.Errorf("find directory %q: got %s, %v, want %s", dir, got, err, want)
		}
	}
	entries, err := w.Directory(t.Context(), root, "d")
	if err != nil || len(entries) != 3 || entries[1].Name != "e" {
		t.Errorf("entries of d: got %v, %v", entries, err)
	}
	if entries, err := w.Directory(t.Context(), root, "none"); err != nil || entries != nil {
		t.Errorf("entries of a directory that does not exist: got %v, %v, want none", entries, err)
	}
}
