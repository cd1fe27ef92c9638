package annotate

import (
	"context"
	"errors"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// tree implements Contents. It has the entries of a tree by path, and one text as the contents of all files.
type tree struct {
	entries map[string]object.TreeEntry
	text    string
	failed  error
}

func (f tree) Entry(_ context.Context, _ object.ID, path string) (object.TreeEntry, error) {
	return f.entries[path], nil
}

func (f tree) Content(context.Context, object.ID) ([]byte, error) { return []byte(f.text), f.failed }

func TestOn(t *testing.T) {
	files := tree{text: "one\ntwo\nthree\n", entries: map[string]object.TreeEntry{
		"f": {Mode: object.ModeExec, ID: id("1")}, "d": {Mode: object.ModeDir, ID: id("2")}}}
	at := Place{Checkpoint: "01M80Q4Z50EZKC5YR3HTMPRYYQ"}
	for _, c := range []struct {
		first, last, line, end int
		quote                  string
	}{{0, 0, 0, 0, ""}, {0, 9, 0, 0, ""}, {2, 0, 2, 2, "two"}, {2, 3, 2, 3, "two\nthree"}} {
		got, err := On(t.Context(), files, at, id("3"), "f", c.first, c.last)
		want := Place{at.Checkpoint, "", id("3").String(), "f", id("1").String(), c.line, c.end, c.quote}
		if err != nil || got != want {
			t.Errorf("lines %d to %d: got %+v, %v, want %+v", c.first, c.last, got, err, want)
		}
	}
	large := files
	large.failed = ErrLines
	for what, c := range map[string]struct {
		files       tree
		path        string
		first, last int
		want        error
	}{
		"no file": {files, "x", 0, 0, ErrNoFile}, "directory": {files, "d", 0, 0, ErrNotFile},
		"large file":         {large, "f", 1, 0, ErrLines},
		"line after the end": {files, "f", 3, 4, ErrInvalid}, "line before the beginning": {files, "f", -1, 0, ErrInvalid},
	} {
		if _, err := On(t.Context(), c.files, at, id("3"), c.path, c.first, c.last); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", what, err, c.want)
		}
	}
	if _, err := On(t.Context(), large, at, id("3"), "f", 0, 0); err != nil {
		t.Errorf("large file without lines: got %v", err)
	}
}

func TestAdd(t *testing.T) {
	file, made, thread, err := Add(nil, Act{Op: Open, Actor: "ann", On: &Place{}, Text: "first"}, start)
	if err != nil || thread.ID != made.ID || len(thread.Acts) != 1 {
		t.Fatalf("new thread: got %+v, %+v, %v", made, thread, err)
	}
	one := made.ID
	_, made, thread, err = Add(file, Act{Op: Resolve, Actor: "bob", Thread: one[:20]}, start)
	if err != nil || made.Thread != one || !thread.Resolved || len(thread.Acts) != 2 {
		t.Errorf("resolved thread: got %+v, %+v, %v", made, thread, err)
	}
	if _, _, _, err = Add(file, Act{Op: Reply, Actor: "bob", Thread: "7ZZ", Text: "x"}, start); !errors.Is(err,
		ErrNoThread) {
		t.Errorf("reply to no thread: got %v", err)
	}
}
