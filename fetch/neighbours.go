package fetch

import (
	"context"
	"time"

	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/fetch/readahead"
	"github.com/artifactfs/artifactfs/fetch/treewalk"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/prioritize"
)

const (
	// alongside is the maximum number of blobs that readahead adds to the request for the blob that is read.
	alongside = 512
	// slack is how many missing blobs a reader may skip between two reads that wait for contents. If more missing blobs
	// are between two such reads, the second read is attributed to another reader.
	slack = 8
	// maxLook is how many files a reader may skip between two reads that wait for contents. Unlike slack, maxLook also
	// counts files whose blobs are on this host.
	maxLook = 1024
	// neighbourTime is the maximum time for which the request for a blob is delayed while its neighbours are searched.
	neighbourTime = 5 * time.Millisecond
)

// neighbours returns wants that are sent in the same request as the blob at path, the most useful first. The wants are
// for files that follow path in the tree, or precede it if the reader reads backward. If the blob is in flight already,
// or has just arrived, neighbours returns no wants. The search ends after neighbourTime, so it finds fewer wants if it
// has to wait for missing trees.
func (v *RawView) neighbours(ctx context.Context, id object.ID, path string) pipeline.Neighbours {
	ctx, cancel := context.WithTimeout(ctx, neighbourTime)
	defer cancel()
	if c, ok := v.Foreseen.After(ctx, id, path); ok {
		return c
	}
	before, o := v.readerBefore(ctx, path)
	c := pipeline.Neighbours{Patience: pipeline.HedgeAfter}
	scope, searched := readahead.Searched(ctx, path)
	if searched || before != nil {
		c.Patience = pipeline.HedgeCrawl
	}
	// If the blob is no longer in flight, it may have arrived since the reader has looked for it.
	if v.store.fetcher.pipe.IsInFlight(id) || !v.missing(id) {
		v.ahead.Move(before, path)
		return c
	}
	p, dirOnly := v.ahead.Next(path, before, o, time.Now())
	window := p.Window
	if searched {
		window, dirOnly = v.crawl(path, scope), false
	} else if window >= readahead.WholeTree && !dirOnly {
		window = v.crawl(path, p.Scope)
	}
	add := func(f treewalk.File) bool {
		if v.missing(f.ID) && !(window == readahead.FirstWindow && classOf(f) == prioritize.Media) {
			class := prioritize.Sibling
			if len(c.Wants) >= alongside {
				class = prioritize.Readahead
			}
			c.Wants = append(c.Wants, prioritize.Want{ID: f.ID, Class: class, Path: f.Path})
		}
		return len(c.Wants) < window
	}
	if dirOnly {
		v.store.trees.WalkDir(ctx, v.Shown(), path, o, add)
	} else {
		v.store.trees.WalkFrom(ctx, v.Shown(), path, o, add)
	}
	v.ahead.Watch(p, c.Wants)
	return c
}

// readerBefore returns the position of the reader that probably waits for path, and the order in which this reader
// reads: at most slack missing blobs and at most maxLook files are between path and the file for which this reader
// waited last. readerBefore returns nil if there is no such reader.
func (v *RawView) readerBefore(ctx context.Context, path string) (*readahead.Position, treewalk.Order) {
	for _, p := range v.ahead.Positions() {
		if p.Path == path {
			continue
		}
		for _, o := range []treewalk.Order{treewalk.Forward, treewalk.Backward} {
			found, missing, looked := false, 0, 0
			v.store.trees.WalkFrom(ctx, v.Shown(), p.Path, o, func(f treewalk.File) bool {
				if found = f.Path == path; found {
					return false
				}
				looked++
				if v.missing(f.ID) {
					missing++
				}
				return missing <= slack && looked <= maxLook
			})
			if found {
				return p, o
			}
		}
	}
	return nil, treewalk.Forward
}
