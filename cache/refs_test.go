package cache

import (
	"math/rand/v2"
	"testing"
)

// TestRefsAgainstAMap runs random operations on the table and on a map. The hash function is bad on purpose, so
// that long runs wrap around the end and removals have to close gaps in all positions.
func TestRefsAgainstAMap(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 6))
		spread := uint64(1) << (seed * 2)
		key := func(ref uint32) uint64 { return uint64(ref) * 0x9e3779b97f4a7c15 / spread * spread }
		table, want := refs{hash: key}, map[uint32]bool{}
		limit := 1 + rng.Uint32N(500)
		for range 5000 {
			ref := 1 + rng.Uint32N(limit)
			at, found := table.find(key(ref), func(r uint32) bool { return r == ref })
			if found != want[ref] {
				t.Fatalf("seed %d: reference %d found: %v, want %v", seed, ref, found, want[ref])
			}
			switch {
			case !found:
				table.add(key(ref), ref)
				want[ref] = true
			case rng.IntN(3) > 0:
				table.remove(at)
				delete(want, ref)
			}
			if table.n != len(want) {
				t.Fatalf("seed %d: got %d references, want %d", seed, table.n, len(want))
			}
		}
		for ref := uint32(1); ref <= limit; ref++ {
			if _, found := table.find(key(ref), func(r uint32) bool { return r == ref }); found != want[ref] {
				t.Fatalf("seed %d: at the end reference %d found: %v, want %v", seed, ref, found, want[ref])
			}
		}
	}
}
