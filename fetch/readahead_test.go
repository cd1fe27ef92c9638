package fetch

import (
	"fmt"
	"testing"
	"time"
)

func TestWindowGrowsForACrawlerOnly(t *testing.T) {
	now := time.Unix(1000, 0)
	var crawler readahead
	var windows []int
	var before *position
	for i := range 4 {
		w, _ := crawler.next(fmt.Sprintf("d%d/file", i), before, now)
		windows = append(windows, w)
		before = &crawler.positions()[0]
	}
	if got := fmt.Sprint(windows); got != fmt.Sprint([]int{firstWindow, firstWindow * growth, wholeTree, wholeTree}) {
		t.Errorf("windows of a crawler: %s", got)
	}
	if n := len(crawler.positions()); n != 1 {
		t.Errorf("one crawler is followed as %d readers", n)
	}
	var builder readahead
	for i := range 100 {
		w, dirOnly := builder.next(fmt.Sprintf("d%d/file", i*37%100), nil, now)
		if w != firstWindow || !dirOnly {
			t.Errorf("jump %d got a window of %d, in its directory: %v", i, w, dirOnly)
		}
	}
	if n := len(builder.positions()); n != readers {
		t.Errorf("%d positions are kept", n)
	}
}

func TestOneDirectoryIsNoCrawl(t *testing.T) {
	var r readahead
	var before *position
	for range 5 {
		if _, dirOnly := r.next("dir/file", before, time.Unix(1000, 0)); !dirOnly {
			t.Error("reads of one directory look like a crawl")
		}
		before = &r.positions()[0]
	}
}
