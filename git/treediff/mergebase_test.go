package treediff

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// TestMergeBasesOfPartOfHistory checks that a history that was fetched without the ancestors of one commit has the same
// merge bases as the complete history.
func TestMergeBasesOfPartOfHistory(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	checked := 0
	for range 3000 {
		n := 3 + random.IntN(12)
		history := map[object.ID][]object.ID{}
		ids := make([]object.ID, n)
		for i := range ids {
			ids[i] = object.MustID(fmt.Sprintf("%040x", i+1))
			history[ids[i]] = nil
			for range min(i, 1+random.IntN(2)) {
				if p := ids[max(0, i-1-random.IntN(4))]; !slices.Contains(history[ids[i]], p) {
					history[ids[i]] = append(history[ids[i]], p)
				}
			}
		}
		reach := func(from object.ID) map[object.ID]bool { // including from itself
			seen := map[object.ID]bool{}
			var visit func(id object.ID)
			visit = func(id object.ID) {
				if !seen[id] {
					seen[id] = true
					for _, p := range history[id] {
						visit(p)
					}
				}
			}
			visit(from)
			return seen
		}
		a, b, stop := ids[random.IntN(n)], ids[random.IntN(n)], ids[random.IntN(n)]
		ofA, ofB, ofStop := reach(a), reach(b), reach(stop)
		got, ok := MergeBases(func(id object.ID) ([]object.ID, bool) { return history[id], !ofStop[id] || id == stop }, a, b,
			stop)
		if want := ofA[stop] && ofB[stop]; ok != want {
			t.Fatalf("merge bases of %v and %v behind %v in %v: got %v, want %v", a, b, stop, history, ok, want)
		}
		if !ok {
			continue
		}
		var want []object.ID
		for _, id := range ids {
			best := ofA[id] && ofB[id]
			for _, other := range ids {
				best = best && !(other != id && ofA[other] && ofB[other] && reach(other)[id])
			}
			if best {
				want = append(want, id)
			}
		}
		slices.SortFunc(want, object.ID.Compare)
		if checked++; !slices.Equal(got, want) {
			t.Fatalf("merge bases of %v and %v behind %v in %v: got %v, want %v", a, b, stop, history, got, want)
		}
	}
	if checked < 300 {
		t.Errorf("only %d histories had merge bases", checked)
	}
}
