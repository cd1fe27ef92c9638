package hoststore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/git/transport"
)

// Fetch answers a request for a commit, without its file contents, as the remote would: with a pack of the commit,
// depth-1 generations of its parents, and their trees. Each object is hashed when it is read. It returns
// odb.ErrNotFound if the host lacks the commit or one of the trees.
func (s *Store) Fetch(ctx context.Context, commit object.ID, depth int) (*transport.FetchResponse, error) {
	p := s.open()
	if p == nil || commit.Format() != p.format {
		return nil, fmt.Errorf("read commit %s from the host: %w", commit, odb.ErrNotFound)
	}
	c := &closure{from: p.objects, format: p.format, seen: map[object.ID]bool{}}
	if err := c.commit(ctx, commit, depth); err != nil {
		return nil, fmt.Errorf("read commit %s from the host: %w", commit, err)
	}
	r, w := io.Pipe()
	go func() {
		// If the host removes a pack after the walk has read it, the pack that is sent ends with an error, and the
		// caller requests the commit from the remote.
		w.CloseWithError(odb.WritePack(ctx, w, p.format, c.objects))
	}()
	return &transport.FetchResponse{Shallow: c.shallow, Pack: r}, nil
}

// closure collects commits and trees. Only one goroutine uses it.
type closure struct {
	from    *odb.Store
	format  object.Format
	seen    map[object.ID]bool
	objects []odb.Outgoing
	shallow []object.ID // commits that are collected without their parents
}

// commit adds a commit, its trees, and depth-1 generations of its parents.
func (c *closure) commit(ctx context.Context, id object.ID, depth int) error {
	if c.seen[id] {
		return nil
	}
	content, err := c.add(id, object.Commit, object.MaxCommitSize)
	if err != nil {
		return err
	}
	info, err := object.ParseCommit(c.format, content)
	if err != nil {
		return err
	}
	if err := c.tree(ctx, info.Tree); err != nil {
		return err
	}
	for _, parent := range info.Parents {
		if depth <= 1 || !c.from.Has(parent) {
			c.shallow = append(c.shallow, id)
			return nil
		}
	}
	for _, parent := range info.Parents {
		if err := c.commit(ctx, parent, depth-1); err != nil {
			return err
		}
	}
	return nil
}

// tree adds a tree and all trees below it.
func (c *closure) tree(ctx context.Context, id object.ID) error {
	if c.seen[id] {
		return nil
	}
	content, err := c.add(id, object.Tree, object.MaxTreeSize)
	if err != nil {
		return err
	}
	entries, _, err := object.ReadTree(c.format, content)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Mode == object.ModeDir {
			if err := c.tree(ctx, e.ID); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// add reads an object, adds it to the list, and returns its contents.
func (c *closure) add(id object.ID, want object.Type, limit int64) ([]byte, error) {
	c.seen[id] = true
	t, content, err := c.from.Get(id, limit)
	if err != nil {
		return nil, err
	}
	if t != want {
		return nil, fmt.Errorf("object %s is a %s, want a %s", id, t, want)
	}
	c.objects = append(c.objects, odb.Outgoing{ID: id, Type: t, Size: int64(len(content)),
		Open: func() (io.ReadCloser, error) {
			// The contents are read again, so that a large tree need not be in memory as a whole.
			_, content, err := c.from.Get(id, limit)
			return io.NopCloser(bytes.NewReader(content)), err
		}})
	return content, nil
}

// History describes the refs of the remote at the time when the host last fetched its whole history.
type History struct {
	Refs     []packedrefs.Ref
	Head     string      // full name of the HEAD branch; "": not known
	Boundary []object.ID // commits whose parents the remote lacks
}

// copyTries is the maximum number of times that the list of packs is read, because the host may join packs while they
// are copied.
const copyTries = 5

// History copies the history that the host has fetched. It passes each pack of the host whose name the function has
// does not know to the function store, which must verify all objects. After that, all objects that are reachable from
// the refs in the result are stored. ok is false if the host has not fetched the history.
func (s *Store) History(has func(name string) bool, store func(pack io.Reader) error) (h History, ok bool, err error) {
	if s.open() == nil || !s.repo().Complete() {
		return h, false, nil
	}
	// The refs are read before the packs are listed, because the host adds packs before refs.
	text, err := os.ReadFile(filepath.Join(s.repo().Path(), "packed-refs"))
	if err == nil {
		h.Refs, err = packedrefs.Decode(text)
	}
	if err != nil {
		return h, false, fmt.Errorf("read refs of the host: %w", err)
	}
	h.Head, h.Boundary = s.repo().Head(), s.repo().Boundary()
	files, err := s.openPacks(has)
	if err != nil {
		return h, false, fmt.Errorf("open packs of the host: %w", err)
	}
	defer closeAll(files)
	for _, f := range files {
		if err := store(f); err != nil {
			return h, false, fmt.Errorf("copy pack %s of the host: %w", filepath.Base(f.Name()), err)
		}
	}
	return h, true, nil
}

// openPacks opens all packs of the host, except those for whose names the function has returns true. Packs that the
// host removes afterwards can still be read.
func (s *Store) openPacks(has func(name string) bool) (files []*os.File, err error) {
	for range copyTries {
		var paths map[string]bool
		if paths, err = odb.ListPacks(filepath.Join(s.repo().Objects(), "pack")); err != nil {
			return nil, err
		}
		for path := range paths {
			if has(filepath.Base(path)) {
				continue
			}
			var f *os.File
			if f, err = os.Open(path + ".pack"); err != nil {
				break
			}
			files = append(files, f)
		}
		if err == nil {
			return files, nil
		}
		closeAll(files)
		files = nil
		if !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	return nil, err
}

// closeAll closes files that were only read.
func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
