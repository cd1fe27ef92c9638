package fetch

import (
	"context"
	"sync"

	"github.com/artifactfs/artifactfs/fetch/filters"
	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/fetch/readahead"
	"github.com/artifactfs/artifactfs/git/convert"
	"github.com/artifactfs/artifactfs/git/object"
)

// View returns the contents of the files of one tree as git checkout would write them. It wraps a RawView, which
// returns the contents as they are stored in the repository. Whether and how contents are converted depends on the
// .gitattributes files of the tree.
//
// A mount may switch to another tree. From then on, readahead and prefetching use the new tree (RawView.Show). A file
// whose blob is the same in both trees keeps its contents, so it is still converted by the attributes of the previous
// tree. Therefore each tree has its own View (see Of), and all Views of a mount share one RawView.
type View struct {
	*RawView
	conversions *conversions
	root        object.ID // tree whose .gitattributes files apply
	checkout    checkout
	rules       rules // .gitattributes files of root; protected by conversions.mu
}

// checkout names the ref and the commit that filter drivers receive as the source of a checkout. The ref and the commit
// stay the same when the mount switches to another tree.
type checkout struct {
	ref    string
	commit object.ID
}

// conversions is the state that the Views of one mount share.
type conversions struct {
	filters *filters.Filters // runs filter drivers; if nil, reading a file that a driver converts fails

	mu       sync.Mutex
	smudging readahead.Smudging
	views    map[object.ID]*View
}

// owner returns the part of cache keys that distinguishes the results of this mount.
func (c *conversions) owner() string {
	if c.filters == nil {
		return ""
	}
	return c.filters.Owner()
}

// View returns the view of a snapshot's tree for a user whose git configuration has these settings. filters runs the
// filter drivers. The call counts as a read, so that prefetches are delayed for a short time, because the first reads
// of a new view usually follow at once.
func (s *Store) View(snap *Snapshot, settings convert.Settings, filters *filters.Filters) *View {
	v := &View{
		RawView: s.rawView(snap), conversions: &conversions{filters: filters}, root: snap.Tree,
		checkout: checkout{snap.Ref, snap.Commit},
		rules:    rules{settings: settings},
	}
	v.conversions.views = map[object.ID]*View{v.root: v}
	return v
}

// Of returns the View of this mount for files of another tree, whose .gitattributes files then apply.
func (v *View) Of(tree object.ID) *View {
	if tree == v.root {
		return v
	}
	v.conversions.mu.Lock()
	defer v.conversions.mu.Unlock()
	of, ok := v.conversions.views[tree]
	if !ok {
		other := *v
		of, other.root, other.rules.files, other.rules.leavesOut = &other, tree, nil, false
		v.conversions.views[tree] = of
	}
	return of
}

// Blob identifies the contents of one file: the blob, and the path of the file in the tree.
type Blob struct {
	ID   object.ID
	Path string
	Link bool // the blob is the target of a symlink, which checkout never converts
}

// KnownSize returns the size, in bytes, that a file has as checkout would write it. It never waits, and returns false
// if the size is not known on this host.
func (v *View) KnownSize(b Blob) (int64, bool) {
	r, ok := v.knownRule(b.ID, b.Path)
	switch {
	case b.Link:
		return v.store.storage.knownSize(b.ID)
	case !ok:
		return 0, false
	case r.IsZero():
		return v.store.storage.knownSize(b.ID)
	}
	return v.store.storage.resultSize(v.resultsOf(b.ID, r, b.Path))
}

// Here reports whether Open returns the contents of a file without waiting and without a conversion.
func (v *View) Here(b Blob) bool {
	r, ok := v.knownRule(b.ID, b.Path)
	return ok && r.IsZero() && v.store.storage.cached(b.ID)
}

// Size returns the size, in bytes, that a file has as checkout would write it. If the size is not known on this host,
// Size waits for an object-info request. If the remote does not support object-info, or if checkout would convert the
// file, Size waits for the contents.
func (v *View) Size(ctx context.Context, b Blob) (int64, error) {
	if n, ok := v.KnownSize(b); ok {
		return n, nil
	}
	v.noteSearch(ctx, b)
	asStored, err := v.asStored(ctx, b)
	if err != nil {
		return 0, err
	}
	if asStored {
		if n, ok, err := v.size(ctx, b.ID, b.Path); ok || err != nil {
			return n, err
		}
	}
	c, err := v.Open(ctx, b)
	if err != nil {
		return 0, err
	}
	defer c.Release()
	return c.Size(), nil
}

// asStored reports whether checkout would write a blob unconverted, exactly as it is stored. It may wait until
// .gitattributes files are fetched.
func (v *View) asStored(ctx context.Context, b Blob) (bool, error) {
	if b.Link {
		return true, nil
	}
	r, err := v.rule(ctx, b.ID, b.Path)
	return r.IsZero(), err
}

// Open returns a file's contents as checkout would write them. If the contents are not on this host, Open fetches them
// together with the files that will probably be read next.
func (v *View) Open(ctx context.Context, b Blob) (Content, error) {
	v.ahead.Read(b.ID)
	v.reads.Load().Note(b.Path)
	v.noteSearch(ctx, b)
	return v.open(ctx, b, func() pipeline.Neighbours { return v.neighbours(ctx, b.ID, b.Path) })
}

// OpenAlone returns a file's contents as Open does, but fetches no other files (no readahead). It is for callers that
// do not read files in the order of the tree.
func (v *View) OpenAlone(ctx context.Context, b Blob) (Content, error) {
	return v.open(ctx, b, func() pipeline.Neighbours { return pipeline.Neighbours{Patience: pipeline.HedgeAfter} })
}

// open returns a file's contents as Open does. If the contents have to be fetched, the same request contains the wants
// that the function along returns.
func (v *View) open(ctx context.Context, b Blob, along func() pipeline.Neighbours) (Content, error) {
	if b.Link {
		return v.openStored(ctx, b.ID, b.Path, along)
	}
	r, err := v.rule(ctx, b.ID, b.Path)
	if err != nil {
		return nil, err
	}
	if r.IsZero() {
		return v.openStored(ctx, b.ID, b.Path, along)
	}
	return v.converted(ctx, b, r)
}
