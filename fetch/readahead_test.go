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
	for i := range 4 {
		w, _ := crawler.next(fmt.Sprintf("d%d/file", i), i > 0, now)
		windows = append(windows, w)
	}
	if got := fmt.Sprint(windows); got != fmt.Sprint([]int{firstWindow, firstWindow * growth, wholeTree, wholeTree}) {
		t.Errorf("windows of a crawler: %s", got)
	}
	var builder readahead
	for i := range 100 {
		if w, _ := builder.next(fmt.Sprintf("d%d/file", i*37%100), false, now); w != firstWindow {
			t.Errorf("jump %d got a window of %d", i, w)
		}
	}
}

func TestOneDirectoryIsNoCrawl(t *testing.T) {
	var r readahead
	for i := range 5 {
		if _, dirOnly := r.next("dir/file", i > 0, time.Unix(1000, 0)); !dirOnly {
			t.Error("reads of one directory look like a crawl")
		}
	}
}
