package ui

import (
	"math/rand/v2"
	"testing"

	"github.com/artifactfs/artifactfs/git/read"
)

// TestRunsAreDividedAtLines checks that runs of lines that were divided at lines with threads show the same changes,
// and that each of these lines is the last one of a run.
func TestRunsAreDividedAtLines(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var runs []read.Run
		old, latest := 0, 0
		for range random.IntN(4) {
			skip, gone, came := random.IntN(12), random.IntN(5), random.IntN(5)
			runs = append(runs, read.Run{Same: true, Old: old + skip, New: latest + skip, Gone: 3, Came: 3, Skip: skip},
				read.Run{Old: old + skip + 3, New: latest + skip + 3, Gone: gone, Came: came})
			old, latest = old+skip+3+gone, latest+skip+3+came
		}
		total := latest + random.IntN(9)
		gone, marked := map[int][]threadView{}, map[int][]threadView{}
		for range random.IntN(5) {
			if total > 0 {
				marked[1+random.IntN(total)] = []threadView{{}}
			}
			for _, r := range runs {
				if !r.Same && r.Gone > 0 && random.IntN(3) == 0 {
					gone[r.Old+1+random.IntN(r.Gone)] = []threadView{{}}
				}
			}
		}
		list := divide(reach(runs, marked, total), gone, marked)
		old, latest = 0, 0
		var got, want [2]int
		ends, oldEnds := map[int]bool{}, map[int]bool{}
		for _, r := range list {
			if r.Skip < 0 || r.Old != old+r.Skip || r.New != latest+r.Skip || r.Same && r.Gone != r.Came || r.Gone+r.Came == 0 {
				t.Fatalf("run %+v does not follow line %d and %d: %+v of %+v", r, old, latest, list, runs)
			}
			old, latest = r.Old+r.Gone, r.New+r.Came
			if !r.Same {
				got[0], got[1] = got[0]+r.Gone, got[1]+r.Came
			}
			ends[latest] = ends[latest] || r.Came > 0
			oldEnds[old] = oldEnds[old] || r.Gone > 0
		}
		for _, r := range runs {
			if !r.Same {
				want[0], want[1] = want[0]+r.Gone, want[1]+r.Came
			}
		}
		if got != want {
			t.Fatalf("divided runs have %v changed lines, want %v: %+v of %+v", got, want, list, runs)
		}
		for line := range marked {
			if !ends[line] {
				t.Fatalf("line %d is not the last one of a run: %+v of %+v", line, list, runs)
			}
		}
		for line := range gone {
			if !oldEnds[line] {
				t.Fatalf("old line %d is not the last one of a run: %+v of %+v", line, list, runs)
			}
		}
	}
}
