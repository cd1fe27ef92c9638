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

// place is an objects directory, of this repository or another's. It may come to be only later.
type place struct {
	dir    string
	format object.Format
	loose  *odb.Loose

	mu     sync.Mutex
	store  *odb.Store // nil until there are packs
	closed bool
}

func newPlace(dir string, f object.Format) *place {
	return &place{dir: dir, format: f, loose: odb.NewLoose(dir, f)}
}

// packs gives the packs of the place; odb.ErrNotFound if it has no directory for them.
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

func (p *place) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.store == nil {
		return nil
	}
	return p.store.Close()
}

// holds says whether the place has an object, and in a loose file.
func (p *place) holds(id object.ID) (held, loose bool) {
	if s, err := p.packs(); err == nil && s.Has(id) {
		return true, false
	}
	name := id.String()
	if _, err := os.Lstat(filepath.Join(p.dir, name[:2], name[2:])); err == nil {
		return true, true
	}
	if s, err := p.packs(); err == nil && s.Refresh() == nil && s.Has(id) { // packed by git meanwhile, or before
		return true, false
	}
	return false, false
}

// reader is what packs and loose objects have in common.
type reader interface {
	Get(id object.ID, limit int64) (object.Type, []byte, error)
	Size(id object.ID) (object.Type, int64, error)
	WriteTo(id object.ID, w io.Writer) error
}

// readers lists where to look for an object in the order of how likely and how cheap that is.
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

// look calls read with one place after the other until one has the object. Packs that are known come first: to look
// whether there are new ones takes longer.
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
		if e == nil || errors.Is(e, odb.ErrTooLarge) {
			return e
		}
		if !errors.Is(e, odb.ErrNotFound) {
			err = e
		}
	}
	return err
}

// Get returns type and contents of an object, owned or borrowed, like odb.Store.Get.
func (r *Repo) Get(id object.ID, limit int64) (t object.Type, content []byte, err error) {
	err = r.look(id, func(p reader) (err error) {
		t, content, err = p.Get(id, limit)
		return err
	})
	return t, content, err
}

// Size returns type and size in bytes of an object.
func (r *Repo) Size(id object.ID) (t object.Type, size int64, err error) {
	err = r.look(id, func(p reader) (err error) {
		t, size, err = p.Size(id)
		return err
	})
	return t, size, err
}

// Open returns the contents of an object as a stream, which is verified at its end.
func (r *Repo) Open(id object.ID) (io.ReadCloser, error) {
	if _, _, err := r.Size(id); err != nil {
		return nil, err
	}
	in, out := io.Pipe()
	go func() {
		out.CloseWithError(r.look(id, func(p reader) error {
			if _, _, err := p.Size(id); err != nil { // else it might be found out after something was written
				return err
			}
			return p.WriteTo(id, out)
		}))
	}()
	return in, nil
}

// Tree returns the entries of a tree.
func (r *Repo) Tree(id object.ID) ([]object.TreeEntry, error) {
	content, err := r.typed(id, object.Tree, object.MaxTreeSize)
	if err != nil {
		return nil, err
	}
	return object.ParseTree(r.format, content)
}

// Commit returns a commit.
func (r *Repo) Commit(id object.ID) (object.CommitInfo, error) {
	content, err := r.typed(id, object.Commit, object.MaxCommitSize)
	if err != nil {
		return object.CommitInfo{}, err
	}
	return object.ParseCommit(r.format, content)
}

// errType says that an object is of another type than what names it says.
var errType = errors.New("object of another type")

func (r *Repo) typed(id object.ID, want object.Type, limit int64) ([]byte, error) {
	return typed(r, id, want, limit)
}

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

// Remotes reports whether the mounted remote is known to have an object: the store has it, or git fetched it.
func (r *Repo) Remotes(id object.ID) bool {
	for _, p := range r.borrow {
		if held, _ := p.holds(id); held {
			return true
		}
	}
	for _, p := range r.fresh {
		s, err := p.packs()
		if err != nil {
			continue
		}
		if s.Promised(id) || s.Refresh() == nil && s.Promised(id) { // git may just have fetched it
			return true
		}
	}
	return false
}
