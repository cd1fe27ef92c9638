package packedrefs

import (
	"slices"
	"testing"

	"github.com/artifactfs/artifactfs/object"
)

func TestEncode(t *testing.T) {
	a, b := object.MustID("1111111111111111111111111111111111111111"), object.MustID("2222222222222222222222222222222222222222")
	got := string(Encode(nil, []Ref{{Name: "refs/tags/v1", ID: a, Peeled: b}, {Name: "refs/heads/main", ID: b}}))
	want := ours + b.String() + " refs/heads/main\n" + a.String() + " refs/tags/v1\n^" + b.String() + "\n"
	if got != want {
		t.Errorf("written file: got %q", got)
	}
	refs, err := Decode([]byte(want))
	if err != nil || !slices.Equal(refs, []Ref{{Name: "refs/heads/main", ID: b}, {Name: "refs/tags/v1", ID: a, Peeled: b}}) {
		t.Errorf("parsed refs: got %+v, %v", refs, err)
	}
}

// A file that git wrote can be distinguished from one of this package.
func TestWhose(t *testing.T) {
	if text := Encode(nil, nil); !Ours(text) || !Ours(Encode(text, nil)) {
		t.Error("a file of this package was not recognized")
	}
	if text := Encode([]byte("# pack-refs with: peeled fully-peeled sorted \n"), nil); Ours(text) {
		t.Error("a file of git was taken for one of this package")
	}
}

func TestEncodeTags(t *testing.T) {
	a, b := object.MustID("1111111111111111111111111111111111111111"), object.MustID("2222222222222222222222222222222222222222")
	refs := []Ref{{Name: "refs/other/v1", ID: a, Peeled: b}, {Name: "refs/tags/v1", ID: a, Peeled: b}, {Name: "refs/tags/v2", ID: b}}
	lines := a.String() + " refs/other/v1\n" + a.String() + " refs/tags/v1\n"
	last := b.String() + " refs/tags/v2\n"
	if got := string(EncodeTags(refs, false)); got != unpeeled+lines+last || TagsPeeled([]byte(got)) {
		t.Errorf("unpeeled: got %q", got)
	}
	if got := string(EncodeTags(refs, true)); got != tagsPeeled+lines+"^"+b.String()+"\n"+last || !TagsPeeled([]byte(got)) {
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
		// Refs that were read, written and read again are the same. The order of names does not matter.
		again, err := Decode(Encode(nil, refs))
		if err != nil || len(again) != len(refs) {
			t.Errorf("file %q was read as %+v, then as %+v (%v)", text, refs, again, err)
		}
	})
}
