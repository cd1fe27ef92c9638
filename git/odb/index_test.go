package odb

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// randomTable returns a table of n objects with random ids, some of them at offsets beyond 2 GiB.
func randomTable(f object.Format, n int) (*table, []object.ID) {
	rnd := rand.New(rand.NewPCG(3, 4))
	t := newTable(f)
	off := int64(packHeaderSize)
	var ids []object.ID
	for i := range n {
		id := idOf(f, object.Blob, fmt.Append(nil, i))
		rec := t.add(off, rnd.Uint32())
		t.name(rec, id, object.Blob, i%100)
		ids = append(ids, id)
		if off += int64(rnd.IntN(1000) + 20); i == n/2 {
			off += 5 << 30
		}
	}
	return t, ids
}

// TestIndex writes indexes with large offsets, and reads them with git.
func TestIndex(t *testing.T) {
	forEachFormat(t, func(t *testing.T, f object.Format) {
		for _, n := range []int{0, 1, 2, 3000} {
			tab, ids := randomTable(f, n)
			var b bytes.Buffer
			if err := writeIndex(&b, f, tab, make([]byte, f.Size())); err != nil {
				t.Fatal(err)
			}
			shown := map[string]string{}
			for _, line := range strings.Split(string(git(t, newRepo(t, f), b.Bytes(), "show-index",
				"--object-format="+f.String())), "\n") {
				if w := strings.Fields(line); len(w) == 3 {
					shown[w[1]] = w[0] + " " + w[2]
				}
			}
			x, err := ParseIndex(b.Bytes(), f)
			if err != nil {
				t.Fatal(err)
			}
			for i, id := range ids {
				want := fmt.Sprintf("%d (%08x)", tab.offset(i), tab.crc(i))
				if shown[id.String()] != want {
					t.Fatalf("git reads %s as %q, want %q", id, shown[id.String()], want)
				}
				if off, ok := x.find(id); !ok || off != tab.offset(i) {
					t.Fatalf("find(%s) = %d, %v, want %d", id, off, ok, tab.offset(i))
				}
				if off, ok := tab.findOffset(id); !ok || off != tab.offset(i) {
					t.Fatalf("findOffset(%s) of the table = %d, %v", id, off, ok)
				}
				if tab.typ(i) != object.Blob || tab.depth(i) != i%100 {
					t.Fatalf("record %d: got type %s and depth %d", i, tab.typ(i), tab.depth(i))
				}
			}
			if len(shown) != n || x.n != n {
				t.Fatalf("git show-index lists %d objects and the index has %d, want %d", len(shown), x.n, n)
			}
			for i := range 100 {
				absent := idOf(f, object.Tree, fmt.Append(nil, i))
				if _, ok := x.find(absent); ok {
					t.Fatal("find returned an object that does not exist")
				}
				if _, ok := tab.findOffset(absent); ok {
					t.Fatal("findOffset of the table returned an object that does not exist")
				}
			}
			if _, ok := x.find(idOf(formats[1-f], object.Blob, nil)); ok {
				t.Fatal("found an id of the other format")
			}
		}
	})
}

func TestIndexRefuses(t *testing.T) {
	tab, _ := randomTable(object.SHA1, 10)
	var b bytes.Buffer
	if err := writeIndex(&b, object.SHA1, tab, make([]byte, 20)); err != nil {
		t.Fatal(err)
	}
	good := b.Bytes()
	change := func(at int, v byte) []byte { c := bytes.Clone(good); c[at] = v; return c }
	for name, data := range map[string][]byte{
		"empty":      nil,
		"version 1":  good[8:],
		"version 3":  change(7, 3),
		"fan-out":    change(8, 1),
		"count":      change(8+255*4, 1),
		"cut":        good[:len(good)-1],
		"half":       good[:len(good)/2],
		"longer":     append(bytes.Clone(good), 0),
		"more large": append(bytes.Clone(good), make([]byte, 88)...),
	} {
		if _, err := ParseIndex(data, object.SHA1); !errors.Is(err, ErrCorrupt) {
			t.Errorf("parse the index, case %q: got %v, want ErrCorrupt", name, err)
		}
	}
}

// TestTableMemory checks the memory per object of a table.
func TestTableMemory(t *testing.T) {
	const n = 300_000
	tab, _ := randomTable(object.SHA1, n)
	if got := (len(tab.chunks)*chunkRecords*tab.width + 4*len(tab.slots)) / n; got > 48 {
		t.Errorf("memory per object: got %d bytes", got)
	}
}
