package ui

import (
	"maps"
	"slices"

	"github.com/artifactfs/artifactfs/git/read"
)

// linesBefore is the number of lines that a difference shows before an unchanged line with a thread.
const linesBefore = 3

// reach adds unchanged lines to the runs of a difference, so that the runs contain certain lines of the new file.
// wanted contains the numbers of these lines, counted from one. total is the number of lines of the new file, or 0 if
// the end of the difference is missing.
func reach(runs []read.Run, wanted map[int][]threadView, total int) (list []read.Run) {
	marks := slices.Sorted(maps.Keys(wanted))
	old, latest := 0, 0 // indexes of the first lines after the previous run, counted from zero
	fill := func(until int) {
		for _, m := range marks {
			if m <= latest || m > until {
				continue
			}
			first := max(latest, m-linesBefore)
			list = append(list, read.Run{Same: true, Old: old + first - latest, New: first, Gone: m - first, Came: m - first,
				Skip: first - latest})
			old, latest = old+m-latest, m
		}
	}
	for _, r := range runs {
		fill(r.New)
		r.Skip = r.New - latest
		list = append(list, r)
		old, latest = r.Old+r.Gone, r.New+r.Came
	}
	fill(total)
	return list
}

// divide divides runs so that each of certain lines is the last one of its run. oldEnds and newEnds contain the numbers
// of these lines in the old and the new file, counted from one.
func divide(runs []read.Run, oldEnds, newEnds map[int][]threadView) (list []read.Run) {
	for _, r := range runs {
		at := map[int]bool{}
		for i := 1; i <= r.Gone; i++ {
			if len(oldEnds[r.Old+i]) > 0 {
				at[i] = true
			}
		}
		for i := 1; i <= r.Came; i++ {
			if len(newEnds[r.New+i]) > 0 {
				at[i] = true
			}
		}
		done := 0
		for _, end := range append(slices.Sorted(maps.Keys(at)), max(r.Gone, r.Came)) {
			if end == done {
				continue
			}
			part := read.Run{Same: r.Same, Old: r.Old + min(done, r.Gone), New: r.New + min(done, r.Came),
				Gone: min(end, r.Gone) - min(done, r.Gone), Came: min(end, r.Came) - min(done, r.Came)}
			if done == 0 {
				part.Skip = r.Skip
			}
			list = append(list, part)
			done = end
		}
	}
	return list
}
