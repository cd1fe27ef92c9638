package fetch

import (
	"bytes"
	"context"
	"strconv"

	"github.com/artifactfs/artifactfs/convert"
	"github.com/artifactfs/artifactfs/object"
)

// A reader of a directory of filtered files would download each of them alone. After smudgeAfter
// waits that skip hardly any file, the next files of the directory are smudged ahead: twice as many
// each time, at most smudgeFiles, and at most smudgeBytes as far as git-lfs pointers show their
// sizes. This is less than for blobs, since filtered contents are large.
const (
	smudgeAfter = 3
	smudgeFirst = 4
	smudgeFiles = 64
	smudgeBytes = 64 << 20
	smudgeSlack = 3 // files skipped between two waits
)

// smudging follows one reader that waits for filtered contents.
type smudging struct {
	last string // the last path that it waited for, or that was smudged ahead
	// waits counts the waits in this directory without a gap.
	waits int
	// window is the number of files that the last wait smudged ahead.
	window int
}

// waited records a wait at path, gap files after the edge; a negative gap is before it. It returns
// how many files to smudge ahead.
func (s *smudging) waited(path string, gap int) int {
	switch {
	// Another directory, or a gap, is a new reader: it must show its pattern again.
	case dirOf(path) != dirOf(s.last), gap > smudgeSlack, s.waits == 0:
		*s = smudging{last: path, waits: 1}
		return 0
	case gap < 0: // one of several concurrent readers
		return 0
	}
	s.last = path
	if s.waits++; s.waits < smudgeAfter {
		return 0
	}
	s.window = min(max(2*s.window, smudgeFirst), smudgeFiles)
	return s.window
}

// smudgeAhead starts the conversion of the files after path in its directory that the same process
// converts. Only filter processes convert several files together.
func (v *View) smudgeAhead(path string, r convert.Rule) {
	d, _ := r.Driver()
	if d.Process == "" {
		return
	}
	v.store.background(func(ctx context.Context) {
		v.conversions.mu.Lock()
		edge := v.conversions.smudging.last
		v.conversions.mu.Unlock()
		// filesBetween waits for missing trees, so conversions.mu is not held while it runs.
		gap := v.filesBetween(ctx, edge, path)
		v.conversions.mu.Lock()
		files := v.conversions.smudging.waited(path, gap)
		v.conversions.mu.Unlock()
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
			// The edge moves with each file, so that a wait at a file of this window counts as the
			// same reader.
			v.conversions.mu.Lock()
			v.conversions.smudging.last = f.path
			v.conversions.mu.Unlock()
			key := convertedID(f.id, rule, f.path)
			if _, here := v.store.blobs.Size(key); !here {
				v.smudge(Blob{ID: f.id, Path: f.path}, rule, key, true)
			}
			return true
		})
	})
}

// filesBetween counts the files of a directory between two of them. It returns -1 if the second
// does not follow the first.
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

// filteredSize estimates the size, in bytes, of a blob after filtering: the size in a git-lfs
// pointer, else its own. A blob that is not on this host counts as small, since it is probably a
// pointer.
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
