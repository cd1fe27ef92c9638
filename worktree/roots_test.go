package worktree

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/mapped"
)

// Further roots are found again, in their order, with what is below them; after power loss those that were synced.
func TestRoots(t *testing.T) {
	path := filepath.Join(t.TempDir(), "inodes")
	root, other, third := testID("root"), testID("other"), testID("third")
	open := func() *table {
		t.Helper()
		table, err := openTable(disk.OS, path, root, false)
		if err != nil {
			t.Fatal(err)
		}
		return table
	}
	table := open()
	if list := table.rootsOf(root); !slices.Equal(list, []Node{Root}) {
		t.Errorf("roots of the base tree: %d", list)
	}
	add := func(id string) Node {
		t.Helper()
		n, err := table.addRoot(testID(id))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	first := add("other")
	b, err := table.add(first, treeOf("below", 5))
	if err != nil {
		t.Fatal(err)
	}
	second := add("other")
	if err := table.sync(); err != nil {
		t.Fatal(err)
	}
	lost := add("third")
	if table.treeOf(b.first) != first || table.path(first) != "" || table.path(b.first) != table.name(table.rec(b.first)) {
		t.Errorf("node %d is %q of root %d", b.first, table.path(b.first), table.treeOf(b.first))
	}
	if err := table.close(); err != nil {
		t.Fatal(err)
	}

	table = open()
	if list := table.rootsOf(other); !slices.Equal(list, []Node{second, first}) {
		t.Errorf("roots %d, want %d and %d", list, second, first)
	}
	if list := table.rootsOf(third); !slices.Equal(list, []Node{lost}) {
		t.Errorf("roots %d, want %d", list, lost)
	}
	if n, ok := table.search(b, table.name(table.rec(b.first+2))); !ok || table.treeOf(n) != first {
		t.Errorf("a node below a root is lost: %d, %t", n, ok)
	}
	table.rec(lost).crc++ // its page did not reach the disk
	if err := table.close(); err != nil {
		t.Fatal(err)
	}
	if table, err := openTable(disk.OS, path, root, false); !errors.Is(err, ErrTable) {
		t.Errorf("a damaged root was taken without a power loss: %v, %v", table, err)
	}

	records, err := mapped.Open(disk.OS, path, chunkBits)
	if err == nil {
		err = records.Load(true)
	}
	if err != nil {
		t.Fatal(err)
	}
	copy(records.At(16, 16), "another boot....") // header.boot
	if err := records.Close(); err != nil {
		t.Fatal(err)
	}
	table = open()
	if list := table.rootsOf(other); !slices.Equal(list, []Node{second, first}) {
		t.Errorf("after power loss: roots %d, want %d and %d", list, second, first)
	}
	if list := table.rootsOf(third); len(list) != 0 {
		t.Errorf("after power loss: roots %d of a tree that was lost", list)
	}
	if n := add("third"); n != lost {
		t.Errorf("a root behind a power loss is %d, want %d", n, lost)
	}
	if err := table.close(); err != nil {
		t.Fatal(err)
	}
}
