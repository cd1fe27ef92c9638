package fetch

import (
	"bytes"
	"cmp"
	"context"
	"strconv"

	"github.com/artifactfs/artifactfs/fetch/treewalk"
	"github.com/artifactfs/artifactfs/git/convert"
	"github.com/artifactfs/artifactfs/git/object"
)

// smudgeBytes is the maximum number of bytes that are smudged ahead after one wait. The size is taken from the git-lfs
// pointers, which contain it.
const smudgeBytes = 64 << 20

// smudgeAhead starts to convert files that follow path in the same directory and are converted by the same filter as
// path. For filters that start one program per file, instead of a long-running filter process, smudgeAhead does
// nothing.
func (v *View) smudgeAhead(path string, r convert.Rule) {
	d, _ := r.Driver()
	if d.Process == "" {
		return
	}
	v.store.tasks.Start(func(ctx context.Context) {
		v.conversions.mu.Lock()
		edge := v.conversions.smudging.Edge
		v.conversions.mu.Unlock()
		// The mutex is released because filesBetween waits for missing trees.
		gap := v.filesBetween(ctx, edge, path)
		v.conversions.mu.Lock()
		files := v.conversions.smudging.Waited(path, gap)
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
			// The edge advances with each file, so that a later wait for a file of this window counts as a wait of the same
			// reader.
			v.conversions.mu.Lock()
			v.conversions.smudging.Edge = f.Path
			v.conversions.mu.Unlock()
			key := v.resultsOf(f.ID, rule, f.Path)
			if _, here := v.store.storage.resultSize(key); !here {
				v.smudge(Blob{ID: f.ID, Path: f.Path}, rule, key, cmp.Or(key.shared, key.own), true)
			}
			return true
		})
	})
}

// filesBetween returns the number of files between two paths of one directory, which are the parameters from and to. It
// returns -1 if to precedes from, equals from, or is in another directory.
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

// filteredSize estimates the size, in bytes, that a blob has after filtering. For a git-lfs pointer this is the size
// that the pointer contains, otherwise the size of the blob. For a blob that is not on this host it returns 0, because
// such a blob is probably a small pointer.
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
