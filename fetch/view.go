package fetch

import (
	"context"
	"sync"

	"github.com/artifactfs/artifactfs/convert"
	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/filter"
	"github.com/artifactfs/artifactfs/object"
)

// View returns the contents of one tree's files as git checkout would write them. It wraps a RawView, which returns the
// contents as they are stored; the rules for conversion come from the .gitattributes of the tree.
//
// A mount may show another tree than the one that it started with. Readahead and prefetching follow
// the tree that is shown (RawView.Show). A file that is the same in both trees keeps its contents,
// so it is converted by the attributes of the tree that it came from: each tree has its View (Of),
// and all Views of a mount share one RawView.
type View struct {
	*RawView
	conversions *conversions
	root        object.ID // the tree whose attributes apply
	checkout    checkout
	rules       rules // guarded by conversions.mu
}

// checkout describes the checkout to filters. A tree that the mount shows later does not change it.
type checkout struct {
	ref    string
	commit object.ID
}

// conversions is shared by the Views of one mount.
type conversions struct {
	programs *filter.Programs // nil: contents that drivers convert cannot be read

	mu       sync.Mutex
	smudging smudging
	views    map[object.ID]*View
}

// View returns the view of a snapshot's tree for a user with these git settings; programs runs the
// filter drivers. It counts as a reader, since reads are expected at once: prefetches hold back a
// little.
func (s *Store) View(snap *Snapshot, settings convert.Settings, programs *filter.Programs) *View {
	v := &View{
		RawView: s.rawView(snap.Tree), conversions: &conversions{programs: programs}, root: snap.Tree, checkout: checkout{snap.Ref, snap.Commit},
		rules: rules{settings: settings},
	}
	v.conversions.views = map[object.ID]*View{v.root: v}
	return v
}

// Of returns the view for files that come from another tree.
func (v *View) Of(tree object.ID) *View {
	if tree == v.root {
		return v
	}
	v.conversions.mu.Lock()
	defer v.conversions.mu.Unlock()
	of, ok := v.conversions.views[tree]
	if !ok {
		other := *v
		of, other.root, other.rules.files = &other, tree, nil
		v.conversions.views[tree] = of
	}
	return of
}

// Blob is a blob at a path of the tree.
type Blob struct {
	ID   object.ID
	Path string
	Link bool // a symlink's target, which checkout never converts
}

// KnownSize returns the size, in bytes, of a file as checkout would write it, if it is known on
// this host. It never waits.
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
	return v.store.storage.blobs.Size(convertedID(b.ID, r, b.Path))
}

// Size returns the size, in bytes, of a file as checkout would write it. It waits, and sends an
// object-info request where the remote supports that, else it fetches the contents.
func (v *View) Size(ctx context.Context, b Blob) (int64, error) {
	if n, ok := v.KnownSize(b); ok {
		return n, nil
	}
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

// asStored reports whether checkout would write a blob as it is stored. It may wait for attributes.
func (v *View) asStored(ctx context.Context, b Blob) (bool, error) {
	if b.Link {
		return true, nil
	}
	r, err := v.rule(ctx, b.ID, b.Path)
	return r.IsZero(), err
}

// Open returns a file's contents as checkout would write them. It fetches them, and their
// neighbours, if they are not on this host.
func (v *View) Open(ctx context.Context, b Blob) (Content, error) {
	v.ahead.Looked(b.ID)
	return v.open(ctx, b, func() pipeline.Neighbours { return v.neighbours(ctx, b.ID, b.Path) })
}

// OpenAlone returns contents as Open does, but without readahead, for callers that do not read the tree in its order.
func (v *View) OpenAlone(ctx context.Context, b Blob) (Content, error) {
	return v.open(ctx, b, func() pipeline.Neighbours { return pipeline.Neighbours{Patience: pipeline.HedgeAfter} })
}

// open returns contents as Open does. A request for them also contains the wants that along returns.
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
