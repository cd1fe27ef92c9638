package state

import (
	"errors"
	"slices"
	"testing"
)

// A table applies an arbitrary batch completely or not at all, and a dump of the table creates the same table.
func FuzzApply(f *testing.F) {
	var b Batch
	b.PutInode(&Inode{Node: 5, Size: SizeOfBase, Mtime: 1}, nil)
	b.PutInode(&Inode{Node: 2<<32 + 9, Mode: 0o40755}, &Inode{})
	b.SetEntry(2<<32+9, "a", 5)
	b.Hide(1, "b")
	b.SetTarget(7, "there")
	b.SetXattr(7, "user.x", []byte("value"))
	f.Add(b.Bytes())
	b.ClearEntry(1, "b")
	b.RemoveXattr(7, "user.x")
	b.Drop(2<<32 + 9)
	b.DeadContent(4)
	b.ContentGone(4)
	b.SetCounter(CounterGeneration, 77)
	f.Add(b.Bytes())
	b.Request(7, 2<<32+9)
	b.Request(9, 0)
	b.entryAt(1, "c", 5, 3)
	b.entryAt(1, "d", 0, 1)
	f.Add(b.Bytes())
	b.ForgetRequests()
	b.SetCounter(CounterGeneration, noGeneration)
	f.Add(b.Bytes())
	b.Keep(Kept{ID: 3, Content: 4, Size: 5, Mode: 0o100644, At: 6, Unlinked: true, Path: "a/b"})
	b.Keep(Kept{ID: 4, Mode: 0o120777, At: 7, Copied: true, Path: "link", Target: "there"})
	f.Add(b.Bytes())
	b.Unkeep(2, 3)
	f.Add(b.Bytes())
	b.Seal(Segment{"01M80Q4Z9W7XA3V6MEZKGN8CE9", 2048})
	b.Seal(Segment{"01M80Q4Z9W7XA3V6MEZKGN8CE8", 1024})
	b.Seal(Segment{"01M80Q4Z9W7XA3V6MEZKGN8CE7", 1024})
	b.Unseal("01M80Q4Z9W7XA3V6MEZKGN8CE8")
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		table, again := NewSeeded(Seed{1}), NewSeeded(Seed{1})
		defer table.Close()
		defer again.Close()
		if table.Apply(data) != nil {
			if table.Totals() != (Totals{}) {
				t.Fatal("a refused batch changed the table")
			}
			return
		}
		n, err := table.NewNode()
		if errors.Is(err, ErrFull) && table.floor == noGeneration {
			return // the batch is invalid
		}
		if err != nil || table.find(n) != nil {
			t.Fatalf("new node %x is in use, %v", n, err)
		}
		first, second := Batch{}, Batch{}
		if _, done := table.Dump(Cursor{}, 1<<30, &first); !done || first.Err() != nil {
			t.Fatalf("dump failed: %v", first.Err())
		}
		if err := again.Apply(first.Bytes()); err != nil {
			t.Fatal(err)
		}
		again.Dump(Cursor{}, 1<<30, &second)
		a, b := table.Totals(), again.Totals()
		a.Bytes, b.Bytes = 0, 0
		table.eachRecord(func(n Node, _ *record) bool {
			if have, want := cookies(again, n), cookies(table, n); !slices.Equal(have, want) {
				t.Fatalf("directory %x: got cookies %q, want %q", n, have, want)
			}
			return true
		})
		if !slices.Equal(table.requests.ring, again.requests.ring) {
			t.Fatalf("requests: got %d before the dump, %d after it", table.Requests(), again.Requests())
		}
		if !slices.Equal(table.Segments, again.Segments) {
			t.Fatalf("segments: got %+v before the dump, %+v after it", table.Segments, again.Segments)
		}
		if a != b || first.Puts() != second.Puts() || len(first.Bytes()) != len(second.Bytes()) {
			t.Fatalf("totals: got %+v before the dump, %+v after it; dumps of %d and %d bytes", a, b, len(first.Bytes()),
				len(second.Bytes()))
		}
		table.eachRecord(func(n Node, _ *record) bool { again.drop(n); return true })
		if left := again.Totals(); left.Inodes+left.Entries+left.Hidden != 0 {
			t.Fatalf("totals after everything was dropped: got %+v", left)
		}
	})
}
