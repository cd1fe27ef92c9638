package odb

import (
	"bufio"
	"fmt"
	"io"
	"os"
)

// spill returns the contents of the entry at the offset off in a temporary file without a name. It needs little memory,
// whatever the sizes of the object and its bases are.
func (s *Store) spill(src source, off int64) (body, error) {
	l := getLoader()
	defer l.put()
	// Follow the chain to a plain entry, because spiller reads bases from files and not from the cache.
	bottom, err := l.trace(src, s.format, off, func(int64) bool { return false })
	if err != nil {
		return body{}, err
	}
	p := spiller{s, l, src, make([]byte, copyBuffer)}
	b, err := p.plain(bottom)
	// Each step needs at most two files: the base and the result of the delta.
	for i := len(l.links) - 1; i >= 0 && err == nil; i-- {
		base := b
		b, err = p.delta(l.links[i], base)
		base.free()
	}
	return b, err
}

// spiller writes objects to temporary files without names, one file for each entry of a delta chain.
type spiller struct {
	s   *Store
	l   *loader // reads the entries of the chain
	src source
	buf []byte // buffer for copying contents
}

// plain writes the contents of the plain entry k to a file.
func (p *spiller) plain(k link) (body, error) {
	f, err := p.write(k, func(w io.Writer) error { return p.l.z.stream(w, k.size, p.buf) })
	if err != nil {
		return body{}, err
	}
	return body{typ: k.typ, size: k.size, at: f, release: func() { f.Close() }}, nil
}

// delta applies the delta of the entry k to the contents base and writes the result to a file. The caller must still
// free base.
func (p *spiller) delta(k link, base body) (body, error) {
	var size int64
	f, err := p.write(k, func(w io.Writer) error {
		r := bufio.NewReaderSize(&exactReader{&p.l.z, k.size}, copyBuffer)
		baseSize, n, err := readDeltaSizes(r)
		if err != nil {
			return err
		}
		if baseSize != base.size {
			return corrupt("delta needs a base of %d bytes, but the base has %d", baseSize, base.size)
		}
		size = n
		if err := streamDelta(w, base.at, baseSize, size, r, p.buf); err != nil {
			return err
		}
		return p.l.z.finish()
	})
	if err != nil {
		return body{}, err
	}
	return body{typ: base.typ, size: size, at: f, release: func() { f.Close() }}, nil
}

// write creates a temporary file and calls the function fill to write its contents. When fill is called, the inflater
// is at the start of the zlib data of k.
func (p *spiller) write(k link, fill func(w io.Writer) error) (*os.File, error) {
	f, err := p.s.temp()
	if err != nil {
		return nil, err
	}
	w := bufio.NewWriterSize(f, copyBuffer)
	p.l.r.seek(p.src, k.data)
	if err = p.l.z.start(&p.l.r); err == nil {
		err = fill(w)
	}
	if err == nil {
		err = w.Flush()
	}
	if err != nil {
		f.Close()
		return nil, p.l.fail(k.off, err)
	}
	return f, nil
}

// temp opens a temporary file without a name, in the directory of the packs.
func (s *Store) temp() (*os.File, error) {
	f, err := os.CreateTemp(s.dir, tempPrefix+"*")
	if err != nil {
		return nil, fmt.Errorf("create temporary file: %w", err)
	}
	// Remove the name, so that the kernel frees the file when it is closed, even if the process is killed.
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, fmt.Errorf("create temporary file: %w", err)
	}
	return f, nil
}
