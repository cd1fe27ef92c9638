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

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/object"
)

// IngestOptions are options of Ingest.
type IngestOptions struct {
	Promisor      bool  // marks the pack as one whose missing objects the remote promised
	MaxObjectSize int64 // larger objects are refused with ErrTooLarge, in bytes
	Temporary     bool  // the pack need not survive a power loss, so nothing waits for the disk
}

// IngestResult is the pack that Ingest kept.
type IngestResult struct {
	Name    string // "pack-<trailer>", the name git gives it; empty for a pack without objects, which is not kept
	Objects int
	Bytes   int64 // size of the pack
}

// ingestCache bounds the recent contents that Ingest keeps as delta bases, in bytes.
const ingestCache = 8 << 20

// Ingest stores the pack that it reads from r to its end. Each object is readable as soon as it was
// verified; then each, if not nil, is called with it on this goroutine, in the order of the pack (a
// delta that precedes its base is delivered after it). The contents may be kept but not changed,
// and are nil for a blob too large for memory. The pack must be self-contained. After an error
// nothing is kept, and objects that were readable are no longer.
func (s *Store) Ingest(ctx context.Context, r io.Reader, o IngestOptions,
	each func(id object.ID, t object.Type, content []byte)) (IngestResult, error) {
	res, err := s.ingest(ctx, r, o, each)
	if err != nil {
		return IngestResult{}, fmt.Errorf("ingest pack: %w", err)
	}
	return res, nil
}

// ingest is Ingest without the context of its errors.
func (s *Store) ingest(ctx context.Context, r io.Reader, o IngestOptions, each func(object.ID, object.Type, []byte)) (IngestResult, error) {
	file, err := lockedTemp(s.dir)
	if err != nil {
		return IngestResult{}, err
	}
	g := &ingestion{s: s, each: each, live: &live{tail: tail{file: file}, table: newTable(s.format), number: s.serial.Add(1)}}
	// Readers of the store see the pack from now on, as far as it was received and verified.
	if !s.replace(func(packs []source) []source { return append([]source{g.live}, packs...) }) {
		file.Close()
		os.Remove(file.Name())
		return IngestResult{}, fs.ErrClosed
	}
	kept := false
	defer func() {
		// After an error the live pack leaves the view; readers that use it keep its file open until they finish.
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
	// finish renames the file to its final name, so from here on the deferred os.Remove finds nothing.
	settle, err := s.finish(file, g.live.table, path, sum, o)
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
			return packs // a Refresh saw it first, or it was there before
		}
		return append([]source{&pack{path: path, format: s.format, number: g.live.number}}, packs...)
	})
	return res, nil
}

// ingestion is the keeper of Ingest: the received bytes are stored as they are, and the objects are only verified.
type ingestion struct {
	s    *Store
	live *live
	each func(object.ID, object.Type, []byte)
}

var _ keeper = (*ingestion)(nil)

// without returns packs but the live one.
func (g *ingestion) without(packs []source) []source {
	return slices.DeleteFunc(slices.Clone(packs), func(p source) bool { return p == g.live })
}

// inMemory reports whether contents are decoded in memory: all commits, trees and tags, and blobs up to maxInMemory.
func (g *ingestion) inMemory(t object.Type, size int64) bool {
	return t != object.Blob || size <= maxInMemory
}

func (g *ingestion) spool(int64) (*os.File, error) { return nil, nil } // the pack itself keeps it

func (g *ingestion) scratch() (*os.File, error) { return g.s.temp() }

// base reads a base back from the pack that is being received. A base too large for memory is written to a temporary
// file.
func (g *ingestion) base(rec int) (body, error) {
	off := g.live.table.offset(rec)
	t, data, err := g.s.load(g.live, off, maxInMemory)
	if err == errLargeBase || errors.Is(err, ErrTooLarge) {
		return g.s.spill(g.live, off)
	}
	return body{typ: t, size: int64(len(data)), data: data}, err
}

// deliver records the id of the object, from which moment readers of the store find it.
func (g *ingestion) deliver(rec, depth int, o Object) error {
	g.live.table.name(rec, o.ID, o.Type, depth)
	if g.each != nil {
		g.each(o.ID, o.Type, o.Data)
	}
	return nil
}

// hasPack reports whether packs contain the finished pack at path, without suffix.
func hasPack(packs []source, path string) bool {
	return slices.ContainsFunc(packs, func(p source) bool { p2, ok := p.(*pack); return ok && p2.path == path })
}

// finish makes file a pack at path, whose entries t lists and whose trailer is sum. The contents of
// its files are then on disk, unless the pack is Temporary; settle syncs their names as well, and
// removes the pack if that fails. The order ensures that a process that sees the index also sees
// the whole pack and its mark, even after a power loss: file systems keep the order of changes of a
// directory.
func (s *Store) finish(f *os.File, t *table, path string, sum []byte, o IngestOptions) (settle func() error, err error) {
	if err := f.Chmod(0o444); err != nil {
		return nil, err
	}
	if !o.Temporary {
		startWriting(f) // the disk is busy with the pack while the index is made
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
	if o.Temporary {
		return publish(f.Name(), idx.Name(), path, o.Promisor)
	}
	startWriting(idx)
	if err := f.Sync(); err != nil {
		return nil, err
	}
	if err := idx.Sync(); err != nil {
		return nil, fmt.Errorf("write index: %w", err)
	}
	return publish(f.Name(), idx.Name(), path, o.Promisor)
}

// startWriting makes the kernel begin to write a file, without waiting for it. If the writing of all files to be
// synced has begun, the journal of the file system commits them together, so that syncing the second costs nearly
// nothing. It is a hint: errors are ignored.
func startWriting(f *os.File) {
	_ = unix.SyncFileRange(int(f.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE)
}

// publish renames a pack and its index to their final names; settle is that of finish. Existing files of these names
// have the same contents, because the name is a hash of them.
func publish(pack, idx, path string, promisor bool) (settle func() error, err error) {
	remove := func() {}
	if _, err := os.Lstat(path + ".idx"); err != nil {
		remove = func() {
			os.Remove(path + ".idx")
			os.Remove(path + ".pack")
			os.Remove(path + ".promisor")
		}
	}
	// The mark is created before the pack and the index: git must never see the pack without it, or it would report
	// the missing objects as damage.
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

// lockedTemp creates a temporary file and locks it (flock), so that sweep, run by another process's Open, leaves it
// alone.
func lockedTemp(dir string) (*os.File, error) {
	for {
		f, err := os.CreateTemp(dir, tempPrefix+"*")
		if err != nil {
			return nil, fmt.Errorf("make temporary file: %w", err)
		}
		// Another Open may sweep the file between its creation and its lock. Then the name is gone, and a new file is
		// made.
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			if _, err = os.Lstat(f.Name()); err == nil {
				return f, nil
			}
		}
		f.Close()
		if !errors.Is(err, fs.ErrNotExist) && err != syscall.EWOULDBLOCK { // swept before it was locked
			return nil, fmt.Errorf("make temporary file: %w", err)
		}
	}
}
