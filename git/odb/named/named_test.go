package named

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

var formats = []object.Format{object.SHA1, object.SHA256}

// randomIDs returns n different random ids, sorted.
func randomIDs(f object.Format, n int) (ids []object.ID) {
	rnd := rand.New(rand.NewPCG(7, uint64(n)))
	for range n {
		b := make([]byte, f.Size())
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		id, _ := object.FromBytes(b)
		ids = append(ids, id)
	}
	slices.SortFunc(ids, object.ID.Compare)
	return ids
}

// tree returns a tree with a file for each id.
func tree(ids []object.ID) (content []byte) {
	for i, id := range ids {
		content = append(fmt.Appendf(content, "100644 file%06d\x00", i), id.Bytes()...)
	}
	return content
}

// collected returns the set of the ids in a tree.
func collected(t testing.TB, f object.Format, content []byte) *Set {
	t.Helper()
	c := NewCollector(f)
	c.AddTree(content)
	s, err := Parse(c.Encode(), f)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSetsOfAllSizes(t *testing.T) {
	for _, f := range formats {
		for _, n := range []int{0, 1, 2, 3, 4, 47, 48, 49, 63, 64, 65, 1023, 1024, 1025, 4095, 4096, 4097, 65536} {
			ids := randomIDs(f, n)
			shuffled := slices.Clone(ids)
			rand.Shuffle(n, func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
			path := filepath.Join(t.TempDir(), "set")
			c := NewCollector(f)
			c.AddTree(tree(shuffled))
			c.AddTree(tree(ids)) // at the second time, no id is new
			if err := os.WriteFile(path, c.Encode(), 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := Open(path, f)
			if err != nil || s.Len() != n || c.Len() != n {
				t.Fatalf("set of %d ids has %d ids: %v", n, s.Len(), err)
			}
			if got := listed([]*Set{s}); !slices.Equal(got, ids) {
				t.Errorf("set of %d ids lists %d other ids", n, len(got))
			}
			for _, id := range ids {
				if !s.Has(id) {
					t.Fatalf("set of %d ids lacks %s", n, id)
				}
				for bit := range id.Bytes() {
					other := id
					if other.Bytes()[bit] ^= 0x10; s.Has(other) {
						t.Fatalf("set of %d ids contains %s, which was not added", n, other)
					}
				}
				if n > 5000 {
					break
				}
			}
		}
	}
}

func listed(sets []*Set) (ids []object.ID) {
	for b := range 256 {
		ids = slices.AppendSeq(ids, From(sets, byte(b), object.ID{}))
	}
	return ids
}

func TestIdsThatAreNotEvenlyDistributed(t *testing.T) {
	var ids []object.ID
	for i := range 3000 {
		var b [20]byte
		b[0], b[19] = byte(i%2*255), byte(i/2)
		b[18] = byte(i / 512)
		id, _ := object.FromBytes(b[:])
		ids = append(ids, id)
	}
	s := collected(t, object.SHA1, tree(ids))
	slices.SortFunc(ids, object.ID.Compare)
	if got := listed([]*Set{s}); !slices.Equal(got, ids) {
		t.Errorf("got %d ids, want %d", len(got), len(ids))
	}
	for _, id := range ids {
		if !s.Has(id) {
			t.Fatalf("set lacks %s", id)
		}
	}
	if got := s.AppendPrefixed(nil, Prefix(ids[0])); len(got) != 1500 {
		t.Errorf("%d ids have the prefix, want 1500", len(got))
	}
}

func TestMergeAndOrder(t *testing.T) {
	for _, f := range formats {
		ids := randomIDs(f, 2000)
		sets := []*Set{
			collected(t, f, tree(ids[:1200])), collected(t, f, tree(ids[800:])), collected(t, f, nil),
			collected(t, f, tree(ids[500:900])),
		}
		if got := listed(sets); !slices.Equal(got, ids) || Count(sets) != len(ids) {
			t.Errorf("sets list %d ids and count %d, want %d", len(got), Count(sets), len(ids))
		}
		merged, err := Parse(Merge(f, sets), f)
		if err != nil || !slices.Equal(listed([]*Set{merged}), ids) {
			t.Errorf("merged set has %d ids, want %d: %v", merged.Len(), len(ids), err)
		}
		if !merged.Within(sets) || !sets[0].Within([]*Set{merged}) || merged.Within(sets[:1]) {
			t.Error("Within is wrong")
		}
		// Resume at each id, at ids that are not in the sets, and in other directories.
		for i, id := range ids {
			for _, change := range []int{0, 1, -1} {
				after := id
				after.Bytes()[f.Size()-1] += byte(change)
				want := ids[i+1:]
				if after.Compare(id) < 0 {
					want = ids[i:]
				}
				var got, rest []object.ID
				for next := range From(sets, id.Bytes()[0], after) {
					if got = append(got, next); len(got) == 3 {
						break
					}
				}
				for _, next := range want {
					if next.Bytes()[0] == id.Bytes()[0] && len(rest) < 3 {
						rest = append(rest, next)
					}
				}
				if !slices.Equal(got, rest) {
					t.Fatalf("after %s: got %v, want %v", after, got, rest)
				}
			}
			for range From(sets, id.Bytes()[0]-1, id) {
				if id.Bytes()[0] != 0 {
					t.Fatalf("directory %02x continues after %s", id.Bytes()[0]-1, id)
				}
			}
		}
	}
}

// TestChangedTrees compares AddChanged with AddTree for random changes of entries, names, modes and lengths.
func TestChangedTrees(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	ids := randomIDs(object.SHA1, 4000)
	next := 0
	type file struct {
		mode, name string
		id         object.ID
	}
	modes := []string{"100644", "100755", "120000", "160000", "40000", "100664", "040000"}
	fresh := func(name string) file {
		next++
		return file{modes[rnd.IntN(len(modes))], name, ids[next%len(ids)]}
	}
	text := func(files []file) (content []byte) {
		slices.SortFunc(files, func(a, b file) int { return bytes.Compare([]byte(a.name), []byte(b.name)) })
		for _, e := range files {
			content = append(fmt.Appendf(content, "%s %s\x00", e.mode, e.name), e.id.Bytes()...)
		}
		return content
	}
	for range 200 {
		var files []file
		for i := range rnd.IntN(60) {
			files = append(files, fresh(fmt.Sprintf("%x 100644 %d", rnd.Uint32(), i)))
		}
		want, got := NewCollector(object.SHA1), NewCollector(object.SHA1)
		base := text(files)
		want.AddTree(base)
		got.AddTree(base)
		for range 10 {
			for range rnd.IntN(4) {
				switch i := rnd.IntN(len(files) + 1); {
				case i == len(files) || rnd.IntN(3) == 0:
					files = append(files, fresh(fmt.Sprintf("%x", rnd.Uint64())))
				case rnd.IntN(2) == 0:
					files[i] = fresh(files[i].name)
				default:
					files = slices.Delete(files, i, i+1)
				}
			}
			content := text(files)
			if rnd.IntN(10) == 0 {
				content = content[:rnd.IntN(len(content)+1)]
			}
			want.AddTree(content)
			got.AddChanged(base, content)
			if !bytes.Equal(got.Encode(), want.Encode()) {
				t.Fatalf("AddChanged has %d ids, AddTree has %d", got.Len(), want.Len())
			}
			base = content
		}
	}
}

func TestDamagedFiles(t *testing.T) {
	c := NewCollector(object.SHA1)
	c.AddTree(tree(randomIDs(object.SHA1, 100)))
	whole := c.Encode()
	for i := range whole {
		data := slices.Clone(whole)
		data[i] ^= 1
		if _, err := Parse(data, object.SHA1); !errors.Is(err, ErrDamaged) {
			t.Fatalf("byte %d is changed: got %v, want ErrDamaged", i, err)
		}
		if _, err := Parse(whole[:i], object.SHA1); !errors.Is(err, ErrDamaged) {
			t.Fatalf("file ends at byte %d: got %v, want ErrDamaged", i, err)
		}
	}
	if _, err := Parse(whole, object.SHA256); !errors.Is(err, ErrDamaged) {
		t.Errorf("file of another format: got %v, want ErrDamaged", err)
	}
}

// FuzzParse parses files with correct checksums, and trees, with arbitrary contents.
func FuzzParse(f *testing.F) {
	for _, format := range formats {
		for _, n := range []int{0, 1, 300} {
			c := NewCollector(format)
			c.AddTree(tree(randomIDs(format, n)))
			f.Add(c.Encode())
		}
		f.Add(tree(randomIDs(format, 3)))
	}
	f.Add([]byte("100644 a\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, format := range formats {
			c := NewCollector(format)
			c.AddTree(data)
			changed := NewCollector(format)
			changed.AddTree(data[:len(data)/2])
			changed.AddChanged(data[:len(data)/2], data)
			if !bytes.Equal(changed.Encode(), c.Encode()) {
				t.Errorf("AddChanged has %d ids, AddTree has %d", changed.Len(), c.Len())
			}
			file := slices.Clone(data)
			if len(file) > crcSize {
				body := file[:len(file)-crcSize]
				binary.BigEndian.PutUint32(file[len(body):], crc32.Checksum(body, checksum))
			}
			s, err := Parse(file, format)
			if err != nil {
				continue
			}
			ids := listed([]*Set{s})
			for _, id := range ids {
				s.Has(id)
				s.AppendPrefixed(nil, Prefix(id))
			}
			if merged, err := Parse(Merge(format, []*Set{s, s}), format); err != nil || merged.Len() > 2*s.Len() {
				t.Errorf("merged set has %d ids, set has %d: %v", merged.Len(), s.Len(), err)
			}
		}
	})
}
