package fetch

import (
	"context"
	"errors"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/fetch/readahead"
	"github.com/artifactfs/artifactfs/fetch/treewalk"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/internal/collector"
	"github.com/artifactfs/artifactfs/prioritize"
)

const (
	// crawlAhead is the maximum number of wants that are queued while RawView.crawl adds more. It limits the memory for
	// these wants.
	crawlAhead = 2 * pipeline.MaxCrawlBatch
	// bulkTries is the maximum number of bulk requests of one crawl. A second one is sent if the answer to the first was
	// broken early.
	bulkTries = 2
)

// crawl starts a goroutine that requests all missing blobs below the directory scope ("" is the root), which contains
// path. It is called for a reader that reads everything. A directory of which nearly nothing is on this host is
// requested as a whole. The other blobs are requested by their ids: first those after path, then those before path;
// path may be empty. If such a goroutine is running for this view, crawl does not start another one. crawl returns the
// number of blobs to request together with the blob at path, which is low if a bulk request probably fetches the
// others.
func (v *RawView) crawl(path, scope string) (window int) {
	if path != "" { // path is the path of a blob for which a reader waits
		v.store.fetcher.pipe.StartCrawl()
	}
	window = alongside
	if v.store.fetcher.bulks.MayTry(v.bulkWant(&readahead.Dir{ID: v.Shown()})) {
		window = readahead.FirstWindow
	}
	if v.crawling.Swap(true) {
		return window
	}
	started := v.store.tasks.Start(func(ctx context.Context) {
		defer v.crawling.Store(false)
		if !v.fetchWhole(ctx, scope) {
			return
		}
		add := func(f treewalk.File) bool {
			if scope != "" && !strings.HasPrefix(f.Path, scope+"/") {
				return false
			}
			if f.Path != path && v.missing(f.ID) {
				v.store.fetcher.pipe.Queue([]prioritize.Want{{ID: f.ID, Class: prioritize.Readahead, Path: f.Path}})
			}
			return v.store.fetcher.pipe.AwaitRoom(ctx, crawlAhead)
		}
		if path != "" {
			v.store.trees.WalkFrom(ctx, v.Shown(), path, treewalk.Forward, add)
		}
		if dir, err := v.store.trees.Find(ctx, v.Shown(), scope); err == nil {
			v.store.trees.Walk(ctx, dir, scope, add)
		}
	})
	if !started {
		v.crawling.Store(false)
	}
	return window
}

// Searches reports whether the process of the request ctx, which lists the directory at path, is a program that reads
// all files below some directories (ok), and whether path is one of these directories (target). If it is, Searches
// starts requests for their contents.
func (v *RawView) Searches(ctx context.Context, path string) (target, ok bool) {
	target, ok = readahead.Searches(ctx, path)
	if target {
		v.crawl("", path)
	}
	return target, ok
}

// Crawled reports whether the goroutine of crawl is requesting the rest of the tree for a reader that reads everything.
func (v *RawView) Crawled() bool { return v.crawling.Load() }

// noteSearch calls crawl if a search program reads a missing blob. It is called before
// the program waits for the size or for .gitattributes files.
func (v *RawView) noteSearch(ctx context.Context, b Blob) {
	if v.crawling.Load() || !v.missing(b.ID) {
		return
	}
	if scope, ok := readahead.Searched(ctx, b.Path); ok {
		v.crawl(b.Path, scope)
	}
}

// fetchWhole requests the directories at or below scope that readahead.Choose selects, and returns when the answer has
// ended. Blobs that did not arrive stay missing, so the caller requests them by their ids. It returns false if nothing
// has to be requested.
func (v *RawView) fetchWhole(ctx context.Context, scope string) (missing bool) {
	f := v.store.fetcher
	for range bulkTries {
		tree, err := v.store.trees.Find(ctx, v.Shown(), scope)
		if err != nil {
			return true
		}
		root, err := v.survey(ctx, tree, scope)
		if err != nil {
			return true
		}
		if root.Missing == 0 {
			return false
		}
		f.pipe.StartCrawl()
		whole := readahead.Choose(root)
		var wants []object.ID
		covered := map[object.ID]struct{}{}
		for _, d := range whole {
			want := v.bulkWant(d)
			if !f.bulks.MayTry(want) {
				continue
			}
			wants = append(wants, want)
			d.Cover(covered)
		}
		if len(wants) == 0 || len(covered) == 0 || !f.pipe.Health().Reachable() {
			return true
		}
		relaxed := collector.Relax()
		_, err = f.pipe.SendBulk(ctx, covered,
			func(ctx context.Context, b *pipeline.Batch, arrived func(object.ID, []byte)) error {
				return f.sendBulk(ctx, b, wants, len(wants) == 1 && wants[0] == v.commit, arrived)
			})
		relaxed()
		var broken pipeline.AnswerError
		if !errors.As(err, &broken) {
			return true
		}
	}
	return true
}

// bulkWant returns the object whose request fetches everything below the directory d. This is the commit if d is the
// root of the commit with which the mount began and the server can leave out the history, and otherwise the tree of d.
func (v *RawView) bulkWant(d *readahead.Dir) object.ID {
	if d.Path == "" && d.ID == v.commitTree && v.store.fetcher.bulks.MayTry(v.commit) {
		return v.commit
	}
	return d.ID
}

// survey counts the blobs below a directory that are on this host and that are missing. It waits for missing trees. A
// blob that several files share is counted several times.
func (v *RawView) survey(ctx context.Context, tree object.ID, dir string) (*readahead.Dir, error) {
	d := &readahead.Dir{ID: tree, Path: dir}
	entries, err := v.store.trees.Entries(ctx, tree)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		switch {
		case e.Mode == object.ModeDir:
			sub, err := v.survey(ctx, e.ID, treewalk.Join(dir, e.Name))
			if err != nil {
				return nil, err
			}
			d.Here, d.Missing, d.Subs = d.Here+sub.Here, d.Missing+sub.Missing, append(d.Subs, sub)
		case !e.Mode.IsBlob():
		case v.wantable(e.ID):
			d.Missing++
			d.Wants = append(d.Wants, e.ID)
		default:
			d.Here++
		}
	}
	return d, nil
}

// wantable reports whether a blob is missing, not in flight, and probably on the Store's remote. It does not search the
// directories of mounts, because that takes some 20 µs and a survey asks for all blobs of a tree.
func (v *RawView) wantable(id object.ID) bool {
	return v.missing(id) && !v.store.fetcher.pipe.IsInFlight(id) && !v.store.storage.onSessionRemote(id)
}

// sendBulk requests the objects wants with all blobs that they contain, and stores each blob when it arrives. If commit
// is true, wants contains one commit, whose history is left out. Wants that the remote refuses are not sent again.
func (f *fetcher) sendBulk(ctx context.Context, b *pipeline.Batch, wants []object.ID, commit bool,
	arrived func(object.ID, []byte)) error {
	req := transport.FetchRequest{Wants: wants, Once: true}
	if commit {
		req.Depth = 1
	}
	start := time.Now()
	n := 0
	resp, err := f.request(ctx, req)
	if err == nil {
		n, err = f.unpackBlobs(ctx, f.pausing(ctx, b, resp.Pack), arrived)
		resp.Pack.Close()
		if err != nil {
			err = pipeline.AnswerError{Err: err}
		}
	}
	if n == 0 && err != nil && ctx.Err() == nil && !IsUnreachable(err) {
		f.bulks.Refuse(wants)
	}
	f.log.Debug("fetch blobs in bulk", zap.Int("wants", len(wants)), zap.Bool("commit", commit), zap.Int("got", n),
		zap.Duration("took", time.Since(start)), zap.Error(err))
	return err
}
