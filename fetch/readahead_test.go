package fetch

import (
	"fmt"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/prioritize"
)

var now = time.Unix(1000, 0)

// miss is a reader's miss in directory i behind its last one; the window brings ten blobs, of which it looks at some.
func miss(r *readahead, i int, before *position, looksAt int) (p *position, dirOnly bool) {
	p, dirOnly = r.next(fmt.Sprintf("d%d/file", i), before, now)
	window := make([]prioritize.Want, 10)
	for j := range window {
		window[j].ID = object.MustID(fmt.Sprintf("%040x", 100*i+j+1))
	}
	r.watch(p, window)
	for _, w := range window[:looksAt] {
		r.looked(w.ID)
		r.looked(w.ID)
	}
	return p, dirOnly
}

func TestWindowGrowsForACrawler(t *testing.T) {
	var r readahead
	var windows []int
	var p *position
	for i := range 4 {
		p, _ = miss(&r, i, p, 10)
		windows = append(windows, p.window)
	}
	if got := fmt.Sprint(windows); got != fmt.Sprint([]int{firstWindow, firstWindow * growth, wholeTree, wholeTree * growth}) {
		t.Errorf("windows of a crawler: %s", got)
	}
	if n := len(r.positions()); n != 1 {
		t.Errorf("one crawler is followed as %d readers", n)
	}
}

// A script that reads one file in each directory, in order, leaves nothing out either: windows bring the others.
func TestWindowStaysForWhoDoesNotLook(t *testing.T) {
	var r readahead
	var p *position
	for i := range 20 {
		var dirOnly bool
		if p, dirOnly = miss(&r, i, p, 2); p.window != firstWindow || !dirOnly {
			t.Errorf("miss %d got a window of %d, in its directory: %v", i, p.window, dirOnly)
		}
	}
	if len(r.watched) > 10 {
		t.Errorf("%d blobs are still watched", len(r.watched))
	}
}

func TestWindowStaysForJumps(t *testing.T) {
	var r readahead
	for i := range 100 {
		if p, dirOnly := miss(&r, i*37%100, nil, 10); p.window != firstWindow || !dirOnly {
			t.Errorf("jump %d got a window of %d, in its directory: %v", i, p.window, dirOnly)
		}
	}
	if n := len(r.positions()); n != readers {
		t.Errorf("%d positions are kept", n)
	}
}

func TestOneDirectoryIsNoCrawl(t *testing.T) {
	var r readahead
	var p *position
	for range 5 {
		var dirOnly bool
		if p, dirOnly = r.next("dir/file", p, now); !dirOnly {
			t.Error("reads of one directory look like a crawl")
		}
	}
}
