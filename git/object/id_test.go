package object

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// TestHash compares the ids of objects of all types with those that git computes.
func TestHash(t *testing.T) {
	for _, f := range formats {
		r := newRepo(t, f)
		for _, data := range [][]byte{nil, []byte("text\n"), bytes.Repeat([]byte{0, 255}, 100_000)} {
			for _, typ := range []Type{Commit, Tree, Blob, Tag} {
				want := r.id(data, "hash-object", "-t", typ.String(), "--literally", "--stdin")
				got, err := Hash(f, typ, data)
				if err != nil || got != want || got.Format() != f || len(got.Bytes()) != f.Size() {
					t.Errorf("id of %s %s of %d bytes: got %s, %v, want %s", f, typ, len(data), got, err, want)
				}
				h := NewHasher(f, Blob, 5)
				h.Write([]byte("other"))
				h.Reset(typ, int64(len(data)))
				for _, b := range data {
					h.Write([]byte{b})
				}
				if got, err := h.Sum(); err != nil || got != want {
					t.Errorf("id of %s %s, written byte by byte: got %s, %v, want %s", f, typ, got, err, want)
				}
			}
		}
	}
}

func TestParseID(t *testing.T) {
	for _, f := range formats {
		id, err := Hash(f, Blob, nil)
		if err != nil {
			t.Fatal(err)
		}
		back, err := ParseID(id.String())
		if err != nil || back != id {
			t.Errorf("ParseID(%s) = %s, %v", id, back, err)
		}
		raw, err := FromBytes(id.Bytes())
		if err != nil || raw != id {
			t.Errorf("FromBytes(%s) = %s, %v", id, raw, err)
		}
	}
	good := strings.Repeat("a", 40)
	for _, bad := range []string{"", "a", good[1:], good + "a", strings.ToUpper(good), good[1:] + "g", good[1:] + "\n",
		" " + good[1:], strings.Repeat("a", 63), strings.Repeat("é", 20)} {
		if id, err := ParseID(bad); err == nil || !id.IsZero() {
			t.Errorf("ParseID(%q) = %s, %v", bad, id, err)
		}
	}
	for _, n := range []int{0, 19, 21, 31, 33} {
		if id, err := FromBytes(make([]byte, n)); err == nil || !id.IsZero() {
			t.Errorf("FromBytes of %d bytes = %s", n, id)
		}
	}
	var zero ID
	if !zero.IsZero() || zero.String() != "" || len(zero.Bytes()) != 0 {
		t.Errorf("string of the zero ID: got %q", zero)
	}
}

func TestCompare(t *testing.T) {
	ids := []ID{
		{},
		MustID(strings.Repeat("0", 40)), MustID(strings.Repeat("0", 64)),
		MustID("00" + strings.Repeat("f", 38)), MustID("7f" + strings.Repeat("0", 38)),
		MustID("80" + strings.Repeat("0", 38)),
		MustID(strings.Repeat("f", 40)),
	}
	shuffled := slices.Clone(ids)
	slices.Reverse(shuffled)
	slices.SortFunc(shuffled, ID.Compare)
	if !slices.Equal(shuffled, ids) {
		t.Errorf("sorted ids: got %v", shuffled)
	}
	for _, id := range ids {
		if id.Compare(id) != 0 {
			t.Errorf("%s differs from itself", id)
		}
	}
}

func TestParseFormat(t *testing.T) {
	for _, f := range formats {
		if got, err := ParseFormat(f.String()); err != nil || got != f {
			t.Errorf("ParseFormat(%s) = %s, %v", f, got, err)
		}
	}
	if _, err := ParseFormat("sha512"); err == nil {
		t.Error("format sha512 was accepted")
	}
}

func FuzzParseID(f *testing.F) {
	f.Add(strings.Repeat("0a", 20))
	f.Add(strings.Repeat("f0", 32))
	f.Add("HEAD")
	f.Fuzz(func(t *testing.T, s string) {
		if id, err := ParseID(s); err == nil && id.String() != s {
			t.Fatalf("invalid id %q was parsed as %s", s, id)
		}
	})
}

func TestLines(t *testing.T) {
	one, two := EmptyTree(SHA1), EmptyTree(SHA256)
	text := Lines([]ID{one, two})
	if want := one.String() + "\n" + two.String() + "\n"; text != want {
		t.Errorf("lines of two ids: got %q, want %q", text, want)
	}
	if ids, err := ParseLines(text); err != nil || len(ids) != 2 || ids[0] != one || ids[1] != two {
		t.Errorf("ids of two lines: got %v, %v", ids, err)
	}
	if ids, err := ParseLines(""); err != nil || len(ids) != 0 || Lines(nil) != "" {
		t.Errorf("no ids: got %v, %v", ids, err)
	}
	if ids, err := ParseLines(text + "no id\n"); err == nil {
		t.Errorf("invalid line: got %v, want an error", ids)
	}
}
