package inode

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/disk"
)

func testID(s string) object.ID {
	id, err := object.Hash(object.SHA1, object.Blob, []byte(s))
	if err != nil {
		panic(err)
	}
	return id
}

// sampleTable creates a table with two directories and returns it open.
func sampleTable(t testing.TB, path string) *Table {
	t.Helper()
	table, err := Open(disk.OS, path, testID("root"), false)
	if err != nil {
		t.Fatal(err)
	}
	b, err := table.Add(Root, []object.TreeEntry{
		{Name: "dir", Mode: object.ModeDir, ID: testID("dir")},
		{Name: "file", Mode: object.ModeFile, ID: testID("file")},
		{Name: "module", Mode: object.ModeGitlink, ID: testID("module")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.Add(b.First, []object.TreeEntry{
		{Name: "link", Mode: object.ModeSymlink, ID: testID("link")}, {Name: "run", Mode: object.ModeExec, ID: testID("run")},
	}); err != nil {
		t.Fatal(err)
	}
	table.At(3).SetSize(77)
	return table
}

// ForgetSizes removes the sizes of files, and nothing else.
func TestForgetSizes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "inodes")
	table := sampleTable(t, path)
	block, _ := table.At(Root).Block()
	for range 2 {
		if err := table.ForgetSizes(); err != nil {
			t.Fatal(err)
		}
	}
	if err := table.Close(); err != nil {
		t.Fatal(err)
	}
	table, err := Open(disk.OS, path, testID("root"), false)
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	if size, ok := table.At(3).Size(); ok {
		t.Errorf("size after ForgetSizes: got %d", size)
	}
	if got, ok := table.At(Root).Block(); !ok || got != block || table.Counts().Nodes != 6 {
		t.Errorf("directories after ForgetSizes: got %v, %v", got, table.Counts())
	}
}

// A table in which any byte of a published record or name has changed is refused. Only sizes have no checksum, and the
// state of a directory is checked by the records that it points to.
func TestDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "inodes")
	table := sampleTable(t, path)
	used := int(table.next.Load()) * recordSize
	namesUsed := int(table.nextName)
	if err := table.Close(); err != nil {
		t.Fatal(err)
	}
	state := int(unsafe.Offsetof(Record{}.state))
	for at := range used {
		in := at % recordSize
		if at < recordSize && in >= 16 || in >= state && in < state+8 || in >= recordSize-6 {
			continue // unused bytes of the header and of records
		}
		if err := reopenDamaged(t, path, at); !errors.Is(err, ErrTable) {
			t.Errorf("byte %d of records: %v, want ErrTable", at, err)
		}
	}
	for at := range namesUsed {
		if err := reopenDamaged(t, path+".names", at); !errors.Is(err, ErrTable) {
			t.Errorf("byte %d of names: %v, want ErrTable", at, err)
		}
	}
	if table, err := Open(disk.OS, path, testID("root"), false); err != nil {
		t.Errorf("open an undamaged table: %v", err)
	} else {
		table.Close()
	}
}

// reopenDamaged opens the table with one byte flipped, and then restores the byte.
func reopenDamaged(t *testing.T, path string, at int) error {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	flip := func() {
		if _, err := f.ReadAt(b[:], int64(at)); err != nil {
			t.Fatal(err)
		}
		b[0] ^= 0x15
		if _, err := f.WriteAt(b[:], int64(at)); err != nil {
			t.Fatal(err)
		}
	}
	flip()
	defer flip()
	records := path
	if filepath.Ext(path) == ".names" {
		records = path[:len(path)-len(".names")]
	}
	table, err := Open(disk.OS, records, testID("root"), false)
	if err == nil {
		table.Close()
	}
	return err
}

// A block to which no directory refers is ignored, and its place is reused.
func TestTornBlock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "inodes")
	torn := sampleTable(t, path)
	dir, _ := torn.Search(Block{2, 3}, "dir")
	lost, _ := torn.At(dir).Block()
	torn.At(dir).state.Store(0) // as if killed before the last store
	if err := torn.Close(); err != nil {
		t.Fatal(err)
	}
	table, err := Open(disk.OS, path, testID("root"), false)
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	if _, ok := table.Record(lost.First); ok {
		t.Error("a node of the torn block exists")
	}
	b, err := table.Add(dir, []object.TreeEntry{{Name: "new", Mode: object.ModeFile, ID: testID("new")}})
	if err != nil || b.First != lost.First {
		t.Errorf("new block: got %+v, %v, want it at %d", b, err, lost.First)
	}
	if got := table.Path(b.First); got != "dir/new" {
		t.Errorf("path of a node of the new block: got %q", got)
	}
}

// If a process is killed while it creates the table, the next process starts with an empty table.
func TestTornStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "inodes")
	if err := os.WriteFile(path, make([]byte, 100), 0o600); err != nil {
		t.Fatal(err)
	}
	table, err := Open(disk.OS, path, testID("root"), false)
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	if table.nodes.Load() != 1 {
		t.Errorf("nodes of the table: got %d", table.nodes.Load())
	}
}

// FuzzTable opens arbitrary bytes as a table. Either they are refused, or every node has a path that resolves to the
// node. The test corrects the checksums first, because otherwise nearly all inputs would be refused.
func FuzzTable(f *testing.F) {
	path := filepath.Join(f.TempDir(), "inodes")
	table := sampleTable(f, path)
	used, namesUsed := int64(table.next.Load())*recordSize, int64(table.nextName)
	if err := table.Close(); err != nil {
		f.Fatal(err)
	}
	records, names := head(f, path, used), head(f, path+".names", namesUsed)
	f.Add(records, names)
	f.Add(records[:2*recordSize], []byte{})
	for _, at := range []int{recordSize + 32, recordSize + 36, 2*recordSize + 32, 2*recordSize + 36, 3*recordSize + 40,
		3*recordSize + 48} {
		changed := bytes.Clone(records)
		changed[at] ^= 3
		f.Add(changed, names)
	}
	f.Add([]byte("AFSnodes"), []byte("x"))
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, records, names []byte) {
		path := filepath.Join(t.TempDir(), "inodes")
		mend(records, names)
		if err := errors.Join(os.WriteFile(path, records, 0o600), os.WriteFile(path+".names", names, 0o600)); err != nil {
			t.Fatal(err)
		}
		table, err := Open(disk.OS, path, testID("root"), false)
		if err != nil {
			if !errors.Is(err, ErrTable) {
				t.Fatalf("open: %v, want ErrTable", err)
			}
			return
		}
		defer table.Close()
		for n := Root; n < Node(table.next.Load()); n++ {
			r, ok := table.Record(n)
			if !ok {
				t.Fatalf("node %d has no record", n)
			}
			path := table.Path(n)
			if at, ok := resolve(table, table.TreeOf(n), path); !ok || at != n {
				t.Fatalf("%q of node %d resolves to %d, %t", path, n, at, ok)
			}
			if size, ok := r.Size(); ok && !r.Kind().IsDir() && size < 0 {
				t.Fatalf("%q has size %d", path, size)
			}
		}
	})
}

// resolve returns the node at a path below the root of a tree, and false if the table has none.
func resolve(table *Table, root Node, path string) (n Node, ok bool) {
	n, ok = root, true
	for rest := path; ok && rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		b, _ := table.At(n).Block()
		n, ok = table.Search(b, name)
	}
	return n, ok
}

// mend corrects the checksum of every record whose name lies in names.
func mend(records, names []byte) {
	for at := recordSize; at+recordSize <= len(records); at += recordSize {
		r := (*Record)(unsafe.Pointer(&records[at]))
		if off, n := r.name>>8, r.name&maxName; off+n <= uint64(len(names)) {
			r.crc = r.sum(string(names[off : off+n]))
		}
	}
}

func head(t testing.TB, path string, n int64) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, n)
	if _, err := io.ReadFull(f, b); err != nil {
		t.Fatal(err)
	}
	return b
}

func BenchmarkLookup(b *testing.B) {
	table, err := Open(disk.OS, filepath.Join(b.TempDir(), "inodes"), testID("root"), false)
	if err != nil {
		b.Fatal(err)
	}
	defer table.Close()
	entries := make([]object.TreeEntry, 20_000)
	for i := range entries {
		entries[i] = object.TreeEntry{Name: fmt.Sprintf("file%05d", i), Mode: object.ModeFile, ID: testID("x")}
	}
	dir, err := table.Add(Root, entries)
	if err != nil {
		b.Fatal(err)
	}
	i := 0
	for b.Loop() {
		i = (i + 7919) % len(entries)
		if _, ok := table.Search(dir, entries[i].Name); !ok {
			b.Fatal("a node was not found")
		}
	}
}
