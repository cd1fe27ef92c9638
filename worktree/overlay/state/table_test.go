package state

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// shadow is a simple model of a table.
type shadow struct {
	inodes  map[Node]Inode
	entries map[Node]map[string]Node // 0 if the name is hidden
	targets map[Node]string
	xattrs  map[Node]map[string]string
	dead    map[uint64]bool
}

func newShadow() *shadow {
	return &shadow{map[Node]Inode{}, map[Node]map[string]Node{}, map[Node]string{}, map[Node]map[string]string{},
		map[uint64]bool{}}
}

func set[K, L comparable, V any](m map[K]map[L]V, k K, l L, v V) {
	if m[k] == nil {
		m[k] = map[L]V{}
	}
	m[k][l] = v
}

func unset[K, L comparable, V any](m map[K]map[L]V, k K, l L) {
	if delete(m[k], l); len(m[k]) == 0 {
		delete(m, k)
	}
}

// step makes one random change in both.
func (s *shadow) step(rnd *rand.Rand, pool []Node, b *Batch) {
	n, child := pool[rnd.IntN(len(pool))], pool[rnd.IntN(len(pool))]
	name := fmt.Sprint("name", rnd.IntN(600))
	switch rnd.IntN(14) {
	case 0, 1:
		in := Inode{Node: n, Mode: rnd.Uint32(), Size: rnd.Int64N(9) - 1, Mtime: -rnd.Int64(), Content: rnd.Uint64N(5),
			Parent: child}
		if old, ok := s.inodes[n]; ok {
			b.PutInode(&in, &old)
		} else {
			b.PutInode(&in, nil)
		}
		s.inodes[n] = in
	case 2, 3, 4, 5, 6:
		b.SetEntry(n, name, child)
		set(s.entries, n, name, child)
	case 7:
		b.Hide(n, name)
		set(s.entries, n, name, 0)
	case 8, 9:
		b.ClearEntry(n, name)
		unset(s.entries, n, name)
	case 10:
		b.SetTarget(n, name)
		s.targets[n] = name
	case 11:
		value := string(make([]byte, rnd.IntN(3000)))
		b.SetXattr(n, name[:5], []byte(value))
		set(s.xattrs, n, name[:5], value)
	case 12:
		b.RemoveXattr(n, name[:5])
		unset(s.xattrs, n, name[:5])
	case 13:
		if rnd.IntN(20) == 0 {
			b.Drop(n)
			delete(s.inodes, n)
			delete(s.entries, n)
			delete(s.targets, n)
			delete(s.xattrs, n)
		}
		number := 1 + rnd.Uint64N(300)
		if s.dead[number] = rnd.IntN(2) == 0; s.dead[number] {
			b.DeadContent(number)
		} else {
			b.ContentGone(number)
			delete(s.dead, number)
		}
	}
}

// compare checks that all read methods of the table return the same as the shadow.
func (s *shadow) compare(t *testing.T, got *Table, pool []Node) {
	t.Helper()
	entries, hidden := 0, 0
	for _, n := range pool {
		in, ok := got.Inode(n)
		if want, has := s.inodes[n]; ok != has || in != want {
			t.Fatalf("inode %x: got %+v %v, want %+v %v", n, in, ok, want, has)
		}
		seen, last := map[string]Node{}, uint64(0)
		got.ReadDir(n, 0, func(cookie uint64, name string, child Node, p Presence) bool {
			if cookie <= last || cookie >= 1<<49 {
				t.Fatalf("cookie %x follows %x", cookie, last)
			}
			last = cookie
			if (p == Hidden) != (child == 0) || p == Unknown {
				t.Fatalf("entry %x/%s: got %x %d", n, name, child, p)
			}
			seen[string([]byte(name))] = child
			return true
		})
		if !maps.Equal(seen, s.entries[n]) {
			t.Fatalf("directory %x: got %d entries, want %d", n, len(seen), len(s.entries[n]))
		}
		absent := 0
		for name, want := range s.entries[n] {
			child, p := got.Entry(n, name)
			if child != want || (p == Hidden) != (want == 0) || p == Unknown {
				t.Fatalf("entry %x/%s: got %x %d, want %x", n, name, child, p, want)
			}
			if want == 0 {
				absent++
			}
		}
		if _, p := got.Entry(n, "never"); p != Unknown {
			t.Fatalf("lookup of a name that was never put: got %d", p)
		}
		if p, h := got.Entries(n); p != len(seen)-absent || h != absent {
			t.Fatalf("directory %x: got %d present and %d hidden names, want %d and %d", n, p, h, len(seen)-absent, absent)
		}
		entries, hidden = entries+len(seen)-absent, hidden+absent
		target, ok := got.Target(n)
		if want, has := s.targets[n]; ok != has || target != want {
			t.Fatalf("target of %x: got %q, want %q", n, target, want)
		}
		if names := slices.Sorted(maps.Keys(s.xattrs[n])); !slices.Equal(got.Xattrs(n), names) {
			t.Fatalf("attributes of %x: got %q, want %q", n, got.Xattrs(n), names)
		}
		for name, want := range s.xattrs[n] {
			if v, ok := got.Xattr(n, name); !ok || string(v) != want {
				t.Fatalf("attribute %x %s: got %d bytes, want %d", n, name, len(v), len(want))
			}
		}
	}
	dead := map[uint64]bool{}
	got.EachDead(func(number uint64) bool { dead[number] = true; return true })
	if !maps.Equal(dead, s.dead) {
		t.Fatalf("unreferenced contents: got %d, want %d", len(dead), len(s.dead))
	}
	all := got.Totals()
	if all.Inodes != int64(len(s.inodes)) || all.Entries != int64(entries) || all.Hidden != int64(hidden) ||
		all.Dead != int64(len(dead)) {
		t.Fatalf("totals: got %+v, want %d inodes, %d entries, %d hidden names, %d unreferenced contents", all, len(s.inodes),
			entries, hidden, len(dead))
	}
}

// cookies returns a directory's names with their cookies.
func cookies(t *Table, dir Node) (list []string) {
	t.ReadDir(dir, 0, func(cookie uint64, name string, _ Node, _ Presence) bool {
		list = append(list, fmt.Sprint(name, " ", cookie))
		return true
	})
	return list
}

func testPool() (pool []Node) {
	for i := range Node(40) {
		pool = append(pool, 1+i*977, 1<<32+i+1, 7<<32+i+50)
	}
	return pool
}

func newTable(t testing.TB) *Table {
	table := New()
	t.Cleanup(table.Close)
	return table
}

// After random changes, the table, and the table from a dump in slices with changes between them, agree with a map.
func TestTableIsAMap(t *testing.T) {
	for seed := range uint64(3) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		table, copied, want, pool := newTable(t), newTable(t), newShadow(), testPool()
		if seed == 1 {
			table.dirs.hash = func(name string) uint32 { return uint32(len(name)) } // hundreds of names with one hash
		}
		copied.dirs.hash = table.dirs.hash
		apply := func(b *Batch, tables ...*Table) {
			if b.Err() != nil {
				t.Fatal(b.Err())
			}
			for _, table := range tables {
				if err := table.Apply(b.Bytes()); err != nil {
					t.Fatal(err)
				}
			}
			b.Reset()
		}
		var b Batch
		for i := range 30_000 {
			want.step(rnd, pool, &b)
			if i%7 == 0 {
				apply(&b, table)
			}
		}
		apply(&b, table)
		want.compare(t, table, pool)
		for c, done := (Cursor{}), false; !done; {
			c, done = table.Dump(c, 50, &b)
			apply(&b, copied)
			for range rnd.IntN(10) {
				want.step(rnd, pool, &b)
			}
			apply(&b, table, copied)
		}
		want.compare(t, table, pool)
		want.compare(t, copied, pool)
		for _, n := range pool {
			if have, want := cookies(copied, n), cookies(table, n); !slices.Equal(have, want) {
				t.Fatalf("seed %d, directory %x: got cookies %q, want %q", seed, n, have, want)
			}
		}
		for _, n := range pool {
			b.Drop(n)
		}
		apply(&b, table)
		if all := table.Totals(); all.Inodes+all.Entries+all.Hidden != 0 {
			t.Errorf("totals after everything was dropped: got %+v", all)
		}
	}
}

// A copy has CounterLast only if it has all records.
func TestCounterLastIsDumpedLast(t *testing.T) {
	table, copied := newTable(t), newTable(t)
	var b Batch
	b.SetCounter(CounterLast, 7)
	for n := range Node(300) {
		b.PutInode(&Inode{Node: n + 2, Nlink: 1, Size: SizeOfBase}, nil)
	}
	if err := table.Apply(b.Bytes()); err != nil {
		t.Fatal(err)
	}
	for c, done := (Cursor{}), false; !done; {
		b.Reset()
		c, done = table.Dump(c, 10, &b)
		if err := copied.Apply(b.Bytes()); err != nil {
			t.Fatal(err)
		}
		if got, inodes := copied.Counter(CounterLast), copied.Totals().Inodes; got != 0 && inodes < 300 {
			t.Fatalf("counter with %d of 300 inodes: got %d, want 0", inodes, got)
		}
	}
	if got := copied.Counter(CounterLast); got != 7 {
		t.Errorf("counter after the dump: got %d, want 7", got)
	}
}

// A directory that is read in pieces while it changes returns every entry that stays exactly once.
func TestReadDirBetweenChanges(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, hash := range []func(string) uint32{nil, func(name string) uint32 { return uint32(name[1] & 3) }} {
		table := newTable(t)
		if hash != nil {
			table.dirs.hash = hash
		}
		var b Batch
		for i := range 1000 {
			b.SetEntry(1, fmt.Sprint("stays", i), 5)
			b.SetEntry(1, fmt.Sprint("goes", i), 6)
		}
		seen, after, come := map[string]int{}, uint64(0), 0
		for more := true; more; {
			if err := table.Apply(b.Bytes()); err != nil {
				t.Fatal(err)
			}
			b.Reset()
			more = false
			left := 1 + rnd.IntN(60)
			table.ReadDir(1, after, func(cookie uint64, name string, _ Node, _ Presence) bool {
				seen[string([]byte(name))]++
				after = cookie
				left--
				more = left == 0
				return left > 0
			})
			for range 10 { // fewer than are read, because otherwise reading would never end
				b.ClearEntry(1, fmt.Sprint("goes", rnd.IntN(1000)))
				b.SetEntry(1, fmt.Sprint("comes", come), 7)
				come++
			}
		}
		for i := range 1000 {
			if n := seen[fmt.Sprint("stays", i)]; n != 1 {
				t.Fatalf("entry %d was returned %d times", i, n)
			}
		}
	}
}

func TestNodesAreNeverUsedTwice(t *testing.T) {
	table, used := newTable(t), map[Node]bool{}
	rnd := rand.New(rand.NewPCG(3, 3))
	var live []Node
	for i := range 20_000 {
		n, err := table.NewNode()
		if err != nil || used[n] || !n.Own() || !n.valid() {
			t.Fatalf("allocate a node: got %x, which is used: %v, %v", n, used[n], err)
		}
		var b Batch
		switch rnd.IntN(4) {
		case 0:
			table.CancelNode(n)
			continue
		case 1:
			for range min(len(live), 2) {
				j := rnd.IntN(len(live))
				b.Drop(live[j])
				live = slices.Delete(live, j, j+1)
			}
		}
		used[n] = true
		live = append(live, n)
		b.PutInode(&Inode{Node: n}, nil)
		if err := table.Apply(b.Bytes()); err != nil {
			t.Fatal(err)
		}
		if i%1000 == 999 { // continue from a dump, in which free slots have only their generation
			b.Reset()
			if _, done := table.Dump(Cursor{}, 1<<30, &b); !done {
				t.Fatal("the dump did not end")
			}
			table = newTable(t)
			if err := table.Apply(b.Bytes()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, n := range live {
		if _, ok := table.Inode(n); !ok {
			t.Fatalf("node %x is lost", n)
		}
	}
	if end := table.own.end; int(end) > 2*len(live)+10 {
		t.Errorf("got %d slots for %d nodes", end, len(live))
	}
}

func TestForgetCountsDown(t *testing.T) {
	table := newTable(t)
	n, _ := table.NewNode()
	var b Batch
	b.PutInode(&Inode{Node: n}, nil)
	if err := table.Apply(b.Bytes()); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		table.Remember(n)
	}
	if left := table.Forget(n, 2); left != 1 {
		t.Errorf("lookup count: got %d", left)
	}
	if left := table.Forget(n, 5); left != 0 {
		t.Errorf("lookup count: got %d", left)
	}
	*table.lookups(n) |= maxLookups
	table.Remember(n)
	if left := table.Forget(n, 5); left != maxLookups {
		t.Errorf("lookup count after an overflow: got %d", left)
	}
}

func TestBatchKnowsWhatApplyRefuses(t *testing.T) {
	long := string(bytes.Repeat([]byte("x"), maxTarget+1))
	for what, add := range map[string]func(*Batch){
		"no node":          func(b *Batch) { b.Drop(0) },
		"slot 0":           func(b *Batch) { b.Drop(1 << 32) },
		"slot too high":    func(b *Batch) { b.Drop(1<<32 + maxSlots) },
		"empty name":       func(b *Batch) { b.Hide(1, "") },
		"dot dot":          func(b *Batch) { b.ClearEntry(1, "..") },
		"slash":            func(b *Batch) { b.SetEntry(1, "a/b", 2) },
		"zero byte":        func(b *Batch) { b.SetXattr(1, "a\x00", nil) },
		"long name":        func(b *Batch) { b.SetEntry(1, long[:256], 2) },
		"entry of no node": func(b *Batch) { b.SetEntry(1, "a", 0) },
		"long target":      func(b *Batch) { b.SetTarget(1, long) },
		"large value":      func(b *Batch) { b.SetXattr(1, "a", make([]byte, maxValue+1)) },
		"content 0":        func(b *Batch) { b.DeadContent(0) },
		"counter":          func(b *Batch) { b.SetCounter(maxCounter, 1) },
		"size":             func(b *Batch) { b.PutInode(&Inode{Node: 1, Size: -2}, nil) },
	} {
		table := newTable(t)
		var b Batch
		b.SetCounter(CounterUser, 1)
		add(&b)
		if !errors.Is(b.Err(), ErrBatch) {
			t.Errorf("%s: builder returned %v", what, b.Err())
		}
		if err := table.Apply(b.Bytes()); !errors.Is(err, ErrBatch) {
			t.Errorf("%s: Apply returned %v", what, err)
		}
		if table.Counter(CounterUser) != 0 {
			t.Errorf("%s: a part of the batch was applied", what)
		}
	}
}
