package annotate

import (
	"bytes"
	"context"
	"fmt"

	"github.com/artifactfs/artifactfs/git/object"
)

// State says how an annotated file or line was found in another tree.
type State string

// The states of an annotation.
const (
	Same     State = "same"     // the tree has the same contents at the same path
	Moved    State = "moved"    // the file has another path or other contents; all or some of the lines still exist
	Outdated State = "outdated" // the file, or all of the lines, do not exist in the tree; Path and Blob are those of the file, if any
	Unknown  State = "unknown"  // objects that are needed to find the lines are not available
)

// Now is the position of an annotation in a tree. Path, Blob, Line and End have the meaning of the fields of Place. Line and
// End are 0 if State is Outdated, and all are empty if it is Unknown.
type Now struct {
	State     State
	Path      string
	Blob      object.ID
	Line, End int
}

// Files reads trees and contents for Where.
type Files interface {
	// Entry returns the entry of a path in a tree; its mode is 0 if the tree does not contain the path.
	Entry(ctx context.Context, tree object.ID, path string) (object.TreeEntry, error)
	// Renamed returns the path that a file has in the tree to, if the file has the path in the parameter path, and the contents blob,
	// in the tree from, and was renamed between the two. It returns "" if the file was removed.
	Renamed(ctx context.Context, from, to object.ID, path string, blob object.ID) (string, error)
	// Hunks returns the differences between two contents. The result text is false if they are not texts.
	Hunks(ctx context.Context, from, to object.ID) (hunks []Hunk, text bool, err error)
}

// Where returns the position of a place in a tree. The place must be a file or lines of a file. Errors are those of files.
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

// Hunk is one difference between two texts: Removed lines, the first of which is line From of the old text, were replaced by Added
// lines of the new text. If Removed is 0, the new lines follow line From.
type Hunk struct{ From, Removed, Added int }

// ParseHunks returns the hunks in the output of `git diff -U0` for two different contents. The result text is false if the output
// has no hunk, because the contents are not texts.
func ParseHunks(diff []byte) (hunks []Hunk, text bool) {
	for line := range bytes.Lines(diff) {
		var h Hunk
		var to int
		rest, ok := bytes.CutPrefix(line, []byte("@@ -"))
		if !ok {
			continue
		}
		if rest, ok = count(rest, &h.From, &h.Removed); !ok {
			continue
		}
		if rest, ok = bytes.CutPrefix(rest, []byte(" +")); !ok {
			continue
		}
		if rest, ok = count(rest, &to, &h.Added); ok && bytes.HasPrefix(rest, []byte(" @@")) {
			hunks = append(hunks, h)
		}
	}
	return hunks, len(hunks) > 0
}

// count parses "LINE" or "LINE,COUNT" at the beginning of text, and returns the rest. Without a count, it is 1.
func count(text []byte, line, n *int) (rest []byte, ok bool) {
	if rest, ok = number(text, line); !ok {
		return rest, false
	}
	*n = 1
	if after, more := bytes.CutPrefix(rest, []byte(",")); more {
		return number(after, n)
	}
	return rest, true
}

// number parses decimal digits at the beginning of text, and returns the rest. It returns false if there is none, or if the number is
// too large for a line.
func number(text []byte, n *int) (rest []byte, ok bool) {
	const most = 1 << 31
	*n = 0
	for len(text) > 0 && text[0] >= '0' && text[0] <= '9' && *n < most {
		*n = *n*10 + int(text[0]-'0')
		text, ok = text[1:], true
	}
	return text, ok && *n < most
}

// mapRange returns the lines of the new text that the lines first to last of the old text became. If some of them were removed or
// changed, it returns the range from the first to the last of the others, and false if there are no others.
func mapRange(hunks []Hunk, first, last int) (from, to int, ok bool) {
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
