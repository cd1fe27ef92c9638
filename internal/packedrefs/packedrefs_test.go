package packedrefs

import (
	"testing"

	"github.com/artifactfs/artifactfs/object"
)

func TestEncode(t *testing.T) {
	a, b := object.MustID("1111111111111111111111111111111111111111"), object.MustID("2222222222222222222222222222222222222222")
	got := string(Encode([]Ref{{Name: "refs/tags/v1", ID: a, Peeled: b}, {Name: "refs/heads/main", ID: b}}))
	want := "# pack-refs with: peeled fully-peeled sorted \n" + b.String() + " refs/heads/main\n" + a.String() + " refs/tags/v1\n^" + b.String() + "\n"
	if got != want {
		t.Errorf("got %q", got)
	}
}
