package packedrefs

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

func TestEncode(t *testing.T) {
	a, b := object.MustID("1111111111111111111111111111111111111111"),
		object.MustID("2222222222222222222222222222222222222222")
	got := string(Encode(nil, []Ref{{Name: "refs/tags/v1", ID: a, Peeled: b}, {Name: "refs/heads/main", ID: b}}))
	want := ours + b.String() + " refs/heads/main\n" + a.String() + " refs/tags/v1\n^" + b.String() + "\n"
	if got != want {
		t.Errorf("written file: got %q", got)
	}
	refs, err := Decode([]byte(want))
	if err != nil ||
		!slices.Equal(refs, []Ref{{Name: "refs/heads/main", ID: b}, {Name: "refs/tags/v1", ID: a, Peeled: b}}) {
		t.Errorf("parsed refs: got %+v, %v", refs, err)
	}
}

// TestWrittenByGit checks that a file that was written by git can be distinguished from one of this package.
func TestWrittenByGit(t *testing.T) {
	if text := Encode(nil, nil); !Ours(text) || !Ours(Encode(text, nil)) {
		t.Error("a file of this package was not recognized")
	}
	if text := Encode([]byte("# pack-refs with: peeled fully-peeled sorted \n"), nil); Ours(text) {
		t.Error("a file of git was taken for one of this package")
	}
}

func TestEncodeTags(t *testing.T) {
	a, b := object.MustID("1111111111111111111111111111111111111111"),
		object.MustID("2222222222222222222222222222222222222222")
	refs := []Ref{{Name: "refs/other/v1", ID: a, Peeled: b}, {Name: "refs/tags/v1", ID: a, Peeled: b},
		{Name: "refs/tags/v2", ID: b}}
	lines := a.String() + " refs/other/v1\n" + a.String() + " refs/tags/v1\n"
	last := b.String() + " refs/tags/v2\n"
	if got := string(EncodeTags(refs, false)); got != unpeeled+lines+last || TagsPeeled([]byte(got)) {
		t.Errorf("unpeeled: got %q", got)
	}
	if got := string(EncodeTags(refs, true)); got != tagsPeeled+lines+"^"+b.String()+"\n"+last ||
		!TagsPeeled([]byte(got)) {
		t.Errorf("peeled: got %q", got)
	}
}

func FuzzDecode(f *testing.F) {
	a := object.MustID("1111111111111111111111111111111111111111")
	f.Add(Encode(nil, []Ref{{Name: "refs/tags/v1", ID: a, Peeled: a}, {Name: "refs/heads/main", ID: a}}))
	f.Add([]byte("^" + a.String() + "\n"))
	f.Add([]byte(a.String() + " \n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		refs, err := Decode(text)
		if err != nil {
			return
		}
		// Refs do not change if they are written and read again. The order of names does not matter.
		again, err := Decode(Encode(nil, refs))
		if err != nil || len(again) != len(refs) {
			t.Errorf("file %q was read as %+v, then as %+v (%v)", text, refs, again, err)
		}
	})
}

// TestFile checks that refs are found only by their whole names.
func TestFile(t *testing.T) {
	a, b := strings.Repeat("a", 40), strings.Repeat("b", 40)
	for _, header := range []string{"", tagsPeeled} {
		f := File(header + a + " refs/afs/policy2\n" + b + " refs/tags/v1\n^" + a + "\n" + a + " refs/tags/v10\n")
		for name, want := range map[string]string{
			"refs/afs/policy2": a, "refs/afs/policy": "", "refs/tags/v1": b, "refs/tags/v10": a, "refs/tags": "",
			"sorted": "", "": "",
		} {
			if got := f.ID(name); got != want {
				t.Errorf("%s: got %q, want %q", name, got, want)
			}
		}
		if got := maps.Collect(f.Below("refs/tags/")); !maps.Equal(got,
			map[string]string{"refs/tags/v1": b, "refs/tags/v10": a}) {
			t.Errorf("refs below refs/tags/: got %v", got)
		}
	}
	if got := File("").ID("refs/tags/v1"); got != "" {
		t.Errorf("ref of an empty file: got %q", got)
	}
	if _, err := Map(t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without packed-refs: got %v", err)
	}
}

// TestFileOfRandomRefs checks that every ref of a file is found, and that changes of a file result in the same text as
// encoding the changed refs, with and without lines of peeled tags.
func TestFileOfRandomRefs(t *testing.T) {
	id := func(n int) object.ID { return object.MustID(fmt.Sprintf("%040x", n+1)) }
	for _, peeled := range []bool{true, false} {
		var before, after, changes []Ref
		for i := range 600 {
			r := Ref{Name: fmt.Sprintf("refs/tags/v%04d", i), ID: id(i)}
			if i%3 == 0 && peeled {
				r.Peeled = id(1000 + i)
			}
			changed := Ref{Name: r.Name}
			switch i % 5 {
			case 0: // create a ref
				changes, after = append(changes, r), append(after, r)
				continue
			case 1: // change a ref, or make it a tag of another kind
				changed.ID = id(2000 + i)
				changes, after = append(changes, changed), append(after, changed)
			case 2:
				changes = append(changes, changed)
			default:
				after = append(after, r)
			}
			before = append(before, r)
		}
		f := File(EncodeTags(before, peeled))
		for _, r := range before {
			if got := f.ID(r.Name); got != r.ID.String() {
				t.Errorf("%s: got %q, want %q", r.Name, got, r.ID)
			}
		}
		if got, want := f.With(changes), EncodeTags(after, peeled); !bytes.Equal(got, want) {
			t.Errorf("after changes, peeled %v: got\n%s\nwant\n%s", peeled, got, want)
		}
		if got, want := File(EncodeTags(nil, peeled)).With(after), EncodeTags(after, peeled); !bytes.Equal(got, want) {
			t.Errorf("an empty file with refs, peeled %v: got\n%s\nwant\n%s", peeled, got, want)
		}
	}
}
