package fetch

import (
	"bytes"
	"context"
	"strconv"

	"github.com/artifactfs/artifactfs/convert"
	"github.com/artifactfs/artifactfs/fetch/treewalk"
	"github.com/artifactfs/artifactfs/object"
)

// Smudging is the conversion of contents by a filter such as git-lfs when a file is read. Without the code below, git-lfs would
// download the files of a directory one by one, each when it is read. If a reader has waited smudgeAfter times for filtered
// contents and has skipped at most smudgeSlack files each time, the next files of the directory are smudged before they are read.
// The number of these files doubles with each wait, up to smudgeFiles files and smudgeBytes bytes. The size in bytes is taken
// from the git-lfs pointers, which contain it. The limits are lower than those for blobs, because filtered contents are large.
const (
	smudgeAfter = 3
	smudgeFirst = 4
	smudgeFiles = 64
	smudgeBytes = 64 << 20
	smudgeSlack = 3 // number of files that a reader may skip between two waits
)

// smudging records the waits of one reader for filtered contents.
type smudging struct {
	last string // the edge: the last path that the reader waited for or that was smudged ahead, whichever is later
	// waits is the number of waits in this directory in which the reader skipped at most smudgeSlack files.
	waits int
	// window is the number of files that were smudged ahead after the last wait.
	window int
}

// waited records that a reader waited for the file at path. gap is the number of files between the edge (s.last) and path; it is
// negative if path precedes the edge. waited returns the number of files to smudge ahead.
func (s *smudging) waited(path string, gap int) int {
	switch {
	// A wait in another directory, or after a gap, is treated as the first wait of a new reader, for which no files are smudged ahead yet.
	case treewalk.DirOf(path) != treewalk.DirOf(s.last), gap > smudgeSlack, s.waits == 0:
		*s = smudging{last: path, waits: 1}
		return 0
	case gap < 0: // path precedes the edge, so another of several concurrent readers waits for path
		return 0
	}
	s.last = path
	if s.waits++; s.waits < smudgeAfter {
		return 0
	}
	s.window = min(max(2*s.window, smudgeFirst), smudgeFiles)
	return s.window
}

// smudgeAhead starts to convert files that follow path in the same directory and are converted by the same filter as path. For
// filters that start one program per file, instead of a long-running filter process, smudgeAhead does nothing.
func (v *View) smudgeAhead(path string, r convert.Rule) {
	d, _ := r.Driver()
	if d.Process == "" {
		return
	}
	v.store.tasks.Start(func(ctx context.Context) {
		v.conversions.mu.Lock()
		edge := v.conversions.smudging.last
		v.conversions.mu.Unlock()
		// The mutex is released because filesBetween waits for missing trees.
		gap := v.filesBetween(ctx, edge, path)
		v.conversions.mu.Lock()
		files := v.conversions.smudging.waited(path, gap)
		v.conversions.mu.Unlock()
		budget := int64(smudgeBytes)
		v.store.trees.WalkDir(ctx, v.Shown(), path, treewalk.Forward, func(f treewalk.File) bool {
			if files == 0 {
				return false
			}
			rule, ok := v.knownRule(f.ID, f.Path)
			if other, _ := rule.Driver(); !ok || other != d || f.Mode == object.ModeSymlink {
				return true
			}
			if budget -= v.filteredSize(f.ID); budget < 0 {
				return false
			}
			files--
			// The edge advances with each file, so that a later wait for a file of this window counts as a wait of the same reader.
			v.conversions.mu.Lock()
			v.conversions.smudging.last = f.Path
			v.conversions.mu.Unlock()
			key := convertedID(f.ID, rule, f.Path)
			if _, here := v.store.storage.blobs.Size(key); !here {
				v.smudge(Blob{ID: f.ID, Path: f.Path}, rule, key, true)
			}
			return true
		})
	})
}

// filesBetween returns the number of files between two paths of one directory, which are the parameters from and to. It returns
// -1 if to precedes from, equals from, or is in another directory.
func (v *View) filesBetween(ctx context.Context, from, to string) int {
	n, found := 0, false
	if treewalk.DirOf(from) == treewalk.DirOf(to) {
		v.store.trees.WalkDir(ctx, v.Shown(), from, treewalk.Forward, func(f treewalk.File) bool {
			if found = f.Path == to; !found {
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

// filteredSize estimates the size, in bytes, that a blob has after filtering. For a git-lfs pointer this is the size that the
// pointer contains, otherwise the size of the blob. For a blob that is not on this host it returns 0, because such a blob is
// probably a small pointer.
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
