package annotate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session/transcript"
)

// MaxLined is the maximum size in bytes of a file whose lines can be annotated. Git on a server compares no larger
// files, so it could not follow the lines.
const MaxLined = 16 << 20

var (
	// ErrNoFile means that the tree of a new thread does not contain its file.
	ErrNoFile = errors.New("checkpoint or commit does not contain this file")
	// ErrNotFile means that the path of a new thread is not that of a file.
	ErrNotFile = errors.New("path is a directory or a submodule, not a file")
	// ErrLines means that the file of a new thread is larger than MaxLined.
	ErrLines = errors.New("file is larger than 16 MiB: its lines cannot be annotated")
)

// Contents reads trees and file contents for the function On.
type Contents interface {
	// Entry returns the entry of a path in a tree; its mode is 0 if the tree does not contain the path.
	Entry(ctx context.Context, tree object.ID, path string) (object.TreeEntry, error)
	// Content returns the contents of a file, and ErrLines if it is larger than MaxLined.
	Content(ctx context.Context, blob object.ID) ([]byte, error)
}

// On returns the Place of a file in a tree, or of the lines first to last of the file. The parameter at is the Place of
// the checkpoint or commit that has the tree; On sets its fields about the file. first is 0 for the whole file, and
// last is 0 for one line.
func On(ctx context.Context, files Contents, at Place, tree object.ID, path string, first, last int) (Place, error) {
	e, err := files.Entry(ctx, tree, path)
	switch {
	case err != nil:
		return at, err
	case e.Mode == 0:
		return at, ErrNoFile
	case !e.Mode.IsBlob():
		return at, ErrNotFile
	}
	if at.Tree, at.Path, at.Blob = tree.String(), path, e.ID.String(); first == 0 {
		return at, nil
	}
	at.Line, at.End = first, max(first, last)
	text, err := files.Content(ctx, e.ID)
	if err != nil {
		return at, err
	}
	if n := Lines(text); first < 0 || at.End > n {
		return at, fmt.Errorf("%w: line %d of a file of %d lines", ErrInvalid, at.End, n)
	}
	at.Quote, _ = transcript.Redact(Quote(text, at.Line, at.End))
	return at, nil
}

// Add returns the contents of an annotations file with one more act, the act, and its thread. Unless the act begins a
// thread, a.Thread is the id of an act of the thread, or the beginning of the id. Add returns the errors of Find and
// Append.
func Add(file []byte, a Act, now time.Time) ([]byte, Act, Thread, error) {
	if a.Op != Open {
		t, err := Find(Threads(Parse(file)), a.Thread)
		if err != nil {
			return nil, a, t, err
		}
		a.Thread = t.ID
	}
	file, made, err := Append(file, a, now)
	if err != nil {
		return nil, made, Thread{}, err
	}
	t, err := Find(Threads(Parse(file)), made.ID)
	return file, made, t, err
}
