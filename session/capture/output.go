package capture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/session"
)

// output collects the new objects of a checkpoint until they are written.
type output struct {
	format object.Format
	have   func(id object.ID) bool // reports whether the mounted remote has a tree, which then need not be written
	// list holds the objects to write; listed holds their ids.
	list   []odb.Outgoing
	listed map[object.ID]bool
	// trees holds the contents of the collected trees, by id.
	trees   map[object.ID][]byte
	bytes   int64    // total size of the blobs in list
	temps   []string // temporary directories that hold some of the objects; close removes these directories
	keeping int64    // number of bytes of file contents that are kept in memory
}

// close removes the temporary directories. It ignores errors, because New removes directories that remain.
func (w *output) close() {
	for _, dir := range w.temps {
		os.RemoveAll(dir)
	}
}

// add adds an object. It ignores an object that was added before, and a tree that the mounted remote has.
func (w *output) add(o odb.Outgoing) {
	if w.listed[o.ID] || o.Type == object.Tree && w.have(o.ID) {
		return
	}
	w.listed[o.ID] = true
	w.list = append(w.list, o)
	if o.Type == object.Blob {
		w.bytes += o.Size
	}
}

// raw adds an object whose contents are in memory and whose id is known.
func (w *output) raw(id object.ID, t object.Type, content []byte) {
	if t == object.Tree {
		w.trees[id] = content
	}
	w.add(odb.Outgoing{ID: id, Type: t, Size: int64(len(content)), Open: func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}})
}

// tree encodes the entries as a tree, adds the tree to the output and returns its id.
func (w *output) tree(entries []object.TreeEntry) (object.ID, error) {
	content := session.EncodeTree(entries)
	id, err := object.Hash(w.format, object.Tree, content)
	if err == nil {
		w.raw(id, object.Tree, content)
	}
	return id, err
}

// blob adds a blob with these contents to the output, and returns its id.
func (w *output) blob(content []byte) (object.ID, error) {
	id, err := object.Hash(w.format, object.Blob, content)
	if err == nil {
		w.raw(id, object.Blob, content)
	}
	return id, err
}

const (
	smallFile = 1 << 20   // maximum size in bytes of a file that is read once and kept in memory until it is written
	maxKept   = 128 << 20 // maximum number of bytes of all files that are kept in memory
	// hashers is the number of files that are hashed concurrently. More would occupy all processors of a small host and
	// thereby delay the threads that answer the kernel.
	hashers = 2
)

// source is a file from which a blob is made.
type source struct {
	path    string
	size    int64
	content io.ReaderAt
	id      object.ID // id of the blob
	data    []byte    // contents; nil if they are not kept in memory
	mode    object.Mode
	// refused is set if a required filter could not convert the file. The file is then left out, or it keeps the blob
	// before if that is not zero.
	refused bool
	before  object.ID
}

// hash reads the files in list and sets their ids, several files at a time. It keeps the contents of small files in
// memory, at most maxKept bytes in all.
func (w *output) hash(ctx context.Context, list []source) error {
	var mu sync.Mutex
	var failure error
	next := 0
	var wg sync.WaitGroup
	for range min(len(list), hashers) {
		wg.Go(func() {
			buf := make([]byte, 256<<10)
			for {
				mu.Lock()
				i := next
				next++
				stop := failure != nil || i >= len(list) || ctx.Err() != nil
				keep := !stop && list[i].size <= smallFile && w.keeping+list[i].size <= maxKept
				// maxKept limits the contents of all files together, so the size of each file is added before the lock
				// is released.
				if keep {
					w.keeping += list[i].size
				}
				mu.Unlock()
				if stop {
					return
				}
				runtime.Gosched() // let the goroutines that answer the kernel run first
				if err := list[i].hash(w.format, keep, buf); err != nil {
					mu.Lock()
					failure = errors.Join(failure, fmt.Errorf("read file %s: %w", list[i].path, err))
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(failure, ctx.Err())
}

// hash reads the contents of the file and sets s.id. If keep is set, it also sets s.data. The parameter buf is a buffer
// for reading.
func (s *source) hash(f object.Format, keep bool, buf []byte) error {
	if keep {
		s.data = make([]byte, s.size)
		if _, err := io.ReadFull(io.NewSectionReader(s.content, 0, s.size), s.data); err != nil {
			return err
		}
		var err error
		s.id, err = object.Hash(f, object.Blob, s.data)
		return err
	}
	h := object.NewHasher(f, object.Blob, s.size)
	n, err := io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{io.NewSectionReader(s.content, 0, s.size)}, buf)
	// The hashed header contains the size, so after a short read the id would be wrong.
	if err == nil && n != s.size {
		err = io.ErrUnexpectedEOF
	}
	if err == nil {
		s.id, err = h.Sum()
	}
	return err
}

// keep adds the blob of a file to the output. The id of the file was set by hash.
func (w *output) keep(s *source) {
	if s.data != nil {
		w.raw(s.id, object.Blob, s.data)
		return
	}
	w.add(odb.Outgoing{ID: s.id, Type: object.Blob, Size: s.size, Open: func() (io.ReadCloser, error) {
		return io.NopCloser(io.NewSectionReader(s.content, 0, s.size)), nil
	}})
}

// emit adds an encoded tree to the objects of the checkpoint. The Capturer can read the tree from now on, although it
// is not in the Repo yet.
func (s *shot) emit(id object.ID, content []byte) error {
	s.out.raw(id, object.Tree, content)
	s.edit.c.pending[id] = content
	return nil
}
