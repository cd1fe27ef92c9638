package fetch

import (
	"bytes"
	"context"
	"strconv"

	"github.com/artifactfs/artifactfs/convert"
	"github.com/artifactfs/artifactfs/object"
)

// A reader that goes through a directory of filtered files would have each of them downloaded by itself. Once it has
// waited smudgeAfter times, leaving hardly any file out, what comes next in the directory is smudged along with what it
// waits for: twice as much each time, but never more than smudgeFiles, nor, as far as git-lfs pointers tell,
// smudgeBytes. Less is done than for blobs, since filtered contents are large.
const (
	smudgeAfter = 3
	smudgeFirst = 4
	smudgeFiles = 64
	smudgeBytes = 64 << 20
	smudgeSlack = 3 // files left out between two waits
)

// smudging follows one reader that waits for filtered contents.
type smudging struct {
	edge   string // the last path that it waited for, or that was smudged ahead of it
	waits  int
	window int
}

// waited notes a wait at path, gap files behind the edge; negative: before it. It gives how many files to smudge ahead.
func (s *smudging) waited(path string, gap int) int {
	switch {
	case dirOf(path) != dirOf(s.edge), gap > smudgeSlack, s.waits == 0:
		*s = smudging{edge: path, waits: 1}
		return 0
	case gap < 0: // one of several readers side by side
		return 0
	}
	s.edge = path
	if s.waits++; s.waits < smudgeAfter {
		return 0
	}
	s.window = min(max(2*s.window, smudgeFirst), smudgeFiles)
	return s.window
}

// smudgeAhead begins what comes after path in its directory and goes through the same process. Only processes take
// contents together.
func (v *View) smudgeAhead(path string, r convert.Rule) {
	d, _ := r.Driver()
	if d.Process == "" {
		return
	}
	v.store.background(func(ctx context.Context) {
		v.mu.Lock()
		edge := v.smudging.edge
		v.mu.Unlock()
		gap := v.filesBetween(ctx, edge, path)
		v.mu.Lock()
		files := v.smudging.waited(path, gap)
		v.mu.Unlock()
		budget := int64(smudgeBytes)
		v.walkDir(ctx, path, func(f file) bool {
			if files == 0 {
				return false
			}
			rule, ok := v.knownRule(f.id, f.path)
			if other, _ := rule.Driver(); !ok || other != d || f.mode == object.ModeSymlink {
				return true
			}
			if budget -= v.filteredSize(f.id); budget < 0 {
				return false
			}
			files--
			v.mu.Lock()
			v.smudging.edge = f.path
			v.mu.Unlock()
			key := convertedID(f.id, rule, f.path)
			if _, here := v.store.blobs.Size(key); !here {
				v.smudge(Blob{ID: f.id, Path: f.path}, rule, key, true)
			}
			return true
		})
	})
}

// filesBetween counts the files of a directory between two of them; -1 if the second does not come after the first.
func (v *View) filesBetween(ctx context.Context, from, to string) int {
	n, found := 0, false
	if dirOf(from) == dirOf(to) {
		v.walkDir(ctx, from, func(f file) bool {
			if found = f.path == to; !found {
				n++
			}
			return !found
		})
	}
	if !found {
		return -1
	}
	return n
}

// filteredSize guesses what a filter makes of a blob: what a git-lfs pointer says, else its own size. A blob that is not
// here counts as small: a pointer, probably.
func (v *View) filteredSize(id object.ID) int64 {
	c, ok := v.store.content(id)
	if !ok {
		return 0
	}
	defer c.Release()
	head := make([]byte, min(c.Size(), 1<<10))
	if _, err := c.ReadAt(head, 0); err != nil {
		return c.Size()
	}
	if _, size, ok := bytes.Cut(head, []byte("\nsize ")); ok {
		digits, _, _ := bytes.Cut(size, []byte("\n"))
		if n, err := strconv.ParseInt(string(digits), 10, 64); err == nil && n > 0 {
			return n
		}
	}
	return c.Size()
}
