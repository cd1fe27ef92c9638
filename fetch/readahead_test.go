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
	if got := fmt.Sprint(windows); got != fmt.Sprint([]int{32, 256, 2048, 2048}) {
		t.Errorf("windows of a crawler: %s", got)
	}
	var builder readahead
	for i := range crowd - 1 {
		if w, _ := builder.next(fmt.Sprintf("d%d/file", i*7%11), false, now); w != firstWindow && i < crowd-1 {
			t.Errorf("jump %d got a window of %d", i, w)
		}
	}
	var slow readahead
	for i := range 3 * crowd {
		if w, _ := slow.next(fmt.Sprintf("d%d/file", i), false, now.Add(time.Duration(i)*2*crowdTime)); w != firstWindow {
			t.Errorf("rare read %d got a window of %d", i, w)
		}
	}
}

func TestOneDirectoryIsNoCrawl(t *testing.T) {
	var r readahead
	for i := range 5 {
		if _, sameDir := r.next("dir/file", i > 0, time.Unix(1000, 0)); !sameDir {
			t.Error("reads of one directory look like a crawl")
		}
	}
}
