package fetch

import (
	"bytes"
	"context"
	"strconv"

	"github.com/artifactfs/artifactfs/convert"
	"github.com/artifactfs/artifactfs/object"
)

// Without the following, a filter such as git-lfs would download the files of a directory one by one, each when it is read.
// After smudgeAfter waits of a reader that skips hardly any file, the next files of the directory are smudged (converted by
// the filter) ahead of the reader: twice as many each time, at most smudgeFiles, and at most smudgeBytes as far as git-lfs
// pointers show their sizes. The limits are lower than for blobs, because filtered contents are large.
const (
	smudgeAfter = 3
	smudgeFirst = 4
	smudgeFiles = 64
	smudgeBytes = 64 << 20
	smudgeSlack = 3 // files skipped between two waits
)

// smudging follows one reader that waits for filtered contents.
type smudging struct {
	last string // the edge: the last path that the reader waited for, or that was smudged ahead
	// waits counts the waits in this directory without a gap.
	waits int
	// window is the number of files that the last wait smudged ahead.
	window int
}

// waited records a wait for the file at path. gap is the number of files between the edge (s.last) and path; it is negative if
// path precedes the edge. waited returns the number of files to smudge ahead.
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

// smudgeAhead starts the conversion of files that follow path in the same directory and that the same filter process converts.
// Only filter processes convert several files together.
func (v *View) smudgeAhead(path string, r convert.Rule) {
	d, _ := r.Driver()
	if d.Process == "" {
		return
	}
	v.store.tasks.start(func(ctx context.Context) {
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
			if _, here := v.store.storage.blobs.Size(key); !here {
				v.smudge(Blob{ID: f.id, Path: f.path}, rule, key, true)
			}
			return true
		})
	})
}

// filesBetween returns the number of files between the paths from and to, which are in one directory. It returns -1 if to does
// not follow from.
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
	c, ok := v.store.storage.content(id)
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
