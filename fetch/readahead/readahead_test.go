package readahead

import (
	"fmt"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/fetch/treewalk"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/prioritize"
)

var now = time.Unix(1000, 0)

// miss records a reader's miss in directory i, after the last one. The window fetches ten blobs, and the reader reads
// some of them.
func miss(r *Tracker, i int, before *Position, looksAt int) (p *Position, dirOnly bool) {
	p, dirOnly = r.Next(fmt.Sprintf("d%d/file", i), before, treewalk.Forward, now)
	window := make([]prioritize.Want, 10)
	for j := range window {
		window[j].ID = object.MustID(fmt.Sprintf("%040x", 100*i+j+1))
	}
	r.Watch(p, window)
	for _, w := range window[:looksAt] {
		r.Looked(w.ID)
		r.Read(w.ID)
		r.Read(w.ID)
	}
	return p, dirOnly
}

func TestWindowGrowsForACrawler(t *testing.T) {
	var r Tracker
	var windows []int
	var p *Position
	for i := range 4 {
		p, _ = miss(&r, i, p, 10)
		windows = append(windows, p.Window)
	}
	if got := fmt.Sprint(windows); got != fmt.Sprint([]int{FirstWindow, FirstWindow * growth, WholeTree,
		WholeTree * growth}) {
		t.Errorf("windows of a crawler: got %s", got)
	}
	if n := len(r.Positions()); n != 1 {
		t.Errorf("one crawler is tracked as %d readers", n)
	}
}

// A script that reads one file in each directory, in order, also counts as reading all files, because windows fetch the
// others.
func TestWindowStaysForWhoDoesNotLook(t *testing.T) {
	var r Tracker
	var p *Position
	for i := range 20 {
		var dirOnly bool
		if p, dirOnly = miss(&r, i, p, 2); p.Window != FirstWindow || !dirOnly {
			t.Errorf("miss %d: got a window of %d, only in its directory: %v", i, p.Window, dirOnly)
		}
	}
	if len(r.watched) > 10 {
		t.Errorf("watched blobs: got %d, want 0", len(r.watched))
	}
}

// A program that jumps between directories and looks at half of the fetched files does not read everything.
func TestWindowStaysForJumps(t *testing.T) {
	var r Tracker
	for i := range 100 {
		if p, dirOnly := miss(&r, i*37%100, nil, 5); p.Window != FirstWindow || !dirOnly {
			t.Errorf("jump %d: got a window of %d, only in its directory: %v", i, p.Window, dirOnly)
		}
	}
	if n := len(r.Positions()); n != readers {
		t.Errorf("kept positions: got %d", n)
	}
}

// A program whose threads take directories from each other, and that looks at all fetched files, reads everything.
func TestWindowGrowsForASweep(t *testing.T) {
	var r Tracker
	for i := range 100 {
		p, dirOnly := miss(&r, i*37%100, nil, 10)
		if sweeps := 10*i >= leastSwept+10*readers/2; sweeps && (p.Window != WholeTree || p.Scope != "" || dirOnly) {
			t.Errorf("jump %d: got a window of %d in %q, only in its directory: %v", i, p.Window, p.Scope, dirOnly)
		}
		if i < leastDirs && p.Window != FirstWindow {
			t.Errorf("jump %d: got a window of %d", i, p.Window)
		}
	}
}

// A program that looks at all files and reads few, such as git status, does not read everything.
func TestLooksAreNoSweep(t *testing.T) {
	var r Tracker
	for i := range 100 {
		p, _ := miss(&r, i*37%100, nil, 0)
		for id := range r.watched {
			r.Looked(id)
		}
		if p.Window != FirstWindow {
			t.Errorf("jump %d: got a window of %d", i, p.Window)
		}
	}
}

func TestOneDirectoryIsNoCrawl(t *testing.T) {
	var r Tracker
	var p *Position
	for range 5 {
		var dirOnly bool
		if p, dirOnly = r.Next("dir/file", p, treewalk.Forward, now); !dirOnly {
			t.Error("reads of one directory count as a crawl")
		}
	}
}
