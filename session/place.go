package session

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
)

// place is an objects directory of this repository or of another one. The directory need not exist yet, and its packs are
// opened when they are needed for the first time. A place is safe for concurrent use.
type place struct {
	dir    string
	format object.Format
	loose  *odb.Loose

	mu     sync.Mutex
	store  *odb.Store // nil: the directory of the packs was not opened yet, or does not exist
	closed bool
}

// newPlace returns a place for the objects directory dir, which need not exist.
func newPlace(dir string, f object.Format) *place {
	return &place{dir: dir, format: f, loose: odb.NewLoose(dir, f)}
}

// packs returns the packs of the place. It returns odb.ErrNotFound if the place has no directory for packs, and
// fs.ErrClosed after close.
func (p *place) packs() (*odb.Store, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, fs.ErrClosed
	}
	if p.store != nil {
		return p.store, nil
	}
	if _, err := os.Stat(filepath.Join(p.dir, "pack")); err != nil {
		return nil, fmt.Errorf("%w: %w", odb.ErrNotFound, err)
	}
	s, err := odb.Open(p.dir, p.format)
	p.store = s
	return s, err
}

// close closes the packs. Later calls of packs fail.
func (p *place) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.store == nil {
		return nil
	}
	return p.store.Close()
}

// holds reports whether the place has an object, and whether that is a loose one.
func (p *place) holds(id object.ID) (held, loose bool) {
	if s, err := p.packs(); err == nil && s.Has(id) {
		return true, false
	}
	name := id.String()
	if _, err := os.Lstat(filepath.Join(p.dir, name[:2], name[2:])); err == nil {
		return true, true
	}
	if s, err := p.packs(); err == nil && s.Refresh() == nil && s.Has(id) { // git may have packed it meanwhile
		return true, false
	}
	return false, false
}

// reader is the common interface of packs and loose objects.
type reader interface {
	Get(id object.ID, limit int64) (object.Type, []byte, error)
	Size(id object.ID) (object.Type, int64, error)
	WriteTo(id object.ID, w io.Writer) error
}

// readers returns all sources of objects, the most likely and cheapest first: own and borrowed packs, then the
// mount's git directory, then loose objects.
func (r *Repo) readers() []reader {
	var list []reader
	for _, p := range append([]*place{r.own}, r.borrow...) {
		if s, err := p.packs(); err == nil {
			list = append(list, s)
		}
	}
	for _, p := range r.fresh {
		list = append(list, p.loose)
		if s, err := p.packs(); err == nil {
			list = append(list, s)
		}
	}
	list = append(list, r.own.loose)
	for _, p := range r.borrow {
		list = append(list, p.loose)
	}
	return list
}

// look calls read with one source of objects after the other until a source has the object or fails with odb.ErrTooLarge.
// It begins with packs that are known to have the object, because a source that lacks the object first looks for new
// packs, which is slow. If no source has the object, look returns the last error other than odb.ErrNotFound, or
// odb.ErrNotFound if there was no other error.
func (r *Repo) look(id object.ID, read func(reader) error) error {
	err := fmt.Errorf("read object %s: %w", id, odb.ErrNotFound)
	list := r.readers()
	for i, p := range list {
		if s, ok := p.(*odb.Store); ok && s.Has(id) {
			copy(list[1:i+1], list[:i])
			list[0] = p
			break
		}
	}
	for _, p := range list {
		e := read(p)
		// odb.ErrTooLarge means that the object was found.
		if e == nil || errors.Is(e, odb.ErrTooLarge) {
			return e
		}
		if !errors.Is(e, odb.ErrNotFound) {
			err = e
		}
	}
	return err
}

// Get returns type and contents of an object that is owned, borrowed, or in the mount's git directory. It returns
// odb.ErrNotFound if the object is missing and odb.ErrTooLarge if its contents exceed limit bytes.
func (r *Repo) Get(id object.ID, limit int64) (t object.Type, content []byte, err error) {
	err = r.look(id, func(p reader) (err error) {
		t, content, err = p.Get(id, limit)
		return err
	})
	return t, content, err
}

// Size returns the type of an object and its size in bytes. It returns odb.ErrNotFound if the object is missing.
func (r *Repo) Size(id object.ID) (t object.Type, size int64, err error) {
	err = r.look(id, func(p reader) (err error) {
		t, size, err = p.Size(id)
		return err
	})
	return t, size, err
}

// Open returns a reader for the contents of an object. They are verified against the ID at the end of the stream: a
// mismatch is the error of the last read. The caller must read to the end or close the reader, because a goroutine
// writes to it.
func (r *Repo) Open(id object.ID) (io.ReadCloser, error) {
	if _, _, err := r.Size(id); err != nil {
		return nil, err
	}
	in, out := io.Pipe()
	go func() {
		out.CloseWithError(r.look(id, func(p reader) error {
			if _, _, err := p.Size(id); err != nil { // look would try the next source after a part of the contents was written
				return err
			}
			return p.WriteTo(id, out)
		}))
	}()
	return in, nil
}

// Tree returns the entries of a tree object.
func (r *Repo) Tree(id object.ID) ([]object.TreeEntry, error) {
	content, err := r.typed(id, object.Tree, object.MaxTreeSize)
	if err != nil {
		return nil, err
	}
	return object.ParseTree(r.format, content)
}

// Commit returns the parsed header of a commit object.
func (r *Repo) Commit(id object.ID) (object.CommitInfo, error) {
	content, err := r.typed(id, object.Commit, object.MaxCommitSize)
	if err != nil {
		return object.CommitInfo{}, err
	}
	return object.ParseCommit(r.format, content)
}

// errType reports an object whose type differs from the type that the reference to it implies.
var errType = errors.New("object has another type")

// typed returns the contents of an object of type want.
func (r *Repo) typed(id object.ID, want object.Type, limit int64) ([]byte, error) {
	return typed(r, id, want, limit)
}

// typed returns the contents of an object from src, and errType if it is not of type want.
func typed(src Objects, id object.ID, want object.Type, limit int64) ([]byte, error) {
	t, content, err := src.Get(id, limit)
	if err == nil && t != want {
		err = fmt.Errorf("read object %s: %w: %s, want %s", id, errType, t, want)
	}
	return content, err
}

// Owned reports whether the repository stores an object itself.
func (r *Repo) Owned(id object.ID) bool {
	held, _ := r.own.holds(id)
	return held
}

// Remotes reports whether the mounted remote is known to have an object: the object is in the store, or in a pack
// that git has fetched from the remote.
func (r *Repo) Remotes(id object.ID) bool {
	for _, p := range r.borrow {
		if held, _ := p.holds(id); held {
			return true
		}
	}
	for _, p := range r.fresh {
		// Loose objects and other packs in the mount's git directory were created by local commands.
		s, err := p.packs()
		if err != nil {
			continue
		}
		if s.Promised(id) || s.Refresh() == nil && s.Promised(id) { // git may have fetched it since the last look
			return true
		}
	}
	return false
}
