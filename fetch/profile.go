package fetch

import (
	"context"

	"github.com/artifactfs/artifactfs/fetch/foreseen"
	"github.com/artifactfs/artifactfs/fetch/readprofile"
	"github.com/artifactfs/artifactfs/fetch/treewalk"
)

// Record makes the view record in r which files programs read. If r is nil, the view records nothing.
func (v *RawView) Record(r *readprofile.Recorder) { v.reads.Store(r) }

// newForeseen returns the Prefetcher of the view, which prefetches the files of read profiles.
func (v *RawView) newForeseen() *foreseen.Prefetcher {
	return foreseen.New(foreseen.Source{
		Pipe: v.store.fetcher.pipe, Tree: v.Shown, Entries: v.store.trees.Entries, Missing: v.missing,
		AwaitRoom: v.awaitQueue,
		AwaitDone: v.awaitPrefetched, BytesIn: v.store.fetcher.bytesIn.Load,
		Walk: func(ctx context.Context, visit func(foreseen.File) bool) error {
			_, err := v.store.trees.Walk(ctx, v.Shown(), "",
				func(f treewalk.File) bool { return visit(foreseen.File{ID: f.ID, Path: f.Path}) })
			return err
		},
		WalkFrom: func(ctx context.Context, path string, visit func(foreseen.File) bool) error {
			return v.store.trees.WalkFrom(ctx, v.Shown(), path, treewalk.Forward, func(f treewalk.File) bool {
				return visit(foreseen.File{ID: f.ID, Path: f.Path})
			})
		},
	})
}
