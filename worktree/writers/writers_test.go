package writers

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// sorted returns the nodes of a Set in ascending order.
func sorted(w *Set) []Node { return slices.Sorted(slices.Values(w.List())) }

func TestSetSurvivesItsProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "writing")
	var first Set
	if err := first.Open(disk.OS, path, false); err != nil {
		t.Fatal(err)
	}
	for _, n := range []Node{7, 3, 9, 3} {
		first.Add(n)
	}
	first.Forget(9)
	if got := sorted(&first); !slices.Equal(got, []Node{3, 7}) {
		t.Errorf("files of the first process: got %v, want 3 and 7", got)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		continued bool
		want      []Node
	}{{true, []Node{3, 7}}, {false, nil}} {
		var next Set
		if err := next.Open(disk.OS, path, c.continued); err != nil {
			t.Fatal(err)
		}
		if got := sorted(&next); !slices.Equal(got, c.want) {
			t.Errorf("files of the next process, continued %v: got %v, want %v", c.continued, got, c.want)
		}
		if err := next.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestSettle(t *testing.T) {
	var w Set
	if err := w.Open(disk.OS, filepath.Join(t.TempDir(), "writing"), false); err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	w.Add(1)
	w.Add(2)
	old := w.since[1]
	old.at = time.Now().Add(-2 * settling)
	w.since[1] = old
	w.Settle([]Node{1, 2})
	if got := w.List(); !slices.Equal(got, []Node{2}) {
		t.Errorf("files after Settle: got %v, want only 2, to which a program has just begun to write", got)
	}
	w.Add(3) // takes the slot of 1
	if w.used != 2 {
		t.Errorf("slots in use: got %d, want 2", w.used)
	}
}

func TestZeroSet(t *testing.T) {
	var w Set
	w.Forget(1)
	w.Settle([]Node{1})
	if list := w.List(); len(list) != 0 {
		t.Errorf("files of the zero Set: got %v, want none", list)
	}
	if err := w.Close(); err != nil {
		t.Errorf("close the zero Set: got %v", err)
	}
}
