package fetch

import (
	"context"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/fetch/readahead"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/prioritize"
)

const (
	// alongside bounds how many blobs of a window share the request of the blob that is read.
	alongside = 512
	// crawlAhead bounds the queued wants of a crawler, and so their memory.
	crawlAhead = 2 * pipeline.MaxCrawlBatch
	// slack is how many missing blobs a crawler may skip between two waits.
	slack = 8
	// maxLook bounds the number of files between two waits of one reader.
	maxLook = 2048
	// neighbourTime bounds how long a want is delayed by the search for its neighbours.
	neighbourTime = 5 * time.Millisecond
)

// neighbours returns the wants that share the request of the blob at path, most useful first. It returns none
// if the blob is in flight already. The walk for them ends after neighbourTime, so trees that have to be fetched make the window
// smaller.
func (v *RawView) neighbours(ctx context.Context, id object.ID, path string) pipeline.Neighbours {
	ctx, cancel := context.WithTimeout(ctx, neighbourTime)
	defer cancel()
	before := v.readerBefore(ctx, path)
	c := pipeline.Neighbours{Patience: pipeline.HedgeAfter}
	if before != nil {
		c.Patience = pipeline.HedgeCrawl
	}
	if v.store.fetcher.pipe.IsInFlight(id) {
		return c
	}
	p, dirOnly := v.ahead.Next(path, before, time.Now())
	window := p.Window
	if window >= readahead.WholeTree && !dirOnly {
		v.crawl(path)
		window = alongside
	}
	add := func(f file) bool {
		if v.missing(f.id) && !(window == readahead.FirstWindow && classOf(f) == prioritize.Media) {
			class := prioritize.Sibling
			if len(c.Wants) >= alongside {
				class = prioritize.Readahead
			}
			c.Wants = append(c.Wants, prioritize.Want{ID: f.id, Class: class, Path: f.path})
		}
		return len(c.Wants) < window
	}
	if dirOnly {
		v.walkDir(ctx, path, add)
	} else {
		v.store.trees.walkFrom(ctx, v.shown(), path, add)
	}
	v.ahead.Watch(p, c.Wants)
	return c
}

// walkDir visits the blobs of path's own directory that follow path.
func (v *RawView) walkDir(ctx context.Context, path string, visit func(file) bool) {
	dir := dirOf(path)
	entries, err := v.store.trees.directory(ctx, v.shown(), dir)
	if err != nil {
		return
	}
	passed := false
	for _, e := range entries {
		if passed && e.Mode.IsBlob() && !visit(file{e.ID, join(dir, e.Name), e.Mode}) {
			return
		}
		passed = passed || e.Name == path[strings.LastIndexByte(path, '/')+1:]
	}
}

// readerBefore returns the reader that probably waits for path: at most slack missing blobs, and at most maxLook files, lie between
// the file that it last waited for and path. It returns nil if there is no such reader.
func (v *RawView) readerBefore(ctx context.Context, path string) *readahead.Position {
	for _, p := range v.ahead.Positions() {
		if p.Path == path {
			continue
		}
		found, missing, looked := false, 0, 0
		v.store.trees.walkFrom(ctx, v.shown(), p.Path, func(f file) bool {
			if found = f.path == path; found {
				return false
			}
			looked++
			if v.missing(f.id) {
				missing++
			}
			return missing <= slack && looked <= maxLook
		})
		if found {
			return p
		}
	}
	return nil
}
