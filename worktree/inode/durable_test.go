package inode

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// TreeOf returns the entries of a directory; those named d are directories.
func treeOf(seed string, n int) []object.TreeEntry {
	var entries []object.TreeEntry
	for i := range n {
		name := fmt.Sprintf("d%s%d", strings.Repeat("n", i%40), i)
		entries = append(entries, object.TreeEntry{Name: name, Mode: object.ModeDir, ID: testID(seed + name)})
	}
	slices.SortFunc(entries, func(a, b object.TreeEntry) int { return strings.Compare(a.Name, b.Name) })
	return entries
}

// grow adds the children of some directories to a table.
func grow(t *testing.T, table *Table, rng *rand.Rand, dirs int) {
	t.Helper()
	for range dirs {
		dir := Root
		for b, ok := table.At(dir).Block(); ok && b.Count > 0; b, ok = table.At(dir).Block() {
			dir = b.First + Node(rng.IntN(b.Count))
		}
		if _, err := table.Add(dir, treeOf(fmt.Sprint(dir), 1+rng.IntN(60))); err != nil {
			t.Fatal(err)
		}
	}
}

// A power loss may lose any page that was not synced. All synced nodes exist unchanged, other nodes may exist, and the
// table can be used.
func TestPowerLoss(t *testing.T) {
	lost := 0
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 1))
		path := filepath.Join(t.TempDir(), "inodes")
		table, err := Open(disk.OS, path, testID("root"), false)
		if err != nil {
			t.Fatal(err)
		}
		grow(t, table, rng, 20)
		if err := table.Sync(); err != nil {
			t.Fatal(err)
		}
		synced := Node(table.next.Load())
		before := snapshot(t, path)
		grow(t, table, rng, 20)
		last := Node(table.next.Load())
		after := snapshot(t, path)
		want := make(map[Node]string)
		for n := Root; n < last; n++ {
			want[n] = table.Path(n)
		}
		if err := table.Close(); err != nil {
			t.Fatal(err)
		}
		losePages(t, path, rng, before, after)
		for round := range 2 { // the second round is like a start after a kill
			table, err = Open(disk.OS, path, testID("root"), false)
			if err != nil {
				t.Fatalf("seed %d, round %d: %v", seed, round, err)
			}
			for n := Root; n < last; n++ {
				if _, ok := table.Record(n); !ok && n < synced {
					t.Errorf("seed %d: synced node %d is lost", seed, n)
				} else if !ok {
					lost++
				} else if got := table.Path(n); got != want[n] {
					t.Errorf("seed %d: path of node %d: got %q, want %q", seed, n, got, want[n])
				}
			}
			grow(t, table, rng, 5)
			last = Node(table.next.Load())
			for n := Root; n < last; n++ {
				if _, ok := table.Record(n); ok {
					want[n] = table.Path(n)
				}
			}
			if err := table.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if lost == 0 {
		t.Error("no run lost a node: the power loss was not simulated")
	}
}

// An invalid record or name that was synced is damage, also after a power loss.
func TestPowerLossIsNoExcuse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "inodes")
	table := sampleTable(t, path)
	if err := table.Sync(); err != nil {
		t.Fatal(err)
	}
	table.header().boot[0]++
	if err := table.Close(); err != nil {
		t.Fatal(err)
	}
	if err := reopenDamaged(t, path, 3*recordSize+4); !errors.Is(err, ErrTable) {
		t.Errorf("open with a damaged synced record: got %v", err)
	}
	if err := reopenDamaged(t, path+".names", 2); !errors.Is(err, ErrTable) {
		t.Errorf("open with a damaged synced name: got %v", err)
	}
	table, err := Open(disk.OS, path, testID("root"), false)
	if err != nil {
		t.Fatal(err)
	}
	table.Close()
}

// snapshot returns the bytes of both files.
func snapshot(t *testing.T, path string) (files [2][]byte) {
	t.Helper()
	for i, p := range []string{path, path + ".names"} {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		files[i] = b
	}
	return files
}

// losePages writes files in which each page is from before or from after the changes, and changes the boot id as a
// reboot does.
func losePages(t *testing.T, path string, rng *rand.Rand, before, after [2][]byte) {
	t.Helper()
	const page = 4096
	for i, p := range []string{path, path + ".names"} {
		b := after[i]
		for at := 0; at < len(b); at += page {
			if rng.IntN(3) == 0 {
				clear(b[at : at+page])
				if at < len(before[i]) {
					copy(b[at:at+page], before[i][at:])
				}
			}
		}
		if i == 0 {
			b[16]++ // a byte of the boot id
		}
		if err := os.WriteFile(p, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A sync without new nodes writes nothing, and a sync while the table grows covers the nodes that were returned before
// it.
func TestSyncKnowsItsPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "inodes")
	table := sampleTable(t, path)
	defer table.Close()
	if table.header().synced != 0 {
		t.Errorf("synced records before the first sync: got %d, want 0", table.header().synced)
	}
	for range 2 {
		if err := table.Sync(); err != nil {
			t.Fatal(err)
		}
		if got := table.header().synced; got != table.next.Load() {
			t.Errorf("synced records: got %d, want %d", got, table.next.Load())
		}
	}
}
