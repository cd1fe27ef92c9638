package odb

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb/named"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// IngestOptions configures Ingest.
type IngestOptions struct {
	// whether to mark the pack as fetched from a promisor remote, which can supply the objects that it refers to
	Promisor      bool
	MaxObjectSize int64 // size in bytes above which an object is refused with ErrTooLarge
	Temporary     bool  // the pack may be lost in a power failure, so Ingest does not sync it to disk
	// Names begins to store the ids of the blobs that the trees of the pack name; nil if these ids are not needed. The
	// parameter path is the future path of the pack, without suffix. Ingest calls the returned function announce before
	// other processes can see the pack, and calls the function wait before it returns, also after an error.
	Names func(path string, c *named.Collector) (announce func() error, wait func())
}

// IngestResult describes the pack that Ingest has stored.
type IngestResult struct {
	Name    string // "pack-<trailer>", as git names it; "" for a pack without objects, which is not stored
	Objects int    // number of objects in the pack
	Bytes   int64  // size of the pack in bytes
}

// ingestCache bounds the size, in bytes, of the recent contents that Ingest caches as delta bases.
const ingestCache = 8 << 20

// Ingest reads a pack from r to its end and stores it. Each object can be read from the Store as soon as it was
// verified. If the function each is not nil, Ingest then calls it with the object, in the order of the pack, except
// that an object whose delta precedes its base is delivered after the base. The calls are made in the goroutine of the
// caller. The function may keep the contents in its third parameter but must not modify them; this parameter is nil for
// a blob that is too large for memory.
//
// The pack must contain the bases of all its deltas. If Ingest fails, it stores nothing, and the objects that could be
// read during the call are not found any more.
func (s *Store) Ingest(ctx context.Context, r io.Reader, o IngestOptions,
	each func(id object.ID, t object.Type, content []byte)) (IngestResult, error) {
	res, err := s.ingest(ctx, r, o, each)
	if err != nil {
		return IngestResult{}, fmt.Errorf("store pack: %w", err)
	}
	return res, nil
}

// ingest does the work of Ingest, which adds the context to the errors.
func (s *Store) ingest(ctx context.Context, r io.Reader, o IngestOptions,
	each func(object.ID, object.Type, []byte)) (IngestResult, error) {
	file, err := lockedTemp(s.dir)
	if err != nil {
		return IngestResult{}, err
	}
	g := &ingestion{s: s, each: each,
		live: &live{tail: tail{file: file}, table: newTable(s.format), number: s.serial.Add(1)}}
	if o.Names != nil {
		g.names = named.NewBackground(s.format)
		defer g.names.Finish()
	}
	// From now on readers of the Store find the objects of this pack that were received and verified.
	if !s.replace(func(packs []source) []source { return append([]source{g.live}, packs...) }) {
		file.Close()
		os.Remove(file.Name())
		return IngestResult{}, fs.ErrClosed
	}
	kept := false
	defer func() {
		// After an error, remove the live pack from the view. Readers that use the live pack keep its file open until they
		// have finished.
		if !kept {
			s.replace(g.without)
			os.Remove(file.Name())
		}
	}()

	in := newInput(r, s.format.New(), ctx.Err, g.live.append)
	sum, err := newDecoder(s.format, o.MaxObjectSize, ingestCache, in, g.live.table, g).run()
	if err != nil {
		return IngestResult{}, err
	}
	res := IngestResult{Objects: g.live.table.n, Bytes: in.offset()}
	if res.Objects == 0 {
		return res, nil
	}
	res.Name = "pack-" + hex.EncodeToString(sum)
	path := filepath.Join(s.dir, res.Name)
	if err := g.live.flush(); err != nil {
		return IngestResult{}, err
	}
	announce := func() error { return nil }
	if o.Names != nil {
		var wait func()
		announce, wait = o.Names(path, g.names.Finish())
		defer wait()
	}
	// After finish has renamed the file, the deferred os.Remove finds no file with the temporary name and does nothing.
	settle, err := s.finish(file, g.live.table, path, sum, o, announce)
	if err == nil && !o.Temporary {
		err = settle()
	}
	if err != nil {
		return IngestResult{}, err
	}
	kept = true
	s.replace(func(packs []source) []source {
		packs = g.without(packs)
		if hasPack(packs, path) {
			return packs // Refresh has already added the pack to the list, or the pack existed before this Ingest.
		}
		return append([]source{&pack{path: path, format: s.format, number: g.live.number}}, packs...)
	})
	return res, nil
}

// ingestion is the keeper that Ingest passes to the decoder. It stores the received bytes unchanged; the objects are
// decoded only to verify them.
type ingestion struct {
	s     *Store
	live  *live
	each  func(object.ID, object.Type, []byte)
	names *named.Background // collects the blobs that the trees name; nil if they are not needed
}

var _ keeper = (*ingestion)(nil)

// without returns a copy of the list packs in which the live pack is left out.
func (g *ingestion) without(packs []source) []source {
	return slices.DeleteFunc(slices.Clone(packs), func(p source) bool { return p == g.live })
}

// inMemory reports whether the contents are decoded in memory. It returns true for all commits, trees and tags, and for
// blobs of up to maxInMemory bytes.
func (g *ingestion) inMemory(t object.Type, size int64) bool {
	return t != object.Blob || size <= maxInMemory
}

func (g *ingestion) spool(int64) (*os.File, error) { return nil, nil } // contents are stored in the pack itself

// scratch returns a temporary file without a name.
func (g *ingestion) scratch() (*os.File, error) { return g.s.temp() }

// base reads the contents of a base from the pack that is being received. A base that is too large for memory is
// written to a temporary file.
func (g *ingestion) base(rec int) (body, error) {
	off := g.live.table.offset(rec)
	t, data, err := g.s.load(g.live, off, maxInMemory)
	if err == errLargeBase || errors.Is(err, ErrTooLarge) {
		return g.s.spill(g.live, off)
	}
	return body{typ: t, size: int64(len(data)), data: data}, err
}

// deliver records the id of the object. From then on readers of the Store find the object.
func (g *ingestion) deliver(rec, depth int, o Object) error {
	g.live.table.name(rec, o.ID, o.Type, depth)
	if g.names != nil && o.Type == object.Tree {
		g.names.Add(o.base, o.Data)
	}
	if g.each != nil {
		g.each(o.ID, o.Type, o.Data)
	}
	return nil
}

// hasPack reports whether the list packs contains the finished pack at path, which is a path without suffix.
func hasPack(packs []source, path string) bool {
	return slices.ContainsFunc(packs, func(p source) bool { p2, ok := p.(*pack); return ok && p2.path == path })
}

// finish renames the file f to its final name: f becomes the pack at path, with the entries in t and the trailer sum.
// It also writes the index. When finish returns, the contents of both files are on disk, unless o.Temporary is set. The
// caller must then call the function settle, which syncs the directory with the names of the files. If that fails,
// settle removes the pack. Before a file is renamed, finish calls the function announce, and fails if that fails.
//
// The order of the steps ensures that a process that sees the index also sees the whole pack and its promisor mark,
// even after a power failure, because file systems write the changes of a directory in order.
func (s *Store) finish(f *os.File, t *table, path string, sum []byte, o IngestOptions, announce func() error) (
	settle func() error, err error) {
	if err := f.Chmod(0o444); err != nil {
		return nil, err
	}
	if !o.Temporary {
		startWriting(f) // the disk then writes the pack while the index is being built
	}
	idx, err := lockedTemp(s.dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		idx.Close()
		if err != nil {
			os.Remove(idx.Name())
		}
	}()
	if err := writeIndex(idx, s.format, t, sum); err != nil {
		return nil, fmt.Errorf("write index: %w", err)
	}
	if err := idx.Chmod(0o444); err != nil {
		return nil, fmt.Errorf("write index: %w", err)
	}
	if !o.Temporary {
		startWriting(idx)
		if err := f.Sync(); err != nil {
			return nil, err
		}
		if err := idx.Sync(); err != nil {
			return nil, fmt.Errorf("write index: %w", err)
		}
	}
	if err := announce(); err != nil {
		return nil, err
	}
	return publish(f.Name(), idx.Name(), path, o.Promisor)
}

// startWriting makes the kernel start to write a file to disk, and does not wait for the end. If startWriting was
// called for both the pack and the index before the first of the two files is synced, the journal of the file system
// commits both together, and the second sync costs almost nothing. Errors are ignored, because the call only saves
// time.
func startWriting(f *os.File) {
	_ = unix.SyncFileRange(int(f.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE)
}

// publish renames a pack and its index to their final names, and returns the function settle, which syncs the directory
// or, if that fails, removes the pack. If files with these names exist, they have the same contents, because the name
// is the hash of the contents.
func publish(pack, idx, path string, promisor bool) (settle func() error, err error) {
	remove := func() {}
	if _, err := os.Lstat(path + ".idx"); err != nil {
		remove = func() {
			os.Remove(path + ".idx")
			os.Remove(path + ".pack")
			os.Remove(path + ".promisor")
		}
	}
	// Create the promisor mark before the pack and the index are renamed. If git saw the pack without the mark, it would
	// report the objects that the pack lacks as damage.
	if promisor {
		var mark *os.File
		if mark, err = os.OpenFile(path+".promisor", os.O_CREATE|os.O_WRONLY, 0o444); err == nil {
			mark.Close()
		}
	}
	if err == nil {
		err = os.Rename(pack, path+".pack")
	}
	if err == nil {
		err = os.Rename(idx, path+".idx")
	}
	if err != nil {
		remove()
		return nil, err
	}
	return func() error {
		err := disk.OS.SyncDir(filepath.Dir(path))
		if err != nil {
			remove()
		}
		return err
	}, nil
}

// lockedTemp creates a temporary file and locks it (flock). The lock prevents other processes from removing the file,
// because sweep, which each process calls when it opens the directory, skips locked files.
func lockedTemp(dir string) (*os.File, error) {
	for {
		f, err := os.CreateTemp(dir, tempPrefix+"*")
		if err != nil {
			return nil, fmt.Errorf("create temporary file: %w", err)
		}
		// The sweep of another process may remove the file after it was created and before it was locked. In that case,
		// create another file.
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			if _, err = os.Lstat(f.Name()); err == nil {
				return f, nil
			}
		}
		f.Close()
		if !errors.Is(err, fs.ErrNotExist) && err != syscall.EWOULDBLOCK { // a sweep causes no other errors than these two
			return nil, fmt.Errorf("create temporary file: %w", err)
		}
	}
}
