package session

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
)

// reader reads git objects from packs or from loose objects.
type reader interface {
	Get(id object.ID, limit int64) (object.Type, []byte, error)
	Size(id object.ID) (object.Type, int64, error)
	WriteTo(id object.ID, w io.Writer) error
}

// sources reads objects from all objects directories that a Repo uses. All methods are safe for concurrent use, because
// the fields do not change and each place has its own lock.
type sources struct {
	format object.Format
	own    *place   // objects directory of the repository itself
	borrow []*place // objects directories of the store; the mounted remote can supply their objects again
	fresh  []*place // objects directories of the mount's git directory: RepoOptions.Fresh
}

// newSources returns the sources for the session repository in the directory dir.
func newSources(dir string, o RepoOptions) *sources {
	s := &sources{format: o.Format, own: newPlace(filepath.Join(dir, "objects"), o.Format)}
	for _, b := range o.Borrow {
		s.borrow = append(s.borrow, newPlace(b, o.Format))
	}
	for _, f := range o.Fresh {
		s.fresh = append(s.fresh, newPlace(f, o.Format))
	}
	return s
}

// close closes all files. Later reads fail.
func (s *sources) close() error {
	err := s.own.close()
	for _, p := range s.borrow {
		err = errors.Join(err, p.close())
	}
	for _, p := range s.fresh {
		err = errors.Join(err, p.close())
	}
	return err
}

// readers returns the packs and loose objects of all places, in the order in which they are searched: first those that
// are fast to search and likely to have an object, which are own and borrowed packs, then the mount's git directory,
// then other loose objects.
func (s *sources) readers() []reader {
	var list []reader
	for _, p := range append([]*place{s.own}, s.borrow...) {
		if packs, err := p.packs(); err == nil {
			list = append(list, packs)
		}
	}
	for _, p := range s.fresh {
		list = append(list, p.loose)
		if packs, err := p.packs(); err == nil {
			list = append(list, packs)
		}
	}
	list = append(list, s.own.loose)
	for _, p := range s.borrow {
		list = append(list, p.loose)
	}
	return list
}

// tryReaders calls the function read with one reader after the other, until read returns nil or odb.ErrTooLarge, which
// mean that the reader has the object. It begins with packs that are known to have the object, because a reader that
// lacks the object searches the disk for new packs, which is slow. If no reader has the object, tryReaders returns the
// last error other than odb.ErrNotFound, if any, otherwise odb.ErrNotFound.
func (s *sources) tryReaders(id object.ID, read func(reader) error) error {
	err := fmt.Errorf("read object %s: %w", id, odb.ErrNotFound)
	list := s.readers()
	for i, p := range list {
		if packs, ok := p.(*odb.Store); ok && packs.Has(id) {
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

// Get returns the type and contents of an object that is owned, borrowed, or in the mount's git directory. It returns
// odb.ErrNotFound if the object is missing, and odb.ErrTooLarge if its contents exceed limit bytes.
func (s *sources) Get(id object.ID, limit int64) (t object.Type, content []byte, err error) {
	err = s.tryReaders(id, func(p reader) (err error) {
		t, content, err = p.Get(id, limit)
		return err
	})
	return t, content, err
}

// Size returns the type of an object and its size in bytes. It returns odb.ErrNotFound if the object is missing.
func (s *sources) Size(id object.ID) (t object.Type, size int64, err error) {
	err = s.tryReaders(id, func(p reader) (err error) {
		t, size, err = p.Size(id)
		return err
	})
	return t, size, err
}

// Open returns a reader for the contents of an object. At the end of the stream the contents are compared with the
// object ID; if they do not match, the last read returns an error. The caller must read to the end or close the reader,
// because otherwise a goroutine is blocked forever.
func (s *sources) Open(id object.ID) (io.ReadCloser, error) {
	if _, _, err := s.Size(id); err != nil {
		return nil, err
	}
	in, out := io.Pipe()
	go func() {
		out.CloseWithError(s.tryReaders(id, func(p reader) error {
			// Size fails if p lacks the object. Check this first: after p has written a part of the contents,
			// tryReaders must not try the next reader.
			if _, _, err := p.Size(id); err != nil {
				return err
			}
			return p.WriteTo(id, out)
		}))
	}()
	return in, nil
}

// Tree returns the entries of a tree object.
func (s *sources) Tree(id object.ID) ([]object.TreeEntry, error) {
	content, err := typed(s, id, object.Tree, object.MaxTreeSize)
	if err != nil {
		return nil, err
	}
	entries, _, err := object.ReadTree(s.format, content)
	return entries, err
}

// Commit returns the parsed header of a commit object.
func (s *sources) Commit(id object.ID) (object.CommitInfo, error) {
	content, err := typed(s, id, object.Commit, object.MaxCommitSize)
	if err != nil {
		return object.CommitInfo{}, err
	}
	return object.ParseCommit(s.format, content)
}

// TreeOf returns the root tree of a commit, or the zero ID if commit is zero.
func (s *sources) TreeOf(commit object.ID) (object.ID, error) {
	if commit.IsZero() {
		return object.ID{}, nil
	}
	c, err := s.Commit(commit)
	return c.Tree, err
}

// errType means that an object has another type than the object that refers to it states.
var errType = errors.New("object has another type")

// typed reads an object from src and returns its contents. It returns errType if the object does not have the type
// want, and odb.ErrTooLarge if the contents exceed limit bytes.
func typed(src Objects, id object.ID, want object.Type, limit int64) ([]byte, error) {
	t, content, err := src.Get(id, limit)
	if err == nil && t != want {
		err = fmt.Errorf("read object %s: %w: %s, want %s", id, errType, t, want)
	}
	return content, err
}

// Owned reports whether the repository itself stores the object id. It returns false for objects that are only in the
// store or in the mount's git directory.
func (s *sources) Owned(id object.ID) bool {
	held, _ := s.own.holds(id)
	return held
}

// Remotes reports whether the mounted remote is known to have an object, because the object is in the store, or in a
// pack that git has fetched from the remote.
func (s *sources) Remotes(id object.ID) bool {
	for _, p := range s.borrow {
		if held, _ := p.holds(id); held {
			return true
		}
	}
	for _, p := range s.fresh {
		// Only packs from the remote count, because local commands created the loose objects and other packs in the mount's
		// git directory.
		packs, err := p.packs()
		if err != nil {
			continue
		}
		// Git may have fetched the object since the packs were listed.
		if packs.Promised(id) || packs.Refresh() == nil && packs.Promised(id) {
			return true
		}
	}
	return false
}
