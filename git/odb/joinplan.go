package odb

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"os"
	"slices"
	"sort"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/varint"
)

// joinPlan assigns to each entry of the packs to be joined an offset in the new pack.
type joinPlan struct {
	format    object.Format
	table     *table     // objects of the new pack, in the order of its entries
	size      int64      // size of the planned part of the new pack in bytes, without the trailer
	steps     []joinStep // steps by which the body of the new pack is written
	rewritten []int      // positions in table of the entries with a new header
}

// joinStep is a step in writing the new pack: it writes the bytes in head, and then copies n bytes that begin at the
// offset off of the pack in the field from.
type joinStep struct {
	from   candidate // old pack from which bytes are copied
	head   []byte    // new header of the first copied entry; may be empty
	off, n int64     // range of bytes that is copied: its offset in the old pack, and its length
}

// size returns the number of bytes that the step writes.
func (s *joinStep) size() int64 { return int64(len(s.head)) + s.n }

// maxEntries is the maximum number of entries of a pack, because the pack header has 32 bits for the number.
const maxEntries = 1<<32 - 1

// add plans the entries of the pack c, after the entries that are already planned. It skips objects that the plan
// already contains.
func (p *joinPlan) add(c candidate) error {
	b, err := readBody(c, p)
	if err != nil {
		return err
	}
	if int64(p.table.n)+int64(len(b.order)) > maxEntries || p.size+c.size > maxPackSize {
		return tooLarge(p.size+c.size, maxPackSize)
	}
	if b.dropped == 0 {
		p.addWhole(b)
		return nil
	}
	return p.addParts(b)
}

// addWhole plans to copy all entries of a pack unchanged.
func (p *joinPlan) addWhole(b *oldBody) {
	shift := p.size - packHeaderSize
	for _, i := range b.order {
		p.record(b, int(i), b.idx.offset(int(i))+shift, b.idx.crc(int(i)))
	}
	p.step(joinStep{from: b.candidate, off: packHeaderSize, n: b.size - packHeaderSize})
}

// addParts plans the entries whose objects the plan does not contain yet. A delta whose distance to its base changes
// gets a new header.
func (p *joinPlan) addParts(b *oldBody) error {
	r := &packReader{src: b.pack, buf: make([]byte, 4<<10)}
	b.moved = make([]int64, len(b.order))
	for k, i := range b.order {
		id := b.id(int(i))
		if _, ok := p.table.find(id); ok {
			b.moved[k] = -1
			continue
		}
		off, end := b.extent(k)
		b.moved[k] = p.size
		r.seek(b.pack, off)
		e, err := readEntry(r, p.format, off)
		if err != nil {
			return atOffset(off, diagnose(err, r.hit))
		}
		data := r.offset()
		if data >= end {
			return atOffset(off, corrupt("entry header is longer than the entry"))
		}
		back := off - e.baseOff
		if e.kind == ofsDelta {
			base, err := p.newPlace(b, k, e.baseOff)
			if err != nil {
				return atOffset(off, err)
			}
			back = p.size - base
		}
		if e.kind != ofsDelta || back == off-e.baseOff {
			p.record(b, int(i), p.size, b.idx.crc(int(i)))
			p.step(joinStep{from: b.candidate, off: off, n: end - off})
			continue
		}
		head := varint.Append(appendEntryHead(nil, object.Type(e.kind), e.size), uint64(back))
		crc, err := rewrittenCRC(b.candidate, off, data, end, b.idx.crc(int(i)), head)
		if err != nil {
			return atOffset(off, err)
		}
		p.rewritten = append(p.rewritten, p.record(b, int(i), p.size, crc))
		p.step(joinStep{from: b.candidate, head: head, off: data, n: end - data})
	}
	return nil
}

// newPlace returns the offset in the new pack for a delta base. The parameter off is the offset of the base in the old
// pack; the base must precede the k-th entry of b.
func (p *joinPlan) newPlace(b *oldBody, k int, off int64) (int64, error) {
	at := sort.Search(k, func(j int) bool { return b.idx.offset(int(b.order[j])) >= off })
	if at == k || b.idx.offset(int(b.order[at])) != off {
		return 0, corrupt("no entry at the offset of the delta base, %d", off)
	}
	if b.moved[at] >= 0 {
		return b.moved[at], nil
	}
	rec, _ := p.table.find(b.id(int(b.order[at]))) // the plan already has a copy of the object from another pack
	return p.table.offset(rec), nil
}

// record adds the object at position i of b's index to the table and returns the number of its record. The parameters
// off and crc are the offset and the CRC of the object's entry in the new pack.
func (p *joinPlan) record(b *oldBody, i int, off int64, crc uint32) int {
	rec := p.table.add(off, crc)
	p.table.name(rec, b.id(i), 0, 0)
	return rec
}

// step appends the step s to the plan. If s has no new header and continues the copy of the last step, step extends the
// last step instead.
func (p *joinPlan) step(s joinStep) {
	p.size += s.size()
	if n := len(p.steps); n > 0 && s.head == nil {
		if last := &p.steps[n-1]; last.from.pack == s.from.pack && last.off+last.n == s.off {
			last.n += s.n
			return
		}
	}
	p.steps = append(p.steps, s)
}

// sourceOf returns the path of the old pack from which the byte at offset off of the new pack was copied.
func (p *joinPlan) sourceOf(off int64) string {
	at := int64(packHeaderSize)
	for _, s := range p.steps {
		if at += s.size(); off < at {
			return s.from.path
		}
	}
	return ""
}

// oldBody is the body of a pack that is being joined: the entries between its header and its trailer.
type oldBody struct {
	candidate
	order []uint32 // positions of the entries in the index, in the order of their offsets in the pack
	// new offset of each entry, in the order of the field order; -1 if it is not copied; nil if the whole body is copied
	moved   []int64
	dropped int // number of objects that the plan already contains
}

// readBody checks that the index of a pack describes the whole body of the pack, and counts the objects that the plan
// already contains.
func readBody(c candidate, p *joinPlan) (*oldBody, error) {
	b := &oldBody{candidate: c, order: make([]uint32, c.idx.n)}
	for i := range b.order {
		b.order[i] = uint32(i)
		if i > 0 && bytes.Compare(c.idx.name(i-1), c.idx.name(i)) >= 0 {
			return nil, corrupt("index has object %x twice or out of order", c.idx.name(i))
		}
		if _, ok := p.table.find(b.id(i)); ok {
			b.dropped++
		}
	}
	slices.SortFunc(b.order, func(x, y uint32) int {
		return int(max(-1, min(1, c.idx.offset(int(x))-c.idx.offset(int(y)))))
	})
	last := int64(packHeaderSize - 1)
	for k, i := range b.order {
		off := c.idx.offset(int(i))
		if k == 0 && off != packHeaderSize || off <= last || off >= c.size {
			return nil, corrupt("index has an entry at offset %d after one at offset %d", off, last)
		}
		last = off
	}
	return b, nil
}

// id returns the object id at position i of the index.
func (b *oldBody) id(i int) object.ID {
	id, _ := object.FromBytes(b.idx.name(i))
	return id
}

// extent returns the offsets of the start and the end of the k-th entry.
func (b *oldBody) extent(k int) (off, end int64) {
	off, end = b.idx.offset(int(b.order[k])), b.size
	if k+1 < len(b.order) {
		end = b.idx.offset(int(b.order[k+1]))
	}
	return off, end
}

// rewrittenCRC returns the CRC of an entry whose old header is replaced by head. The old entry is at the offset off,
// and its data is between the offsets data and end. The parameter was is the CRC that the index states for the old
// entry; rewrittenCRC first verifies it.
func rewrittenCRC(c candidate, off, data, end int64, was uint32, head []byte) (uint32, error) {
	old, crc := crc32.NewIEEE(), crc32.NewIEEE()
	crc.Write(head)
	if _, err := io.Copy(old, io.NewSectionReader(c.pack, off, data-off)); err != nil {
		return 0, err
	}
	if _, err := io.Copy(io.MultiWriter(old, crc), io.NewSectionReader(c.pack, data, end-data)); err != nil {
		return 0, err
	}
	if old.Sum32() != was {
		return 0, corrupt("entry has CRC %08x, but the index has %08x", old.Sum32(), was)
	}
	return crc.Sum32(), nil
}

// joinWriter writes the pack that a plan describes to file.
type joinWriter struct {
	plan *joinPlan
	file *os.File
	pace func() error // function that is called between pieces of work, like JoinOptions.Pace
}

// joinPiece is the number of bytes that are processed between two calls of pace.
const joinPiece = 1 << 20

// copy writes the new pack, except for its trailer.
func (w *joinWriter) copy() error {
	out := bufio.NewWriterSize(w.file, copyBuffer)
	head := append([]byte("PACK\x00\x00\x00\x02"), 0, 0, 0, 0)
	binary.BigEndian.PutUint32(head[8:], uint32(w.plan.table.n))
	out.Write(head)
	buf := make([]byte, copyBuffer)
	for _, s := range w.plan.steps {
		out.Write(s.head)
		for off, end := s.off, s.off+s.n; off < end; {
			n := min(end-off, joinPiece)
			if err := w.pace(); err != nil {
				return err
			}
			if k, err := io.CopyBuffer(struct{ io.Writer }{out}, io.NewSectionReader(s.from.pack, off, n), buf); err != nil {
				return err
			} else if k < n {
				return corrupt("pack %s is truncated", s.from.path)
			}
			off += n
		}
	}
	return out.Flush()
}

// check reads the new file again, compares the CRC of each entry with the CRC in the plan, writes the trailer and
// returns it. If a CRC differs, the result at is the offset of the entry with this CRC; otherwise it is -1.
func (w *joinWriter) check() (sum []byte, at int64, err error) {
	h := w.plan.format.New()
	in := bufio.NewReaderSize(io.TeeReader(io.NewSectionReader(w.file, 0, w.plan.size), h), copyBuffer)
	if _, err := in.Discard(packHeaderSize); err != nil {
		return nil, -1, err
	}
	t := w.plan.table
	done := int64(packHeaderSize)
	for i := range t.n {
		end := w.plan.size
		if i+1 < t.n {
			end = t.offset(i + 1)
		}
		crc := crc32.NewIEEE()
		if _, err := io.CopyN(crc, in, end-t.offset(i)); err != nil {
			return nil, -1, err
		}
		if crc.Sum32() != t.crc(i) {
			return nil, t.offset(i),
				atOffset(t.offset(i), corrupt("entry has CRC %08x, but the index has %08x", crc.Sum32(), t.crc(i)))
		}
		if end-done > joinPiece {
			done = end
			if err := w.pace(); err != nil {
				return nil, -1, err
			}
		}
	}
	sum = h.Sum(nil)
	_, err = w.file.WriteAt(sum, w.plan.size)
	return sum, -1, err
}

// checkRewritten decodes the objects whose entries have a new header, and compares them with their ids.
func (s *Store) checkRewritten(p *joinPlan, file *os.File) error {
	l := &live{tail: tail{file: file, flushed: p.size}, table: p.table, number: s.serial.Add(1)}
	for _, rec := range p.rewritten {
		if err := s.copyTo(io.Discard, l, p.table.offset(rec), p.table.id(rec)); err != nil {
			return err
		}
	}
	return nil
}
