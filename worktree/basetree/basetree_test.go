package basetree_test

import (
	"errors"
	"io"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/worktree/basetree"
	"github.com/artifactfs/artifactfs/worktree/inode"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

func open(t *testing.T, files map[string]worktreetest.File) (*basetree.Tree, *worktreetest.Source) {
	t.Helper()
	src := worktreetest.New(files)
	table, err := inode.Open(disk.OS, filepath.Join(t.TempDir(), "inodes"), src.Root, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if n := src.Unreleased(); n != 0 {
			t.Errorf("contents that were not released: %d", n)
		}
		table.Close()
	})
	o := basetree.Options{Root: src.Root, Time: time.Unix(1_700_000_000, 5), UID: 1, GID: 2}
	return basetree.New(src, table, o), src
}

// names returns the names of the entries of a directory, and their nodes.
func names(t *testing.T, tree *basetree.Tree, dir basetree.Node) (list []string, nodes map[string]basetree.Node) {
	t.Helper()
	b, err := tree.Block(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	nodes = map[string]basetree.Node{}
	for i := range b.Count {
		n := b.First + basetree.Node(i)
		name := tree.Table.Name(tree.Table.At(n))
		list, nodes[name] = append(list, name), n
	}
	return list, nodes
}

// A directory has its entries in the order of their bytes, without names that no directory can show. It is read once,
// and a directory that could not be read is read again.
func TestBlock(t *testing.T) {
	tree, src := open(t, map[string]worktreetest.File{"foo/x": {}, "foo.c": {}, "bad/x": {},
		"module": {Mode: object.ModeGitlink}})
	list, nodes := names(t, tree, inode.Root)
	if want := []string{"bad", "foo", "foo.c", "module"}; !slices.Equal(list, want) {
		t.Errorf("entries: got %q, want %q", list, want)
	}
	names(t, tree, inode.Root)
	if n := src.Calls("Tree"); n != 1 {
		t.Errorf("reads of a tree: %d, want 1", n)
	}
	entry := func(name string) object.TreeEntry {
		return object.TreeEntry{Mode: object.ModeFile, Name: name, ID: src.ID("foo.c")}
	}
	var entries []object.TreeEntry
	for _, name := range []string{"..", ".", "", "a/b", ".git", "ok"} {
		entries = append(entries, entry(name))
	}
	src.SetTree("bad", entries)
	broken := errors.New("no connection")
	src.Rule("bad", worktreetest.Rule{Err: broken})
	if _, err := tree.Block(t.Context(), nodes["bad"]); !errors.Is(err, broken) {
		t.Errorf("a directory whose tree cannot be fetched: got %v, want %v", err, broken)
	}
	src.Rule("bad", worktreetest.Rule{})
	if list, _ := names(t, tree, nodes["bad"]); !slices.Equal(list, []string{"ok"}) {
		t.Errorf("entries with names that cannot be shown: got %q, want only ok", list)
	}
	if list, _ := names(t, tree, nodes["module"]); len(list) != 0 {
		t.Errorf("entries of a submodule: got %q, want none", list)
	}
	if _, err := tree.Block(t.Context(), nodes["foo.c"]); !errors.Is(err, basetree.ErrNotDir) {
		t.Errorf("entries of a file: got %v, want %v", err, basetree.ErrNotDir)
	}
	if _, err := tree.Block(t.Context(), 1<<40); !errors.Is(err, basetree.ErrNoNode) {
		t.Errorf("entries of an unknown node: got %v, want %v", err, basetree.ErrNoNode)
	}
}

// The owner always has the permissions of a checkout. Those of others depend on the umask.
func TestModes(t *testing.T) {
	umask := func(m uint32) *uint32 { return &m }
	for _, c := range []struct {
		m    basetree.Modes
		kind inode.Kind
		want uint32
	}{
		{basetree.Modes{}, inode.KindFile, 0o100644},
		{basetree.Modes{}, inode.KindExec, 0o100755},
		{basetree.Modes{}, inode.KindDir, 0o40755},
		{basetree.Modes{}, inode.KindSymlink, 0o120777},
		{basetree.Modes{Umask: umask(0o77)}, inode.KindExec, 0o100700},
		{basetree.Modes{Umask: umask(0o777)}, inode.KindFile, 0o100600},
		{basetree.Modes{Umask: umask(0)}, inode.KindFile, 0o100666},
		{basetree.Modes{GroupWrite: true}, inode.KindDir, 0o40775},
		{basetree.Modes{GroupWrite: true}, inode.KindFile, 0o100664},
		{basetree.Modes{LinksAsFiles: true}, inode.KindSymlink, 0o100644},
	} {
		if got := c.m.Of(c.kind); got != c.want {
			t.Errorf("mode of kind %v with %+v: got %o, want %o", c.kind, c.m, got, c.want)
		}
	}
}

// The size of a file is that of its contents as soon as it is known. A wrong size is corrected when the contents
// arrive, and the reader that was told the wrong one gets an error.
func TestSizes(t *testing.T) {
	tree, src := open(t, map[string]worktreetest.File{"a": {Data: "0123456789"}, "empty": {},
		"wrong": {Data: "12345", Size: 3}})
	_, nodes := names(t, tree, inode.Root)
	attr := func(n basetree.Node) basetree.Attr {
		r, _ := tree.Table.Record(n)
		return tree.Describe(tree.Inode(n, r))
	}
	if a := attr(nodes["a"]); a.Size >= 0 || tree.Here(nodes["a"]) || tree.SizeHere(nodes["a"]) != -1 {
		t.Errorf("size before the contents are known: got %d, want none", a.Size)
	}
	if err := tree.LoadSize(t.Context(), nodes["a"]); err != nil {
		t.Fatal(err)
	}
	a := attr(nodes["a"])
	if a.Size != 10 || a.Blocks != 1 || a.Nlink != 1 || a.UID != 1 || a.GID != 2 || a.Mtime != 1_700_000_000_000_000_005 {
		t.Errorf("attributes: got %+v", a)
	}
	if a := attr(nodes["empty"]); tree.LoadSize(t.Context(), nodes["empty"]) != nil || attr(nodes["empty"]).Blocks != 0 {
		t.Errorf("empty file: got %+v, want no blocks", a)
	}
	buf := make([]byte, 8)
	for off, want := range map[int64]string{0: "01234567", 7: "789", 10: "", 99: ""} {
		n, err := tree.Read(t.Context(), nodes["a"], buf, off)
		if err != nil || string(buf[:n]) != want {
			t.Errorf("read at %d: got %q, %v, want %q", off, buf[:n], err, want)
		}
	}
	if err := tree.LoadSize(t.Context(), nodes["wrong"]); err != nil || attr(nodes["wrong"]).Size != 3 {
		t.Fatalf("announced size: got %d, %v", attr(nodes["wrong"]).Size, err)
	}
	if _, err := tree.Read(t.Context(), nodes["wrong"], buf, 0); !errors.Is(err, basetree.ErrResized) {
		t.Errorf("read of a file with another size: got %v, want %v", err, basetree.ErrResized)
	}
	n, err := tree.Read(t.Context(), nodes["wrong"], buf, 0)
	if err != nil || string(buf[:n]) != "12345" || attr(nodes["wrong"]).Size != 5 {
		t.Errorf("second read: got %q, %v, size %d, want all 5 bytes", buf[:n], err, attr(nodes["wrong"]).Size)
	}
	const unknown = 1 << 40
	_, err = tree.Read(t.Context(), unknown, buf, 0)
	if !errors.Is(err, basetree.ErrNoNode) || tree.KnownSize(unknown) != -1 || tree.Here(unknown) {
		t.Errorf("read of an unknown node: got %v, want %v", err, basetree.ErrNoNode)
	}
	src.Rule("a", worktreetest.Rule{Err: io.ErrClosedPipe})
	if _, err := tree.Read(t.Context(), nodes["a"], buf, 0); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("contents that cannot be fetched: got %v, want %v", err, io.ErrClosedPipe)
	}
}
