package odb

import (
	"errors"
	"io"
	"sync"

	"github.com/artifactfs/artifactfs/git/object"
)

// place identifies one entry, by the serial number of its source and its offset. It is the key of the cache of bases.
type place struct {
	serial uint64
	off    int64
}

// loader reads objects from a source. Loaders are reused, because their buffers and tables are large.
type loader struct {
	r       packReader
	z       inflater
	links   []link   // deltas between the requested object and its base; the delta of the requested object is the first
	scratch []byte   // buffer for the inflated deltas that load applies
	peek    [32]byte // buffer for the start of a delta, which states the size of the result
}

// link is one entry of a delta chain.
type link struct {
	off  int64       // offset of the entry
	data int64       // offset of its zlib data
	size int64       // size of the inflated data in bytes
	typ  object.Type // type of the object if the entry is plain; 0 if it is a delta
}

// loaders holds idle loaders for reuse, because creating a zlib reader with its window takes longer than reading a
// small object.
var loaders = sync.Pool{New: func() any { return &loader{r: packReader{buf: make([]byte, 4<<10)}} }}

// getLoader returns a loader for one read. The caller must call the loader's method put.
func getLoader() *loader { return loaders.Get().(*loader) }

// put returns the loader l to the pool. It drops the references to the source and to a large buffer, so that the pool
// does not keep the source and the buffer in memory.
func (l *loader) put() {
	l.r.seek(nil, 0) // drop the reference to the source
	if cap(l.scratch) > maxDelta {
		l.scratch = nil
	}
	loaders.Put(l)
}

// fail returns the error for the entry at the offset off: the cause of err, as diagnose finds it, with the offset.
func (l *loader) fail(off int64, err error) error { return atOffset(off, diagnose(err, l.r.hit)) }

// header reads the header of the entry at the offset off. It returns a link for the entry and, for a delta, the offset
// of the base.
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
			return k, 0, corrupt("delta base %s is not in the pack", e.baseID)
		}
		return k, base, nil
	}
	k.typ = object.Type(e.kind)
	return k, 0, nil
}

// trace follows the delta chain from the entry at the offset off. It ends at a plain entry, or at an entry for which
// the function stop returns true, and returns that entry. The deltas before that entry are stored in l.links.
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
		if len(l.links) == maxDepth { // REF deltas in a damaged pack may form a cycle, so the length of the chain is limited
			return k, l.fail(off, corrupt("delta chain is longer than %d", maxDepth))
		}
		l.links = append(l.links, k)
		at = base
	}
}

// load returns the type and contents of the entry at the offset off, or ErrTooLarge if the contents are larger than
// limit bytes. The caller owns the slice. The error is errLargeBase if one of the bases is too large for memory.
func (s *Store) load(src source, off, limit int64) (object.Type, []byte, error) {
	l := getLoader()
	defer l.put()
	serial := src.serial()
	var typ object.Type
	var data []byte
	// The chain is followed only to its first base that is in the cache.
	bottom, err := l.trace(src, s.format, off, func(at int64) (ok bool) {
		typ, data, ok = s.bases.get(place{serial, at})
		return ok
	})
	if err != nil {
		return 0, nil, err
	}
	// A base may be larger than limit, up to maxInMemory, because only the result must not exceed limit.
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
	// The deltas are applied in order, beginning at the base. Each intermediate result is added to the cache, because
	// other objects of the chain have it as their base.
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
		// An intermediate result may be too large for memory although the object itself is not. In this case the caller uses
		// spill, which stores bases in files.
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

// errLargeBase is the error of load if a base of the object is too large for memory.
var errLargeBase = errors.New("delta base is too large for memory")

// inflate returns the inflated data of the entry k. It uses the buffer scratch if the data fits.
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

// stat returns the type and the size in bytes of the object at the offset off. For a delta, it inflates only the start,
// which contains the size.
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
	// An object has the type of the plain entry at the end of its delta chain.
	if typ == 0 {
		typ = bottom.typ
	}
	if len(l.links) == 0 {
		return typ, bottom.size, nil
	}
	size, err := l.resultSize(src, l.links[0])
	if err != nil {
		return 0, 0, l.fail(off, err)
	}
	return typ, size, nil
}

// resultSize returns the size in bytes of the object that the delta k makes.
func (l *loader) resultSize(src source, k link) (int64, error) {
	l.r.seek(src, k.data)
	if err := l.z.start(&l.r); err != nil {
		return 0, err
	}
	// A delta begins with the size of its base and the size of its result (gitformat-pack(5)). Both fit into 32 bytes.
	n, err := io.ReadFull(&l.z, l.peek[:min(k.size, int64(len(l.peek)))])
	if err != nil {
		return 0, short(err)
	}
	_, size, err := readDeltaSizes(&sliceReader{l.peek[:n], 0})
	return size, err
}
