package state

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
)

// The hash must not change, because the processes before and after a takeover use the same values.
func TestHashIsStable(t *testing.T) {
	seed := Seed{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	for name, want := range map[string]uint32{
		"": 0x050fc4dc, "a": 0x786a6237, "12345678": 0xcd0da9ce, "a name that is longer than one word": 0x21a5849,
	} {
		if got := seed.hash(name); got != want {
			t.Errorf("hash of %q: got %#x, want %#x", name, got, want)
		}
	}
	other := seed
	other[15]++
	if seed.hash("a") == other.hash("a") {
		t.Error("the hash does not depend on the seed")
	}
}

// A dump contains the latest requests in order, and the oldest are dropped.
func TestRequests(t *testing.T) {
	table, copied := newTable(t), newTable(t)
	var b Batch
	for i := range uint64(3 * maxRequests / 2) {
		b.Request(2*i+2, Node(i%3))
	}
	if err := errors.Join(b.Err(), table.Apply(b.Bytes())); err != nil {
		t.Fatal(err)
	}
	b.Reset()
	table.Dump(Cursor{}, 1, &b)
	b.Request(1<<62, 5)
	if err := copied.Apply(b.Bytes()); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(3 * maxRequests / 2) {
		for at, table := range []*Table{table, copied} {
			made, ok := table.Request(2*i + 2)
			if want := i >= uint64(maxRequests/2+at); ok != want || ok && made != Node(i%3) {
				t.Fatalf("table %d: request %d: got node %d, %v", at, i, made, ok)
			}
		}
	}
	if made, ok := copied.Request(1 << 62); !ok || made != 5 || !copied.Requested(5) || copied.Requested(6) {
		t.Errorf("the last request: got node %d, %v", made, ok)
	}
	b.Reset()
	b.ForgetRequests()
	if err := copied.Apply(b.Bytes()); err != nil || copied.Requests() != 0 {
		t.Errorf("requests: got %d, %v", copied.Requests(), err)
	}
}

// Lookup counts in memory that outlives the table apply to the same nodes of the next table, and to no others.
func TestLookupsOutliveTheTable(t *testing.T) {
	chunks := map[int64][]byte{}
	memory := func(off int64) ([]byte, error) {
		if chunks[off] == nil {
			chunks[off] = make([]byte, CountChunk)
		}
		return chunks[off], nil
	}
	var log Batch
	table := newTable(t)
	if err := table.Count(memory); err != nil {
		t.Fatal(err)
	}
	var nodes []Node
	for i := range 3 * slotsInChunk / 2 {
		n, err := table.NewNode()
		if err != nil {
			t.Fatal(err)
		}
		var b Batch
		b.PutInode(&Inode{Node: n}, nil)
		log.PutInode(&Inode{Node: n}, nil)
		if err := table.Apply(b.Bytes()); err != nil {
			t.Fatal(err)
		}
		for range i % 4 {
			table.Remember(n)
		}
		nodes = append(nodes, n)
	}
	again := newTable(t)
	if err := again.Apply(log.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := again.Count(memory); err != nil {
		t.Fatal(err)
	}
	for i, n := range nodes {
		if got := again.Lookups(n); got != uint64(i%4) {
			t.Fatalf("lookup count of node %x: got %d, want %d", n, got, i%4)
		}
	}
	var b Batch
	b.Drop(nodes[3])
	if err := again.Apply(b.Bytes()); err != nil {
		t.Fatal(err)
	}
	n, err := again.NewNode()
	if err != nil || slot(n) != slot(nodes[3]) {
		t.Fatalf("new node: got %x, %v", n, err)
	}
	b.Reset()
	b.PutInode(&Inode{Node: n}, nil)
	if err := again.Apply(b.Bytes()); err != nil || again.Lookups(n) != 0 || again.Forget(n, 1) != 0 {
		t.Errorf("lookup count of a new node in an old slot: got %d, %v", again.Lookups(n), err)
	}
	if again.Remember(n); again.Lookups(n) != 1 || again.Lookups(nodes[3]) != 0 {
		t.Errorf("lookup counts: got %d and %d", again.Lookups(n), again.Lookups(nodes[3]))
	}
}

// A node whose lookups cannot be counted is not allocated until they can be.
func TestNoMemoryForLookups(t *testing.T) {
	table, full := newTable(t), error(syscall.ENOSPC)
	chunk := make([]byte, CountChunk)
	if err := table.Count(func(int64) ([]byte, error) { return chunk, full }); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if n, err := table.NewNode(); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("node %x, %v", n, err)
		}
	}
	full = nil
	n, err := table.NewNode()
	if err != nil || slot(n) != firstRecord {
		t.Errorf("allocate a node: got %x, %v", n, err)
	}
}

func BenchmarkHash(b *testing.B) {
	var s Seed
	for _, name := range []string{"main.go", "a_name_of_24_characters.x"} {
		b.Run(fmt.Sprint(len(name)), func(b *testing.B) {
			for b.Loop() {
				s.hash(name)
			}
		})
	}
}
