package odb

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"slices"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb/named"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// CollectNames adds the blobs that the trees in the pack at path name to c. It leaves out trees that cannot be decoded,
// because git cannot read them either.
func CollectNames(ctx context.Context, path string, f object.Format, c *named.Collector) error {
	p := &pack{path: path, format: f}
	if err := p.open(); err != nil {
		return err
	}
	defer p.close()
	trees, err := treesOf(ctx, p, f)
	if err != nil {
		return err
	}
	s := &Store{dir: filepath.Dir(path), format: f, bases: newLRU[place](baseCache)}
	for _, off := range trees {
		if err := ctx.Err(); err != nil {
			return err
		}
		switch _, content, err := s.content(p, off, object.MaxTreeSize); {
		case err == nil:
			c.AddTree(content)
		case errors.As(err, new(elsewhere)):
			return err
		}
	}
	return nil
}

// treesOf returns the offsets of the trees in a pack, in their order in the pack, in which a delta is close to its
// base. It reads only the headers of the entries. Entries whose header is damaged are left out.
func treesOf(ctx context.Context, p *pack, f object.Format) ([]int64, error) {
	x := p.files.Load().idx
	type record struct {
		off, base int64 // base is the offset of the delta's base; 0 if the entry is plain
		typ       object.Type
	}
	records := make([]record, x.n)
	for i := range records {
		records[i].off = x.offset(i)
	}
	slices.SortFunc(records, func(a, b record) int { return cmp.Compare(a.off, b.off) })
	l := getLoader()
	defer l.put()
	for i := range records {
		if i%1024 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		r := &records[i]
		k, base, err := l.header(p, f, r.off)
		if errors.As(err, new(elsewhere)) {
			return nil, err
		}
		if err == nil {
			r.typ, r.base = k.typ, base
		}
	}
	at := func(off int64) *record {
		i, ok := slices.BinarySearchFunc(records, off, func(r record, off int64) int { return cmp.Compare(r.off, off) })
		if !ok {
			return nil
		}
		return &records[i]
	}
	var trees []int64
	for i := range records {
		r := &records[i]
		// An object has the type of the plain entry at the end of its delta chain. The bases of OFS deltas precede them, so
		// they have their types already. The length of the chain is bounded because REF deltas in a damaged pack may form a
		// cycle.
		for b, n := r, 0; r.typ == 0 && n <= maxDepth && b != nil && b.base != 0; n++ {
			if b = at(b.base); b != nil {
				r.typ = b.typ
			}
		}
		if r.typ == object.Tree {
			trees = append(trees, r.off)
		}
	}
	return trees, nil
}

// joinNames writes the file of names for the pack that will be at path and that contains the objects of packs. If one
// of the packs has no valid file of names, joinNames does nothing: the new pack is then read when its names are needed.
func joinNames(packs []candidate, path string, f object.Format) error {
	sets := make([]*named.Set, len(packs))
	for i, c := range packs {
		var err error
		if sets[i], err = named.Open(named.Path(c.path), f); err != nil {
			return nil
		}
	}
	return disk.WriteFileUnsynced(named.Path(path), named.Merge(f, sets), 0o444)
}
