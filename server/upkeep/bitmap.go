package upkeep

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/server/records"
)

// defaultLarge is the number of objects from which on a pack gets a bitmap. To count the objects of a clone without a
// bitmap, git needs about a second for 100,000 objects.
const defaultLarge = 20_000

// bitmapExtension is the extension of git's file with bitmaps of the objects that commits reach.
const bitmapExtension = ".bitmap"

// pause is the time between two attempts to make a bitmap for one repository. Each attempt rewrites all packs, and may
// fail.
const pause = 24 * time.Hour

// indexAll makes bitmaps for large packs.
func (w *Worker) indexAll(ctx context.Context) error {
	ids, err := w.o.Records.Repos.Unindexed(ctx, int64(w.o.Large), batch)
	if err != nil {
		return err
	}
	return w.each(ctx, "index", ids, w.index)
}

// index replaces the packs of a repository by one pack with a bitmap, if worth reports true. A bitmap needs a pack that
// has all objects which the objects in it reach.
func (w *Worker) index(ctx context.Context, id string) error {
	v, err := w.view(ctx, id)
	if err != nil {
		return err
	}
	defer v.release()
	if !worth(v) {
		return nil
	}
	// The holder is unique, so a second attempt fails until the lease has expired.
	free, err := w.o.Records.Leases.Acquire(ctx, "upkeep/bitmap/"+id, records.NewID(), pause)
	if err != nil || !free {
		return err
	}
	scratch, err := w.o.Replicas.Scratch()
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	hash, err := w.pack(ctx, v, scratch, "", "--all", "--write-bitmap-index")
	if err != nil {
		return err
	}
	base := filepath.Join(scratch, "pack-"+hash)
	if _, err := os.Stat(base + bitmapExtension); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	made, err := readIndex(base, v.format)
	if err != nil {
		return err
	}
	var old []string
	for _, p := range v.snap.Packs {
		covered, err := covers(made, v, p)
		if err != nil {
			return err
		}
		if covered && !isGarbage(p) {
			old = append(old, p.ID) // packs that are not covered have objects that no ref reaches, and stay
		}
	}
	pack, err := w.o.Replicas.Store(ctx, scratch, hash)
	if err != nil {
		return err
	}
	return w.o.Records.Packs.Replace(ctx, id, old, []records.Pack{pack})
}

// worth reports whether all packs of a repository should be rewritten for a bitmap. That is so if most objects have no
// bitmap, and are in packs that no other repository lists.
func worth(v *view) bool {
	if v.snap.Repo.Shallow != "" || v.snap.Repo.BaseURL != "" { // git makes no bitmaps if objects are missing
		return false
	}
	total, indexed, own := int64(0), int64(0), int64(0)
	for _, p := range v.snap.Packs {
		total += p.Objects
		if hasBitmap(p) {
			indexed = max(indexed, p.Objects)
		}
	}
	for _, p := range v.own {
		own += p.Objects
	}
	return indexed < total/2 && own > total/2
}

func hasBitmap(p records.Pack) bool { return slices.Contains(p.Extensions, bitmapExtension) }

// covers reports whether a new pack has all objects of a pack of the repository.
func covers(made *odb.Index, v *view, p records.Pack) (bool, error) {
	x, err := readIndex(v.pack(p.Hash), v.format)
	if err != nil {
		return false, err
	}
	for i := range x.Len() {
		id, err := x.ID(i)
		if err != nil {
			return false, err
		}
		if _, ok := made.Position(id); !ok {
			return false, nil
		}
	}
	return true, nil
}
