package read

import (
	"context"
	"fmt"
	"strings"

	"github.com/artifactfs/artifactfs/git/diff"
)

// Run is a part of a difference: lines that both files have, or lines of the old file that were replaced by lines of
// the new one. Lines are counted from zero.
type Run struct {
	Same     bool
	Old, New int // first line of the run in each file
	Gone     int // number of lines of the old file
	Came     int // number of lines of the new file; equal to Gone if Same
	// number of lines that both files have between the run before and this one, and that the difference leaves out
	Skip int
}

// Runs compares two blobs by their ids. cut reports that the difference is longer than its limit, and that its end is
// missing. Binary files have no runs.
func (r Repo) Runs(ctx context.Context, old, latest string) (list []Run, cut bool, err error) {
	out, cut, err := Output(r.Command(ctx, "diff", noExternals, noConversion, "--no-color", "--unified=3",
		"--end-of-options", old, latest), maxPatch)
	if err != nil {
		return nil, false, err
	}
	text := string(out)
	if cut { // the last line may be incomplete
		text = text[:strings.LastIndexByte(text, '\n')+1]
	}
	list, err = parseRuns(text)
	return list, cut, err
}

// Hunks compares two blobs by their ids. The result text is false if they are not texts. It returns an error if the
// difference is longer than its limit.
func (r Repo) Hunks(ctx context.Context, old, latest string) (hunks []diff.Hunk, text bool, err error) {
	out, err := r.Output(ctx, maxPatch, "diff", noExternals, noConversion, "--no-color", "--unified=0",
		"--end-of-options", old, latest)
	hunks, text = diff.Hunks(out)
	return hunks, text, err
}

// parseRuns parses a patch of one file.
func parseRuns(patch string) (list []Run, err error) {
	old, latest := 0, 0 // next line of each file
	skip, within := 0, false
	for line := range strings.Lines(patch) {
		switch line[0] {
		case '@':
			h, ok := diff.ParseHunk([]byte(line))
			if !ok {
				return nil, fmt.Errorf("parse difference: invalid hunk %.80q", line)
			}
			from, to := before(h.From, h.Removed), before(h.To, h.Added)
			skip, old, latest, within = from-old, from, to, true
			list = append(list, Run{Same: true, Old: old, New: latest, Skip: skip})
			continue
		case ' ', '-', '+':
		default: // such as "\ No newline at end of file", and the header of the patch
			continue
		}
		if !within {
			continue
		}
		last := &list[len(list)-1]
		if same := line[0] == ' '; last.Same != same || line[0] == '-' && last.Came > 0 {
			list = append(list, Run{Same: same, Old: old, New: latest})
			last = &list[len(list)-1]
		}
		if line[0] != '+' {
			last.Gone++
			old++
		}
		if line[0] != '-' {
			last.Came++
			latest++
		}
	}
	return list, nil
}

// before returns the number of lines before a range of n lines that begins at a line, counted from 1. git names the
// line before an empty range.
func before(line, n int) int {
	if n == 0 {
		return line
	}
	return max(line-1, 0)
}
