package inode

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/mapped"
)

// Further roots exist after a reopening, in their order and with their nodes. After a power loss the synced ones exist.
func TestRoots(t *testing.T) {
	path := filepath.Join(t.TempDir(), "inodes")
	root, other, third := testID("root"), testID("other"), testID("third")
	open := func() *Table {
		t.Helper()
		table, err := Open(disk.OS, path, root, false)
		if err != nil {
			t.Fatal(err)
		}
		return table
	}
	table := open()
	if list := table.RootsOf(root); !slices.Equal(list, []Node{Root}) {
		t.Errorf("roots of a table with the base tree only: got %d", list)
	}
	add := func(id string) Node {
		t.Helper()
		n, err := table.AddRoot(testID(id))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	first := add("other")
	b, err := table.Add(first, treeOf("below", 5))
	if err != nil {
		t.Fatal(err)
	}
	second := add("other")
	if err := table.Sync(); err != nil {
		t.Fatal(err)
	}
	lost := add("third")
	if table.TreeOf(b.First) != first || table.Path(first) != "" || table.Path(b.First) != table.Name(table.At(b.First)) {
		t.Errorf("node %d: got path %q of root %d", b.First, table.Path(b.First), table.TreeOf(b.First))
	}
	if err := table.Close(); err != nil {
		t.Fatal(err)
	}

	table = open()
	if list := table.RootsOf(other); !slices.Equal(list, []Node{second, first}) {
		t.Errorf("roots: got %d, want %d and %d", list, second, first)
	}
	if list := table.RootsOf(third); !slices.Equal(list, []Node{lost}) {
		t.Errorf("roots: got %d, want %d", list, lost)
	}
	if n, ok := table.Search(b, table.Name(table.At(b.First+2))); !ok || table.TreeOf(n) != first {
		t.Errorf("a node below a root is lost: %d, %t", n, ok)
	}
	table.At(lost).crc++ // as if its page had not been written to disk
	if err := table.Close(); err != nil {
		t.Fatal(err)
	}
	if table, err := Open(disk.OS, path, root, false); !errors.Is(err, ErrTable) {
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
	if list := table.RootsOf(other); !slices.Equal(list, []Node{second, first}) {
		t.Errorf("roots after a power loss: got %d, want %d and %d", list, second, first)
	}
	if list := table.RootsOf(third); len(list) != 0 {
		t.Errorf("roots of a lost tree after a power loss: got %d, want none", list)
	}
	if n := add("third"); n != lost {
		t.Errorf("root that was added after a power loss: got %d, want %d", n, lost)
	}
	if err := table.Close(); err != nil {
		t.Fatal(err)
	}
}
