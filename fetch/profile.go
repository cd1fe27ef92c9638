package fetch

import (
	"context"

	"github.com/artifactfs/artifactfs/fetch/foreseen"
	"github.com/artifactfs/artifactfs/fetch/readprofile"
)

// Record makes the view record in r which files programs read. If r is nil, the view records nothing.
func (v *RawView) Record(r *readprofile.Recorder) { v.reads.Store(r) }

// newForeseen returns the part of the view that prefetches read profiles.
func (v *RawView) newForeseen() *foreseen.Prefetcher {
	return foreseen.New(foreseen.Source{
		Pipe: v.store.fetcher.pipe, Tree: v.Shown, Entries: v.store.trees.entries, Missing: v.missing, AwaitRoom: v.awaitQueue,
		AwaitDone: v.awaitPrefetched, BytesIn: v.store.fetcher.bytesIn.Load,
		Walk: func(ctx context.Context, visit func(foreseen.File) bool) error {
			_, err := v.store.trees.walk(ctx, v.Shown(), "", func(f file) bool { return visit(foreseen.File{ID: f.id, Path: f.path}) })
			return err
		},
		WalkFrom: func(ctx context.Context, path string, visit func(foreseen.File) bool) error {
			return v.store.trees.walkFrom(ctx, v.Shown(), path, forward, func(f file) bool { return visit(foreseen.File{ID: f.id, Path: f.path}) })
		},
	})
}
