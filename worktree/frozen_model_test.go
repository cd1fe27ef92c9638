package worktree_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/artifactfs/artifactfs/git/object"
	. "github.com/artifactfs/artifactfs/worktree"
)

// copied is a copy of a tree that is updated only from the results of Freeze.
type copied struct {
	Token string
	Paths map[string]string // the files that git would store, and the other paths
}

// frozenContent is the contents of an entry of Freeze, and the text that reading it must return until the release.
type frozenContent struct {
	frozen *Frozen
	want   map[string]string
}

func newCopied(w *workspace) *copied {
	c := &copied{Paths: map[string]string{}}
	c.tree(w, "", "", w.src.Root, w.src.Root)
	return c
}

// tree adds the paths of a tree of the source to the copy, below the path at.
func (c *copied) tree(w *workspace, at, from string, id, root object.ID) {
	entries, err := w.src.Tree(w.t.Context(), id)
	w.ok(err)
	for _, e := range entries {
		name := path.Join(at, e.Name)
		switch e.Mode {
		case object.ModeDir:
			c.tree(w, name, path.Join(from, e.Name), e.ID, root)
		case object.ModeGitlink:
			c.Paths[name] = "module " + e.ID.String()
		default:
			c.blob(w, name, e.Mode, Blob{ID: e.ID, Path: path.Join(from, e.Name), Tree: root})
		}
	}
}

func (c *copied) blob(w *workspace, at string, mode object.Mode, b Blob) {
	b.Link = mode == object.ModeSymlink
	content, err := w.src.Open(w.t.Context(), b)
	w.ok(err)
	defer content.Release()
	c.Paths[at] = signature(mode, reads(w, content, content.Size()))
}

func reads(w *workspace, r io.ReaderAt, size int64) []byte {
	data := make([]byte, size)
	if n, err := r.ReadAt(data, 0); int64(n) < size {
		w.t.Errorf("read frozen contents: got %d of %d bytes: %v", n, size, err)
	}
	return data
}

func signature(mode object.Mode, data []byte) string {
	if mode == object.ModeSymlink {
		return "link " + string(data)
	}
	return fmt.Sprintf("%o %d %x", uint32(mode), len(data), crc32.ChecksumIEEE(data))
}

// freeze brings the copy up to date.
func (c *copied) freeze(w *workspace, o FreezeOptions) *Frozen {
	w.t.Helper()
	f, err := w.Freeze(w.t.Context(), c.Token, o)
	w.ok(err)
	if f.Whole {
		*c = *newCopied(w)
	}
	c.apply(w, f)
	return f
}

func (c *copied) apply(w *workspace, f *Frozen) {
	w.t.Helper()
	c.Token = f.Token
	last := ""
	for _, e := range f.Entries {
		if last != "" && strings.Join(strings.Split(last, "/"), "\x00") >= strings.Join(strings.Split(e.Path, "/"), "\x00") {
			w.t.Errorf("entry %s is returned after %s", e.Path, last)
		}
		last = e.Path
		maps.DeleteFunc(c.Paths, func(at, _ string) bool { return at == e.Path || strings.HasPrefix(at, e.Path+"/") })
		switch e.Kind {
		case FrozenGone, FrozenDir:
		case FrozenBlob:
			c.blob(w, e.Path, e.Mode, Blob{ID: e.ID, Path: cmp.Or(e.From, e.Path), Tree: e.Tree})
		case FrozenTree:
			c.tree(w, e.Path, cmp.Or(e.From, e.Path), e.ID, e.Tree)
		case FrozenContent:
			c.Paths[e.Path] = signature(e.Mode, reads(w, e.Content, e.Size))
		case FrozenLink:
			c.Paths[e.Path] = signature(e.Mode, []byte(e.Target))
		case FrozenModule:
			c.Paths[e.Path] = "module " + e.ID.String()
		case FrozenOther:
			c.Paths[e.Path] = "other"
		default:
			w.t.Errorf("entry %s has the unknown kind %d", e.Path, e.Kind)
		}
	}
}

// shown returns the paths of the tree in the form that copied has.
func (w *workspace) shown() map[string]string {
	modules := map[Node]object.ID{}
	w.ok(w.Base().Walk(w.t.Context(), func(e BaseEntry) error {
		if e.Mode == object.ModeGitlink {
			modules[e.Attr.Node] = e.ID
		}
		return nil
	}))
	paths := map[string]string{}
	var visit func(at string, dir Node)
	visit = func(at string, dir Node) {
		list := map[string]Node{}
		w.ok(w.ReadDir(w.t.Context(), dir, 0, func(e Entry) bool {
			list[path.Join(at, e.Name)] = e.Node
			return true
		}))
		if id, ok := modules[dir]; ok {
			paths[at] = "module " + id.String()
			if len(list) > 0 {
				paths[at] = "other"
			}
			return
		}
		for at, n := range list {
			a, err := w.Attr(w.t.Context(), n)
			w.ok(err)
			switch a.Mode & syscall.S_IFMT {
			case syscall.S_IFDIR:
				visit(at, n)
			case syscall.S_IFREG:
				data := make([]byte, a.Size)
				_, err := w.Read(w.t.Context(), n, data, 0)
				w.ok(err)
				mode := object.ModeFile
				if a.Mode&0o100 != 0 {
					mode = object.ModeExec
				}
				paths[at] = signature(mode, data)
			case syscall.S_IFLNK:
				target, err := w.Readlink(w.t.Context(), n)
				w.ok(err)
				paths[at] = signature(object.ModeSymlink, target)
			default:
				paths[at] = "other"
			}
		}
	}
	visit("", Root)
	return paths
}

// compare compares the copy with the tree.
func (c *copied) compare(w *workspace, what string) {
	w.t.Helper()
	want := w.shown()
	for at, is := range want {
		if c.Paths[at] != is {
			w.t.Errorf("%s: path %s is %q, but the copy has %q", what, at, is, c.Paths[at])
		}
	}
	for at, told := range c.Paths {
		if _, ok := want[at]; !ok {
			w.t.Errorf("%s: path %s does not exist, but the copy has %q", what, at, told)
		}
	}
}

func (f *frozenContent) check(w *workspace, what string) {
	w.t.Helper()
	for _, e := range f.frozen.Entries {
		if e.Kind == FrozenContent {
			if got := signature(e.Mode, reads(w, e.Content, e.Size)); got != f.want[e.Path] {
				w.t.Errorf("%s: frozen contents of %s: got %s, want %s", what, e.Path, got, f.want[e.Path])
			}
		}
	}
}

// copiers update their copies now and then, and hold the frozen trees for a while.
type copiers struct {
	Copies []*copied
	held   []frozenContent
}

func (c *copiers) step(m *model) {
	switch m.rng.IntN(100) {
	case 0:
		if len(c.Copies) < 2 {
			c.Copies = append(c.Copies, newCopied(m.workspace))
			c.Copies[len(c.Copies)-1].Token = []string{"", m.Monitor().StartToken(), "nonsense"}[m.rng.IntN(3)]
		}
	case 1, 2:
		if len(c.Copies) == 0 {
			return
		}
		one := c.Copies[m.rng.IntN(len(c.Copies))]
		f := one.freeze(m.workspace, FreezeOptions{})
		one.compare(m.workspace, m.what)
		c.held = append(c.held, frozenContent{f, maps.Clone(one.Paths)})
	case 3:
		if len(c.Copies) == 0 {
			return
		}
		// A dry run returns names without contents, and the next Freeze returns the same changes again.
		one := *c.Copies[m.rng.IntN(len(c.Copies))]
		f, err := m.Freeze(m.t.Context(), one.Token, FreezeOptions{DryRun: true})
		m.ok(err)
		for _, e := range f.Entries {
			if e.Content != nil {
				m.t.Errorf("%s: a dry run returned contents of %s", m.what, e.Path)
			}
		}
		f.Release()
	}
	if len(c.held) > 3 || len(c.held) > 0 && m.rng.IntN(20) == 0 {
		c.drop(m)
	}
}

// drop releases the frozen trees that are held, oldest first.
func (c *copiers) drop(m *model) {
	i := m.rng.IntN(len(c.held))
	c.held[i].check(m.workspace, m.what)
	c.held[i].frozen.Release()
	c.held = slices.Delete(c.held, i, i+1)
}

func (c *copiers) dropAll(m *model) {
	for len(c.held) > 0 {
		c.drop(m)
	}
}

// keep stores the copies for the next process, and takeCopiers reads them.
func (c *copiers) keep(m *model) {
	data, err := json.Marshal(c)
	m.ok(err)
	m.ok(os.WriteFile(filepath.Join(m.dir, "copies"), data, 0o600))
}

func takeCopiers(m *model) *copiers {
	c := &copiers{}
	data, err := os.ReadFile(filepath.Join(m.dir, "copies"))
	if errors.Is(err, os.ErrNotExist) {
		return c
	}
	m.ok(err)
	m.ok(json.NewDecoder(bytes.NewReader(data)).Decode(c))
	for _, one := range c.Copies {
		one.freeze(m.workspace, FreezeOptions{}).Release()
		one.compare(m.workspace, m.what)
	}
	return c
}
