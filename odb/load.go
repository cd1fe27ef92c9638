package odb

import (
	"errors"
	"io"
	"sync"

	"github.com/artifactfs/artifactfs/object"
)

// place names one entry of one pack: the serial of its source and its offset. It is the key of the cache of bases.
type place struct {
	serial uint64
	off    int64
}

// loader reads objects out of a source. It is kept for its buffers.
type loader struct {
	r       packReader
	z       inflater
	links   []link   // deltas between the wanted object and its base, the wanted object first
	scratch []byte   // buffer for the deltas that load applies
	peek    [32]byte // buffer for the head of a delta, which states the size of its result
}

// link is one entry on the way to a base.
type link struct {
	off  int64
	data int64       // offset of its zlib data
	size int64       // size of the inflated data in bytes
	typ  object.Type // type of a plain entry; 0 for a delta
}

// loaders holds loaders that are not in use: a zlib reader and its window cost more to create than a small object to
// read.
var loaders = sync.Pool{New: func() any { return &loader{r: packReader{buf: make([]byte, 4<<10)}} }}

// getLoader returns a loader for one read. The caller must call put.
func getLoader() *loader { return loaders.Get().(*loader) }

// put returns l to the pool. It drops what would keep a closed source or a large buffer alive.
func (l *loader) put() {
	l.r.seek(nil, 0) // a source must not live on in the pool
	if cap(l.scratch) > maxDelta {
		l.scratch = nil
	}
	loaders.Put(l)
}

// fail returns err with the offset of the entry and its meaning.
func (l *loader) fail(off int64, err error) error { return atOffset(off, diagnose(err, l.r.hit)) }

// header reads the entry at off and returns its link and, for a delta, where its base is.
func (l *loader) header(src source, f object.Format, off int64) (link, int64, error) {
	l.r.seek(src, off)
	e, err := readEntry(&l.r, f, off)
	if err != nil {
		return link{}, 0, err
	}
	k := link{off: off, data: l.r.offset(), size: e.size}
	switch e.kind {
	case ofsDelta:
		return k, e.baseOff, nil
	case refDelta:
		base, ok := src.find(e.baseID)
		if !ok {
			return k, 0, corrupt("base %s of delta is not in the pack", e.baseID)
		}
		return k, base, nil
	}
	k.typ = object.Type(e.kind)
	return k, 0, nil
}

// trace follows deltas from off down to the first entry that stop knows or that is plain. The
// deltas passed are in l.links.
func (l *loader) trace(src source, f object.Format, off int64, stop func(off int64) bool) (link, error) {
	l.links = l.links[:0]
	for at := off; ; {
		if len(l.links) > 0 && stop(at) {
			return link{off: at}, nil
		}
		k, base, err := l.header(src, f, at)
		if err != nil {
			return k, l.fail(at, err)
		}
		if k.typ != 0 {
			return k, nil
		}
		if len(l.links) == maxDepth { // REF deltas can form a circle
			return k, l.fail(off, corrupt("chain of more than %d deltas", maxDepth))
		}
		l.links = append(l.links, k)
		at = base
	}
}

// load returns the content of the entry at off, at most limit bytes of it. The slice is the
// caller's. errLargeBase means that a base is too large for memory.
func (s *Store) load(src source, off, limit int64) (object.Type, []byte, error) {
	l := getLoader()
	defer l.put()
	serial := src.serial()
	var typ object.Type
	var data []byte
	// trace searches the cache of bases on the way, so that a chain is followed only to its first cached base.
	bottom, err := l.trace(src, s.format, off, func(at int64) (ok bool) {
		typ, data, ok = s.bases.get(place{serial, at})
		return ok
	})
	if err != nil {
		return 0, nil, err
	}
	// Bases may be larger than the limit of the caller, up to maxInMemory: only the result has to fit the limit.
	ceiling := max(limit, maxInMemory)
	if typ == 0 {
		switch {
		case len(l.links) == 0 && bottom.size > limit:
			return 0, nil, l.fail(off, tooLarge(bottom.size, limit))
		case bottom.size > ceiling:
			return 0, nil, errLargeBase
		}
		typ = bottom.typ
		if data, err = l.inflate(src, bottom, nil); err != nil {
			return 0, nil, l.fail(bottom.off, err)
		}
	}
	// The deltas are applied from the base upwards. Each intermediate result goes to the cache, for the neighbours in
	// the chain.
	for below := bottom.off; len(l.links) > 0; {
		top := l.links[len(l.links)-1]
		l.links = l.links[:len(l.links)-1]
		s.bases.put(place{serial, below}, typ, data)
		most := ceiling
		if len(l.links) == 0 {
			most = limit
		}
		if top.size > ceiling {
			return 0, nil, errLargeBase
		}
		if l.scratch, err = l.inflate(src, top, l.scratch); err == nil {
			data, err = applyDelta(data, l.scratch, most)
		}
		// A base over the ceiling is not an error of the object: the caller then uses spill, which needs no memory
		// for it.
		if errors.Is(err, ErrTooLarge) && len(l.links) > 0 {
			return 0, nil, errLargeBase
		}
		if err != nil {
			return 0, nil, l.fail(top.off, err)
		}
		below = top.off
	}
	return typ, data, nil
}

// errLargeBase is returned by load if a base on the way to the object is too large for memory.
var errLargeBase = errors.New("delta base too large for memory")

// inflate returns the inflated data of entry k, in scratch if it fits.
func (l *loader) inflate(src source, k link, scratch []byte) ([]byte, error) {
	l.r.seek(src, k.data)
	if err := l.z.start(&l.r); err != nil {
		return scratch, err
	}
	data, err := l.z.whole(scratch, k.size)
	if err != nil {
		return scratch, err
	}
	return data, nil
}

// stat returns type and size of the object at off, inflating at most the head of one delta.
func (s *Store) stat(src source, off int64) (object.Type, int64, error) {
	l := getLoader()
	defer l.put()
	var typ object.Type
	bottom, err := l.trace(src, s.format, off, func(at int64) (ok bool) {
		typ, _, ok = s.bases.get(place{src.serial(), at})
		return ok
	})
	if err != nil {
		return 0, 0, err
	}
	// The type of an object is that of the base of its chain.
	if typ == 0 {
		typ = bottom.typ
	}
	if len(l.links) == 0 {
		return typ, bottom.size, nil
	}
	l.r.seek(src, l.links[0].data)
	if err := l.z.start(&l.r); err != nil {
		return 0, 0, l.fail(off, err)
	}
	// A delta begins with the sizes of its base and its result (gitformat-pack(5)); 32 bytes are enough for both.
	n, err := io.ReadFull(&l.z, l.peek[:min(l.links[0].size, int64(len(l.peek)))])
	if err != nil {
		return 0, 0, l.fail(off, short(err))
	}
	_, size, err := readDeltaSizes(&sliceReader{l.peek[:n], 0})
	if err != nil {
		return 0, 0, l.fail(off, err)
	}
	return typ, size, nil
}
