package odb

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb/named"
)

// nameCollector collects the blobs that trees name in a goroutine of its own, so that Ingest, which decodes the trees, need not wait.
type nameCollector struct {
	names   *named.Collector // belongs to the goroutine until finish returns
	batches chan []namingTree
	batch   []namingTree // trees that were not passed on yet
	size    int          // total size of batch in bytes
	done    sync.WaitGroup
}

// namingTree is a tree to search for names, and the base of its delta; nil if it was not a delta in memory.
type namingTree struct{ base, content []byte }

// A batch of trees is passed on when it has batchTrees trees or batchBytes bytes. At most batchesWaiting batches wait.
const (
	batchTrees     = 64
	batchBytes     = 256 << 10
	batchesWaiting = 4
)

// newNameCollector starts the goroutine. The caller must call finish.
func newNameCollector(f object.Format) *nameCollector {
	batches := make(chan []namingTree, batchesWaiting)
	c := &nameCollector{names: named.NewCollector(f), batches: batches}
	c.done.Go(func() {
		for batch := range batches {
			for _, t := range batch {
				c.names.AddChanged(t.base, t.content)
			}
		}
	})
	return c
}

// add passes on a tree, whose contents are not modified any more. The tree base, if it is not nil, was passed on before.
func (c *nameCollector) add(base, content []byte) {
	c.batch = append(c.batch, namingTree{base, content})
	if c.size += len(base) + len(content); len(c.batch) == batchTrees || c.size >= batchBytes {
		c.batches <- c.batch
		c.batch, c.size = make([]namingTree, 0, batchTrees), 0
	}
}

// finish ends the goroutine and returns the names.
func (c *nameCollector) finish() *named.Collector {
	if c.batches != nil {
		c.batches <- c.batch
		close(c.batches)
		c.batches = nil
	}
	c.done.Wait()
	return c.names
}

// collectNames adds the blobs that the trees in the pack at path name to c. It leaves out trees that cannot be decoded, because git
// cannot read them either.
func collectNames(ctx context.Context, path string, f object.Format, c *named.Collector) error {
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

// treesOf returns the offsets of the trees in a pack, in their order in the pack, in which a delta is close to its base. It reads only
// the headers of the entries. Entries whose header is damaged are left out.
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
		// An object has the type of the plain entry at the end of its delta chain. The bases of OFS deltas precede them, so they have
		// their types already. The length of the chain is bounded because REF deltas in a damaged pack may form a cycle.
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
