package odb

import (
	"bufio"
	"compress/zlib"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// writeLevel is the compression level of Write. At this level, source code shrinks to a third of its size. zlib's
// default level would make the result smaller by another tenth, but takes four times as long, and a reader waits for
// the pack.
const writeLevel = zlib.BestSpeed

// Outgoing is an object to write into a pack. The function Open opens the contents; the writer of the pack reads them
// to the end and closes the reader. Open may be called from any goroutine.
type Outgoing struct {
	ID   object.ID
	Type object.Type
	Size int64 // size of the contents in bytes
	Open func() (io.ReadCloser, error)
}

// WriteOptions configures Write.
type WriteOptions struct {
	// whether to mark the pack as fetched from a promisor remote, which can supply the objects that it refers to
	Promisor  bool
	Temporary bool // the pack may be lost in a power failure, so Write does not sync it to disk
}

// Write writes one pack with those elements of objects that no pack contains yet. It returns the name of the pack, or
// "" if all objects are in packs already. When Write returns, git and other processes can read the pack. If the hash of
// the contents of an object differs from the object's id, no pack is written.
func (s *Store) Write(ctx context.Context, objects []Outgoing, o WriteOptions) (name string, err error) {
	name, settle, err := s.WriteAhead(ctx, objects, o)
	if err == nil {
		err = settle()
	}
	if err != nil {
		return "", err
	}
	return name, nil
}

// WriteAhead writes a pack like Write, but does not wait until the pack is durable, so that the caller can write other
// files at the same time. When WriteAhead returns, all objects can be read. The caller must call the function settle,
// which waits until the objects are durable. If settle fails, it removes the pack.
func (s *Store) WriteAhead(ctx context.Context, objects []Outgoing,
	o WriteOptions) (name string, settle func() error, err error) {
	seen := make(map[object.ID]bool, len(objects))
	objects = slices.DeleteFunc(slices.Clone(objects), func(o Outgoing) bool {
		again := seen[o.ID]
		seen[o.ID] = true
		return again || s.Has(o.ID)
	})
	if len(objects) == 0 {
		return "", s.settleOthers, nil
	}
	file, err := lockedTemp(s.dir)
	if err != nil {
		return "", nil, fmt.Errorf("write pack: %w", err)
	}
	defer func() {
		file.Close()
		if err != nil {
			os.Remove(file.Name())
		}
	}()
	w := newPackWriter(s.format, file)
	sum, err := w.pack(ctx, objects)
	if err != nil {
		return "", nil, fmt.Errorf("write pack: %w", err)
	}
	name = "pack-" + hex.EncodeToString(sum)
	path := filepath.Join(s.dir, name)
	named, err := s.finish(file, w.table, path, sum, IngestOptions{Promisor: o.Promisor, Temporary: o.Temporary},
		func() error { return nil })
	if err != nil {
		return "", nil, fmt.Errorf("write pack: %w", err)
	}
	if o.Temporary {
		named = func() error { return nil }
	}
	// Increment the counter before adopt is called: from then on, other goroutines skip these objects and rely on this
	// pack.
	s.unsettled.Add(1)
	if !s.adopt(path) {
		err = errors.Join(fs.ErrClosed, named())
		s.unsettled.Add(-1)
		return "", nil, fmt.Errorf("write pack: %w", err)
	}
	return name, func() error {
		defer s.unsettled.Add(-1)
		// If the sync has failed, the pack's files were removed, so remove the pack from the view.
		if err := named(); err != nil {
			s.disown(path)
			return fmt.Errorf("write pack: %w", err)
		}
		return nil
	}, nil
}

// settleOthers makes the packs durable that other goroutines have written with WriteAhead and not settled yet. Such
// packs may contain objects that the caller of Write has passed. settleOthers returns an error if the directory cannot
// be synced.
func (s *Store) settleOthers() error {
	if s.unsettled.Load() == 0 {
		return nil
	}
	if err := disk.OS.SyncDir(s.dir); err != nil {
		return fmt.Errorf("write pack: %w", err)
	}
	return nil
}

// disown removes the pack at path from the view, because the pack's files were removed.
func (s *Store) disown(path string) {
	s.replace(func(packs []source) []source {
		return slices.DeleteFunc(slices.Clone(packs), func(p source) bool { o, ok := p.(*pack); return ok && o.path == path })
	})
}

// adopt adds the finished pack at path to the view, so that it can be read. It returns false if the Store is closed.
func (s *Store) adopt(path string) bool {
	return s.replace(func(packs []source) []source {
		if hasPack(packs, path) {
			return packs
		}
		return append([]source{&pack{path: path, format: s.format, number: s.serial.Add(1), foreign: s.foreign}}, packs...)
	})
}

// packWriter writes a pack from start to end and records each entry in table.
type packWriter struct {
	format object.Format // object format of the pack
	out    *bufio.Writer // buffered output of the pack
	sum    hash.Hash     // hash of the whole pack
	crc    uint32        // CRC-32 of the current entry
	off    int64         // number of bytes written
	table  *table        // records of the entries that were written
	zip    *zlib.Writer  // compressor for large objects
	buf    []byte        // buffer for copying contents
}

// newPackWriter returns a packWriter that writes a pack of format f to file.
func newPackWriter(f object.Format, file io.Writer) *packWriter {
	sum := f.New()
	return &packWriter{format: f, out: bufio.NewWriterSize(io.MultiWriter(file, sum), tailBuffer), sum: sum,
		table: newTable(f)}
}

// Write writes bytes of the current entry, and adds them to its CRC.
func (w *packWriter) Write(p []byte) (int, error) {
	w.crc = crc32.Update(w.crc, crc32.IEEETable, p)
	n, err := w.out.Write(p)
	w.off += int64(n)
	return n, err
}

// pack writes the header, the entries and the trailer. It returns the trailer.
func (w *packWriter) pack(ctx context.Context, objects []Outgoing) ([]byte, error) {
	var head [packHeaderSize]byte
	copy(head[:], "PACK")
	binary.BigEndian.PutUint32(head[4:], 2)
	binary.BigEndian.PutUint32(head[8:], uint32(len(objects)))
	if _, err := w.Write(head[:]); err != nil {
		return nil, err
	}
	// Small objects are compressed in advance by other goroutines. This goroutine compresses a large object when it
	// reaches that object.
	next, stop := deflated(ctx, w.format, objects)
	defer stop()
	for _, o := range objects {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		w.crc = 0
		off := w.off
		var err error
		if o.Size <= maxParallel {
			err = w.small(ctx, next)
		} else {
			err = w.large(o)
		}
		if err != nil {
			return nil, fmt.Errorf("write object %s: %w", o.ID, err)
		}
		w.table.name(w.table.add(off, w.crc), o.ID, o.Type, 0)
	}
	if err := w.out.Flush(); err != nil {
		return nil, err
	}
	trailer := w.sum.Sum(nil)
	if _, err := w.out.Write(trailer); err != nil {
		return nil, err
	}
	return trailer, w.out.Flush()
}

// small writes the next entry that deflated has compressed.
func (w *packWriter) small(ctx context.Context, next <-chan chan deflation) error {
	place, ok := <-next
	if !ok {
		return context.Cause(ctx)
	}
	e := <-place
	if e.err != nil {
		return e.err
	}
	_, err := w.Write(e.data)
	return err
}

// large compresses an object and writes it in pieces, so that it needs little memory.
func (w *packWriter) large(o Outgoing) error {
	if w.zip == nil {
		w.zip, _ = zlib.NewWriterLevel(nil, writeLevel)
		w.buf = make([]byte, copyBuffer)
	}
	if _, err := w.Write(appendEntryHead(nil, o.Type, o.Size)); err != nil {
		return err
	}
	w.zip.Reset(w)
	return deflate(w.zip, w.format, o, w.buf)
}

// deflate compresses the contents of an object into zip. It returns ErrCorrupt if the contents do not have the size and
// the hash that o states.
func deflate(zip *zlib.Writer, f object.Format, o Outgoing, buf []byte) error {
	r, err := o.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	sum := object.NewHasher(f, o.Type, o.Size)
	n, err := io.CopyBuffer(struct{ io.Writer }{io.MultiWriter(zip, sum)}, struct{ io.Reader }{r}, buf)
	if err == nil {
		err = zip.Close()
	}
	if err != nil {
		return err
	}
	if n != o.Size {
		return corrupt("object has %d bytes, want %d", n, o.Size)
	}
	got, err := sum.Sum()
	if err != nil {
		return corrupt("%w", err)
	}
	if got != o.ID {
		return corrupt("object has hash %s", got)
	}
	return nil
}

// appendEntryHead appends type and size to b, in the format that readEntry reads.
func appendEntryHead(b []byte, t object.Type, size int64) []byte {
	c := byte(t)<<4 | byte(size&15)
	for size >>= 4; size > 0; size >>= 7 {
		b = append(b, c|0x80)
		c = byte(size & 0x7f)
	}
	return append(b, c)
}

const (
	// maxParallel is the size in bytes up to which the contents of an object are compressed in memory, in advance.
	maxParallel = 1 << 20
	// deflaters is the number of objects that are compressed at the same time.
	deflaters = 2
)

// deflation is one entry of a pack in compressed form, or the error that occurred while the entry was compressed.
type deflation struct {
	data []byte // the compressed entry, with its header
	err  error
}

// deflated compresses the small objects in other goroutines. It returns a channel that delivers, in the order of
// objects, one channel for each small object. This second channel delivers the compressed entry of the object. The
// function stop ends the goroutines and waits until they have ended.
func deflated(ctx context.Context, f object.Format, objects []Outgoing) (next <-chan chan deflation, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	// The capacity of order limits the number of compressed objects that wait in memory to be written.
	order := make(chan chan deflation, 2*deflaters)
	type job struct {
		o     Outgoing
		place chan deflation
	}
	jobs := make(chan job)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(jobs)
		defer close(order)
		for _, o := range objects {
			if o.Size > maxParallel {
				continue
			}
			j := job{o, make(chan deflation, 1)}
			select {
			case order <- j.place:
			case <-ctx.Done():
				return
			}
			select {
			case jobs <- j:
			case <-ctx.Done():
				j.place <- deflation{err: ctx.Err()}
				return
			}
		}
	})
	for range min(deflaters, len(objects)) {
		wg.Go(func() {
			d := entryDeflater{format: f}
			for j := range jobs {
				j.place <- d.entry(j.o)
				runtime.Gosched() // yield to goroutines that serve readers of the mount
			}
		})
	}
	return order, func() {
		cancel()
		wg.Wait()
	}
}

// entryDeflater compresses one object after the other with the same zlib.Writer.
type entryDeflater struct {
	format object.Format
	zip    *zlib.Writer // created by the first call of entry
	buf    []byte       // buffer for copying contents
}

// entry returns the pack entry of an object.
func (d *entryDeflater) entry(o Outgoing) deflation {
	if d.zip == nil {
		d.zip, _ = zlib.NewWriterLevel(nil, writeLevel)
		d.buf = make([]byte, copyBuffer)
	}
	out := sliceWriter{appendEntryHead(make([]byte, 0, 16+o.Size/2), o.Type, o.Size)}
	d.zip.Reset(&out)
	err := deflate(d.zip, d.format, o, d.buf)
	return deflation{out.b, err}
}

// sliceWriter appends to a slice.
type sliceWriter struct{ b []byte }

// Write appends p. It does not return an error.
func (w *sliceWriter) Write(p []byte) (int, error) {
	w.b = append(w.b, p...)
	return len(p), nil
}

// WritePack writes a pack to w that contains each element of objects once, without deltas.
func WritePack(ctx context.Context, w io.Writer, f object.Format, objects []Outgoing) error {
	seen := make(map[object.ID]bool, len(objects))
	objects = slices.DeleteFunc(slices.Clone(objects), func(o Outgoing) bool {
		again := seen[o.ID]
		seen[o.ID] = true
		return again
	})
	if _, err := newPackWriter(f, w).pack(ctx, objects); err != nil {
		return fmt.Errorf("write pack: %w", err)
	}
	return nil
}
