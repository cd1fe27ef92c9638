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

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/session"
)

// output collects the objects of a checkpoint.
type output struct {
	format  object.Format
	have    func(id object.ID) bool // a tree needs not be written
	list    []odb.Outgoing
	listed  map[object.ID]bool
	trees   map[object.ID][]byte
	bytes   int64    // of blobs on the list
	temps   []string // directories in which some of them are
	keeping int64    // bytes of contents that are kept in memory
}

func newOutput(f object.Format, have func(id object.ID) bool) *output {
	return &output{format: f, have: have, listed: map[object.ID]bool{}, trees: map[object.ID][]byte{}}
}

// close removes what was needed only to write the objects. It can only fail to.
func (w *output) close() {
	for _, dir := range w.temps {
		os.RemoveAll(dir)
	}
}

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

// raw adds an object whose id is known.
func (w *output) raw(id object.ID, t object.Type, content []byte) {
	if t == object.Tree {
		w.trees[id] = content
	}
	w.add(odb.Outgoing{ID: id, Type: t, Size: int64(len(content)), Open: func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}})
}

func (w *output) tree(entries []object.TreeEntry) (object.ID, error) {
	content := session.EncodeTree(entries)
	id, err := object.Hash(w.format, object.Tree, content)
	if err == nil {
		w.raw(id, object.Tree, content)
	}
	return id, err
}

func (w *output) blob(content []byte) (object.ID, error) {
	id, err := object.Hash(w.format, object.Blob, content)
	if err == nil {
		w.raw(id, object.Blob, content)
	}
	return id, err
}

const (
	smallFile = 1 << 20   // contents up to that many bytes are read once, and kept until they are written
	keepMost  = 128 << 20 // bytes of them
	// hashers is how many contents are read at a time. More would have all processors of a small host, and with them the
	// threads that answer the kernel.
	hashers = 2
)

// source is a content of which a blob is made.
type source struct {
	path    string
	size    int64
	content io.ReaderAt
	id      object.ID // that it has
	data    []byte    // what was read, if it was kept
	mode    object.Mode
}

// hash gives contents their ids, several at a time.
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
				keep := !stop && list[i].size <= smallFile && w.keeping+list[i].size <= keepMost
				if keep {
					w.keeping += list[i].size
				}
				mu.Unlock()
				if stop {
					return
				}
				runtime.Gosched() // programs that write wait for the same processors
				if err := list[i].hash(w.format, keep, buf); err != nil {
					mu.Lock()
					failure = errors.Join(failure, fmt.Errorf("read %s: %w", list[i].path, err))
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(failure, ctx.Err())
}

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
	if err == nil && n != s.size {
		err = io.ErrUnexpectedEOF
	}
	if err == nil {
		s.id, err = h.Sum()
	}
	return err
}

// keep adds a content that was hashed.
func (w *output) keep(s *source) {
	if s.data != nil {
		w.raw(s.id, object.Blob, s.data)
		return
	}
	w.add(odb.Outgoing{ID: s.id, Type: object.Blob, Size: s.size, Open: func() (io.ReadCloser, error) {
		return io.NopCloser(io.NewSectionReader(s.content, 0, s.size)), nil
	}})
}
