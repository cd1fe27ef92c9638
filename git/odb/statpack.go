package odb

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/artifactfs/artifactfs/git/object"
)

// ObjectStat describes an object in a pack, as the pack states it.
type ObjectStat struct {
	ID    object.ID
	Type  object.Type
	Size  int64 // size of the contents in bytes
	Depth int   // number of deltas from which the contents are made; 0 for a plain entry
}

// StatPack calls the function visit for each object of the pack at path, which has no suffix. It reads the start of
// each entry once, so its time depends on the number of objects, and not on the lengths of the chains of deltas. An
// error of visit ends it.
func StatPack(ctx context.Context, path string, f object.Format, visit func(ObjectStat) error) error {
	p := &pack{path: path, format: f}
	err := p.open()
	if err == nil {
		defer p.close()
		err = statPack(ctx, p, p.files.Load().idx, f, visit)
	}
	if err != nil {
		return fmt.Errorf("list objects of pack: %w", err)
	}
	return nil
}

// chains has what is known of the entries of a pack. An entry is named by its number in the order of the offsets.
type chains struct {
	index  *Index
	order  []uint32      // positions in the index
	types  []object.Type // 0: not known yet
	depths []uint32
	bases  []uint32 // numbers of the bases of deltas
}

func statPack(ctx context.Context, src source, x *Index, f object.Format, visit func(ObjectStat) error) error {
	c := &chains{index: x, order: make([]uint32, x.n), types: make([]object.Type, x.n), depths: make([]uint32, x.n),
		bases: make([]uint32, x.n)}
	for i := range c.order {
		c.order[i] = uint32(i)
	}
	slices.SortFunc(c.order, func(a, b uint32) int { return cmp.Compare(x.offset(int(a)), x.offset(int(b))) })
	show := func(i int, size int64) error {
		id, err := x.ID(int(c.order[i]))
		if err != nil {
			return err
		}
		return visit(ObjectStat{id, c.types[i], size, int(c.depths[i])})
	}
	l := getLoader()
	defer l.put()
	var later []int // deltas whose bases follow them, as only those of REF deltas can
	sizes := map[int]int64{}
	for i := range c.order {
		if i%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		off := c.offset(i)
		size, err := c.read(l, src, f, i)
		if err != nil {
			return l.fail(off, err)
		}
		if c.types[i] == 0 {
			later, sizes[i] = append(later, i), size
		} else if err := show(i, size); err != nil {
			return err
		}
	}
	for _, i := range later {
		if err := c.follow(i); err != nil {
			return err
		}
		if err := show(i, sizes[i]); err != nil {
			return err
		}
	}
	return nil
}

// offset returns the offset of an entry.
func (c *chains) offset(i int) int64 { return c.index.offset(int(c.order[i])) }

// read reads the start of an entry, and returns the size of the object. It sets the type unless that of the base is not
// known yet.
func (c *chains) read(l *loader, src source, f object.Format, i int) (size int64, err error) {
	k, base, err := l.header(src, f, c.offset(i))
	if err != nil {
		return 0, err
	}
	if k.typ != 0 {
		c.types[i] = k.typ
		return k.size, nil
	}
	b, found := slices.BinarySearchFunc(c.order, base, func(pos uint32, off int64) int {
		return cmp.Compare(c.index.offset(int(pos)), off)
	})
	if !found {
		return 0, corrupt("delta base at %d is not in the index", base)
	}
	c.bases[i], c.types[i], c.depths[i] = uint32(b), c.types[b], c.depths[b]+1
	return l.resultSize(src, k)
}

// follow sets the types of a delta and of the deltas that it is made from.
func (c *chains) follow(i int) error {
	var path []int
	for ; c.types[i] == 0; i = int(c.bases[i]) {
		if len(path) == len(c.order) {
			return corrupt("deltas are the bases of each other")
		}
		path = append(path, i)
	}
	for _, delta := range slices.Backward(path) {
		b := c.bases[delta]
		c.types[delta], c.depths[delta] = c.types[b], c.depths[b]+1
	}
	return nil
}
