package annotate

import (
	"context"
	"fmt"
	"path"
	"slices"

	"github.com/artifactfs/artifactfs/git/diff"
	"github.com/artifactfs/artifactfs/git/object"
)

// State states how an annotated file or line was found in another tree.
type State string

// The states of an annotation.
const (
	Same  State = "same"  // the file has the path and the contents that it had when it was annotated
	Moved State = "moved" // the file has another path or other contents; all or some of the lines still exist
	// the file, or all of the lines, do not exist in the tree; Path and Blob are those of the file, if any
	Outdated State = "outdated"
	Unknown  State = "unknown" // objects that are needed to find the lines are not available
)

// Now is the position of an annotation in a tree. Path, Blob, Line and End have the meaning of the fields of Place.
// Line and End are 0 if State is Outdated. All four fields are empty if State is Unknown.
type Now struct {
	State     State
	Path      string
	Blob      object.ID
	Line, End int
}

// Files reads trees and compares file contents for the function Where.
type Files interface {
	// Entry returns the entry of a path in a tree; its mode is 0 if the tree does not contain the path.
	Entry(ctx context.Context, tree object.ID, path string) (object.TreeEntry, error)
	// Renamed returns the path in the tree to of a file that has the given path and contents in the tree from. It
	// returns "" if the file was removed.
	Renamed(ctx context.Context, from, to object.ID, path string, blob object.ID) (string, error)
	// Hunks returns the differences between two blobs. The result text is false if one of them is not a text.
	Hunks(ctx context.Context, from, to object.ID) (hunks []diff.Hunk, text bool, err error)
}

// File is a file in a tree.
type File struct {
	Path string
	Blob object.ID
}

// Likely sorts the files that were added between two trees by the likelihood that a removed file, whose path is name,
// was renamed to them: first files with the same file name, then those with the same extension. The result same is the
// path of the first file with the contents blob, "" if there is none.
func Likely(added []File, name string, blob object.ID) (sorted []File, same string) {
	distance := func(f File) int {
		switch {
		case path.Base(f.Path) == path.Base(name):
			return 0
		case path.Ext(f.Path) == path.Ext(name):
			return 1
		}
		return 2
	}
	sorted = slices.Clone(added)
	slices.SortStableFunc(sorted, func(a, b File) int { return distance(a) - distance(b) })
	if i := slices.IndexFunc(sorted, func(f File) bool { return f.Blob == blob }); i >= 0 {
		same = sorted[i].Path
	}
	return sorted, same
}

// Where returns the position of an annotated file, or of its annotated lines, in another tree. It returns the errors of
// files, and ErrInvalid if the ids in the parameter on are invalid.
func Where(ctx context.Context, files Files, on Place, tree object.ID) (Now, error) {
	blob, err := object.ParseID(on.Blob)
	if err != nil {
		return Now{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	from, err := object.ParseID(on.Tree)
	if err != nil {
		return Now{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	now := Now{State: Same, Path: on.Path, Blob: blob, Line: on.Line, End: on.End}
	e, err := files.Entry(ctx, tree, on.Path)
	if err != nil {
		return Now{}, err
	}
	if !e.Mode.IsBlob() {
		now.State = Moved
		if now.Path, err = files.Renamed(ctx, from, tree, on.Path, blob); err != nil {
			return Now{}, err
		}
		if now.Path == "" {
			return Now{State: Outdated}, nil
		}
		if e, err = files.Entry(ctx, tree, now.Path); err != nil {
			return Now{}, err
		}
	}
	if e.ID == blob {
		return now, nil
	}
	now.State, now.Blob = Moved, e.ID
	if on.Line == 0 {
		return now, nil
	}
	hunks, text, err := files.Hunks(ctx, blob, e.ID)
	if err != nil {
		return Now{}, err
	}
	var ok bool
	if now.Line, now.End, ok = mapRange(hunks, on.Line, on.End); !text || !ok {
		now.State, now.Line, now.End = Outdated, 0, 0
	}
	return now, nil
}

// mapRange returns the lines of the new text that correspond to the lines first to last of the old text. If some of
// these lines were removed or changed, it returns the range from the first to the last line that still exists; ok is
// false if none exists.
func mapRange(hunks []diff.Hunk, first, last int) (from, to int, ok bool) {
	shift := 0
	next := 1 // first line of the old text after the previous hunk
	keep := func(low, high int) {
		low, high = max(low, first), min(high, last)
		if low > high {
			return
		}
		if !ok {
			from, ok = low+shift, true
		}
		to = high + shift
	}
	for _, h := range hunks {
		begin := h.From
		if h.Removed == 0 {
			begin++ // the new lines follow line From
		}
		keep(next, begin-1)
		shift += h.Added - h.Removed
		next = begin + h.Removed
	}
	keep(next, last)
	return from, to, ok
}
