package worktree_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	. "github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/inode"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

var commitTime = time.Unix(1700000000, 0)

func open(t *testing.T, src *worktreetest.Source) *Tree {
	t.Helper()
	return openTable(t, src, filepath.Join(t.TempDir(), "inodes"))
}

func openTable(t *testing.T, src *worktreetest.Source, table string) *Tree {
	t.Helper()
	tree, err := Open(table, src, Options{Root: src.Root, Time: commitTime, UID: 12, GID: 34})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
		if n := src.Unreleased(); n != 0 {
			t.Errorf("got %d contents that were not released", n)
		}
	})
	return tree
}

// lookup resolves a path.
func lookup(t *testing.T, tree *Tree, path string) Node {
	t.Helper()
	n, err := tree.Resolve(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// stat resolves a path and returns its attributes.
func stat(t *testing.T, tree *Tree, path string) Attr {
	t.Helper()
	a, err := tree.Attr(t.Context(), lookup(t, tree, path))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// names lists a directory from an index on.
func names(t *testing.T, tree *Tree, dir Node, from uint64) []string {
	t.Helper()
	var list []string
	err := tree.ReadDir(t.Context(), dir, from, func(e Entry) bool {
		list = append(list, strings.Clone(e.Name))
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestAttributes(t *testing.T) {
	src := worktreetest.New(map[string]worktreetest.File{
		"plain":   {Data: "12345"},
		"run.sh":  {Mode: object.ModeExec, Data: "#!/bin/sh\n"},
		"link":    {Mode: object.ModeSymlink, Data: "dir/inner"},
		"dir/sub": {Data: ""},
		"module":  {Mode: object.ModeGitlink},
	})
	tree := open(t, src)
	for _, c := range []struct {
		path string
		mode uint32
		size int64
	}{
		{"", syscall.S_IFDIR | 0o755, 4096},
		{"plain", syscall.S_IFREG | 0o644, 5},
		{"run.sh", syscall.S_IFREG | 0o755, 10},
		{"link", syscall.S_IFLNK | 0o777, 9},
		{"dir", syscall.S_IFDIR | 0o755, 4096},
		{"dir/sub", syscall.S_IFREG | 0o644, 0},
		{"module", syscall.S_IFDIR | 0o755, 4096},
	} {
		a := stat(t, tree, c.path)
		at := commitTime.UnixNano()
		want := Attr{Node: a.Node, Mode: c.mode, Nlink: 1, Size: c.size, UID: 12, GID: 34, Atime: at, Mtime: at, Ctime: at}
		if c.mode&syscall.S_IFMT != syscall.S_IFDIR {
			want.Blocks = (c.size + 511) / 512
		}
		if a != want {
			t.Errorf("attributes of %q: got %+v, want %+v", c.path, a, want)
		}
		if path, err := tree.Path(a.Node); err != nil || path != c.path {
			t.Errorf("path of node %d: got %q, %v, want %q", a.Node, path, err, c.path)
		}
	}
	if got := names(t, tree, stat(t, tree, "module").Node, 0); len(got) != 0 {
		t.Errorf("listing of a submodule: got %q", got)
	}
	if n := stat(t, tree, "").Node; n != Root {
		t.Errorf("node of the root: got %d", n)
	}
	if got := tree.Base().Counts(); got != (inode.Counts{Nodes: 7, Dirs: 2}) {
		t.Errorf("counts of the tree: got %+v", got)
	}
}

func TestErrors(t *testing.T) {
	src := worktreetest.New(map[string]worktreetest.File{"file": {}, "dir/x": {},
		"link": {Mode: object.ModeSymlink, Data: "x"}})
	tree := open(t, src)
	ctx := t.Context()
	file, dir, link := stat(t, tree, "file").Node, stat(t, tree, "dir").Node, stat(t, tree, "link").Node
	_, lookupFile := tree.Lookup(ctx, file, "x")
	_, lookupNone := tree.Lookup(ctx, dir, "none")
	_, lookupNode := tree.Lookup(ctx, 999, "x")
	_, readlinkFile := tree.Readlink(ctx, file)
	_, contentDir := tree.Read(ctx, dir, nil, 0)
	_, contentLink := tree.Read(ctx, link, nil, 0)
	_, attrZero := tree.Attr(ctx, 0)
	_, resolve := tree.Resolve(ctx, "dir/none/deeper")
	_, pathNode := tree.Path(999)
	for _, c := range []struct {
		what      string
		got, want error
	}{
		{"look up in a file", lookupFile, ErrNotDir},
		{"look up a name that is not there", lookupNone, ErrNotExist},
		{"look up in no node", lookupNode, ErrNoNode},
		{"read link of a file", readlinkFile, ErrNotLink},
		{"content of a directory", contentDir, ErrIsDir},
		{"content of a link", contentLink, syscall.ELOOP},
		{"attributes of node 0", attrZero, ErrNoNode},
		{"resolve", resolve, ErrNotExist},
		{"path of no node", pathNode, ErrNoNode},
		{"list a file", tree.ReadDir(ctx, file, 0, nil), ErrNotDir},
	} {
		if !errors.Is(c.got, c.want) {
			t.Errorf("%s: got error %v, want %v", c.what, c.got, c.want)
		}
	}
}

// Git sorts a file "a" before "a.b" and a directory "a" after it. A lookup must find both.
func TestOrder(t *testing.T) {
	src := worktreetest.New(map[string]worktreetest.File{"a/x": {}, "a.b": {}, "a-b": {}, "a0": {},
		"\xff\xfe": {}, "Z": {}})
	tree := open(t, src)
	want := []string{"Z", "a", "a-b", "a.b", "a0", "\xff\xfe"}
	if got := names(t, tree, Root, 0); !slices.Equal(got, want) {
		t.Errorf("order of the listing: got %q, want %q", got, want)
	}
	for i, name := range want {
		if a, err := tree.Lookup(t.Context(), Root, name); err != nil || a.Node != Root+1+Node(i) {
			t.Errorf("lookup of %q: got node %d, %v", name, a.Node, err)
		}
		if got := names(t, tree, Root, uint64(i)); !slices.Equal(got, want[i:]) {
			t.Errorf("listing from position %d: got %q", i, got)
		}
	}
	if got := names(t, tree, Root, 1000); len(got) != 0 {
		t.Errorf("listing behind the end: got %q", got)
	}
}

func TestDepth(t *testing.T) {
	const depth = 3000
	path := strings.Repeat("d/", depth) + strings.Repeat("n", object.MaxNameLen)
	tree := open(t, worktreetest.New(map[string]worktreetest.File{path: {Data: "deep"}}))
	a := stat(t, tree, path)
	if got, _ := tree.Path(a.Node); got != path || a.Size != 4 {
		t.Errorf("deep path: got %d bytes, size %d", len(got), a.Size)
	}
}

func TestEmptyTree(t *testing.T) {
	src := worktreetest.New(nil)
	src.Root = object.ID{} // a repository without commits
	tree := open(t, src)
	if got := names(t, tree, Root, 0); len(got) != 0 || src.Calls("Tree") != 0 {
		t.Errorf("empty repository: got the listing %q after %d requested trees", got, src.Calls("Tree"))
	}
}

// Trees, sizes and contents are requested when they are needed, and once.
func TestLaziness(t *testing.T) {
	src := worktreetest.New(map[string]worktreetest.File{"dir/a": {Data: "a"}, "dir/b": {Data: "bb"}, "other/c": {}})
	tree := open(t, src)
	expect := func(what string, trees, sizes, opens int) {
		t.Helper()
		if a, b, c := src.Calls("Tree"), src.Calls("Size"), src.Calls("Open"); a != trees || b != sizes || c != opens {
			t.Errorf("%s: requested %d trees, %d sizes, %d contents, want %d, %d, %d", what, a, b, c, trees, sizes, opens)
		}
	}
	expect("open", 0, 0, 0)
	stat(t, tree, "dir")
	expect("stat directory", 1, 0, 0)
	dir := stat(t, tree, "dir").Node
	names(t, tree, dir, 0)
	names(t, tree, dir, 0)
	expect("list directory", 2, 0, 0)
	n, err := tree.Resolve(t.Context(), "dir/a")
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := tree.KnownAttr(n); ok {
		t.Error("the size is known before it was requested")
	}
	expect("resolve", 2, 0, 0)
	stat(t, tree, "dir/a")
	stat(t, tree, "dir/a")
	expect("stat file", 2, 1, 0)
	if a, ok := tree.KnownAttr(n); !ok || a.Size != 1 {
		t.Errorf("KnownAttr: got %+v, %v", a, ok)
	}
	src.KnowsSizes.Store(true)
	stat(t, tree, "dir/b")
	expect("stat file of known size", 2, 1, 0)
}

// A call that waits for a size does not block others, not even in the same directory.
func TestSlowSize(t *testing.T) {
	src := worktreetest.New(map[string]worktreetest.File{"slow": {Data: "s"}, "quick": {Data: "q"}})
	tree := open(t, src)
	release := make(chan struct{})
	src.Rule("slow", worktreetest.Rule{Block: release})
	interrupted, interrupt := context.WithCancel(t.Context())
	gaveUp, done := make(chan error, 1), make(chan error, 1)
	slow, err := tree.Lookup(t.Context(), Root, "slow")
	if err != nil || slow.Size >= 0 {
		t.Fatalf("lookup: got size %d, %v, want no size yet", slow.Size, err)
	}
	go func() { _, err := tree.Attr(interrupted, slow.Node); gaveUp <- err }()
	go func() { _, err := tree.Attr(t.Context(), slow.Node); done <- err }()
	await.Until(t, "two callers wait for slow", func() bool { return src.Waiting("slow") == 2 })
	if a := stat(t, tree, "quick"); a.Size != 1 {
		t.Errorf("attributes of quick: got %+v", a)
	}
	interrupt()
	if err := <-gaveUp; !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted call: got %v", err)
	}
	close(release)
	if err := <-done; err != nil {
		t.Errorf("call that was not interrupted: got %v", err)
	}
}

func TestFailuresHeal(t *testing.T) {
	src := worktreetest.New(map[string]worktreetest.File{"dir/file": {Data: "x"}})
	tree := open(t, src)
	broken := errors.New("remote is away")
	src.Rule("dir", worktreetest.Rule{Err: broken})
	if _, err := tree.Resolve(t.Context(), "dir/file"); !errors.Is(err, broken) {
		t.Errorf("resolve a path whose tree cannot be fetched: got %v", err)
	}
	src.Rule("dir", worktreetest.Rule{})
	src.Rule("dir/file", worktreetest.Rule{Err: broken})
	n, err := tree.Resolve(t.Context(), "dir/file")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tree.Attr(t.Context(), n); !errors.Is(err, broken) {
		t.Errorf("attributes of a file whose size cannot be fetched: got %v", err)
	}
	src.Rule("dir/file", worktreetest.Rule{})
	if a := stat(t, tree, "dir/file"); a.Size != 1 || a.Node != n {
		t.Errorf("attributes after the size can be fetched: got %+v", a)
	}
}

func TestHostileEntries(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", ".git", strings.Repeat("x", object.MaxNameLen+1)} {
		src := worktreetest.New(nil)
		src.SetTree("", []object.TreeEntry{{Name: name, Mode: object.ModeFile, ID: src.Root},
			{Name: "z", Mode: object.ModeFile, ID: src.Root}})
		var shown []string
		err := open(t, src).ReadDir(t.Context(), Root, 0, func(e Entry) bool {
			shown = append(shown, e.Name)
			return true
		})
		shown = slices.DeleteFunc(shown, func(s string) bool { return s == "." || s == ".." })
		if err != nil || !slices.Equal(shown, []string{"z"}) {
			t.Errorf("names of a directory with %.20q: got %.20q, %v, want only z", name, shown, err)
		}
	}
	nul := worktreetest.New(nil)
	nul.SetTree("", []object.TreeEntry{{Name: "a\x00b", Mode: object.ModeFile, ID: nul.Root}})
	if err := open(t, nul).ReadDir(t.Context(), Root, 0, nil); err == nil {
		t.Error("a name with a zero byte was accepted")
	}
	src := worktreetest.New(nil)
	src.SetTree("", []object.TreeEntry{{Name: "a", Mode: object.ModeFile, ID: src.Root},
		{Name: "a", Mode: object.ModeDir, ID: src.Root}})
	if err := open(t, src).ReadDir(t.Context(), Root, 0, nil); err == nil {
		t.Error("a tree with a duplicate name was accepted")
	}
	src.SetTree("", []object.TreeEntry{{Name: "a", Mode: 0o777, ID: src.Root}})
	if err := open(t, src).ReadDir(t.Context(), Root, 0, nil); err == nil {
		t.Error("an unknown mode was accepted")
	}
}

// If the source returned a wrong size, the first read fails, and the right size is used from then on.
func TestResized(t *testing.T) {
	src := worktreetest.New(map[string]worktreetest.File{"f": {Data: "four", Size: 9}})
	tree := open(t, src)
	a := stat(t, tree, "f")
	if a.Size != 9 {
		t.Fatalf("size before the first read: got %d", a.Size)
	}
	p := make([]byte, 10)
	if _, err := tree.Read(t.Context(), a.Node, p, 0); !errors.Is(err, ErrResized) {
		t.Errorf("first read: got %v", err)
	}
	if a := stat(t, tree, "f"); a.Size != 4 {
		t.Errorf("size after the first read: got %d", a.Size)
	}
	if n, err := tree.Read(t.Context(), a.Node, p, 0); n != 4 || err != nil {
		t.Errorf("second read: got %d bytes, %v", n, err)
	}
}

func TestReadlink(t *testing.T) {
	src := worktreetest.New(map[string]worktreetest.File{
		"good": {Mode: object.ModeSymlink, Data: "../\xff/x"},
		"long": {Mode: object.ModeSymlink, Data: strings.Repeat("x", 5000)},
	})
	tree := open(t, src)
	if target, err := tree.Readlink(t.Context(), stat(t, tree, "good").Node); err != nil || string(target) != "../\xff/x" {
		t.Errorf("target of the link: got %q, %v", target, err)
	}
	if _, err := tree.Readlink(t.Context(), stat(t, tree, "long").Node); !errors.Is(err, syscall.ENAMETOOLONG) {
		t.Errorf("target that is too long: got %v", err)
	}
}

// Concurrent lookups in a directory return the same nodes.
func TestRace(t *testing.T) {
	files := make(map[string]worktreetest.File)
	for i := range 200 {
		files[fmt.Sprintf("d%d/f%d", i%10, i)] = worktreetest.File{Data: fmt.Sprint(i)}
	}
	tree := open(t, worktreetest.New(files))
	var mu sync.Mutex
	seen := make(map[string]Node)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for path := range files {
				n, err := tree.Resolve(t.Context(), path)
				if err == nil {
					_, err = tree.Attr(t.Context(), n)
				}
				mu.Lock()
				if before, ok := seen[path]; err != nil || ok && before != n {
					t.Errorf("%s: got node %d, before %d, %v", path, n, before, err)
				}
				seen[path] = n
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if got := tree.Base().Counts(); got != (inode.Counts{Nodes: 211, Dirs: 11}) {
		t.Errorf("counts of the tree: got %+v", got)
	}
}

func TestClose(t *testing.T) {
	src := worktreetest.New(map[string]worktreetest.File{"slow": {}})
	tree := open(t, src)
	release := make(chan struct{})
	src.Rule("slow", worktreetest.Rule{Block: release})
	done := make(chan error, 1)
	slow := lookup(t, tree, "slow")
	go func() { _, err := tree.Attr(t.Context(), slow); done <- err }()
	await.Until(t, "one caller waits for slow", func() bool { return src.Waiting("slow") == 1 })
	closed := make(chan error, 1)
	go func() { closed <- tree.Close() }()
	await.Until(t, "the tree is closed", func() bool { _, err := tree.Path(Root); return errors.Is(err, ErrClosed) })
	select {
	case <-closed:
		t.Error("Close returned while a call was running")
	default:
	}
	close(release)
	if err := errors.Join(<-done, <-closed); err != nil {
		t.Error(err)
	}
}
