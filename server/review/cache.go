package review

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/receive"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session/cacheentry"
)

// Entries returns the cache entries of a repository as package cacheentry reads and changes them. Changes are pushes by
// the user of by, which must be allowed. The result is used by one goroutine.
func (s *Service) Entries(by By, repo records.Repo) *cacheentry.Store {
	return &cacheentry.Store{Place: place{s, by, repo}, Now: s.o.Now}
}

// scratch returns a new file on the disk of the replicas, and a function that removes it.
func (s *Service) scratch() (f *os.File, remove func(), err error) {
	dir, err := s.o.Replicas.Scratch()
	if err != nil {
		return nil, nil, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	if f, err = os.OpenFile(filepath.Join(dir, "value"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		remove()
	}
	return f, remove, objects.Classify(err)
}

// Spool copies a value to the disk. It returns cacheentry.ErrTooLarge if the value is larger than cacheentry.MaxValue.
// The caller calls remove when the value is not needed any more.
func (s *Service) Spool(r io.Reader) (v cacheentry.Value, remove func(), err error) {
	f, remove, err := s.scratch()
	if err != nil {
		return v, nil, err
	}
	v.Open = func() (io.ReadCloser, error) { return os.Open(f.Name()) }
	v.Size, err = io.Copy(f, io.LimitReader(r, cacheentry.MaxValue+1))
	if failed := f.Close(); err == nil {
		err = failed
	}
	if err == nil && v.Size > cacheentry.MaxValue {
		err = cacheentry.ErrTooLarge
	}
	if err != nil {
		remove()
	}
	return v, remove, objects.Classify(err)
}

// Value returns the description of a cache entry and its value, after it has verified the value. The caller closes the
// file.
func (s *Service) Value(ctx context.Context, by By, repo records.Repo,
	key string) (e cacheentry.Entry, value *os.File, err error) {
	f, remove, err := s.scratch()
	if err != nil {
		return e, nil, err
	}
	defer remove() // the file can be read until it is closed
	if e, err = s.Entries(by, repo).Get(ctx, key, f); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return e, nil, objects.Classify(err)
	}
	return e, f, nil
}

// place is a repository of the server, for package cacheentry.
type place struct {
	s    *Service
	by   By
	repo records.Repo
}

var _ cacheentry.Place = place{}

// Format implements cacheentry.Place.
func (p place) Format(context.Context) (object.Format, error) {
	return object.ParseFormat(p.repo.ObjectFormat)
}

// Refs implements cacheentry.Place.
func (p place) Refs(ctx context.Context, prefix string) (refs []transport.Ref, err error) {
	err = p.s.look(ctx, p.by, p.repo, func(v *view) error {
		for name, text := range v.refs {
			if !strings.HasPrefix(name, prefix) {
				continue
			}
			id, err := object.ParseIDOf(v.format, text)
			if err != nil {
				return err
			}
			refs = append(refs, transport.Ref{Name: name, ID: id})
		}
		return nil
	})
	return refs, err
}

// Read implements cacheentry.Place. The replica has the objects whatever the depth is.
func (p place) Read(ctx context.Context, _ []object.ID, _ int, use func(*odb.Store) error) error {
	return p.s.look(ctx, p.by, p.repo, func(v *view) error {
		packs, err := odb.Open(filepath.Join(v.git.Dir, "objects"), v.format)
		if err != nil {
			return err
		}
		defer packs.Close()
		return use(packs)
	})
}

// Update implements cacheentry.Place. All updates are made, or none.
func (p place) Update(ctx context.Context, updates []transport.RefUpdate, added []odb.Outgoing) ([]error, error) {
	if err := p.by.allowed(p.repo); err != nil {
		return nil, err
	}
	results := make([]error, len(updates))
	moved := false
	var wanted []records.RefUpdate
	err := p.s.look(ctx, p.by, p.repo, func(v *view) error {
		for _, u := range updates {
			next := records.RefUpdate{Name: u.Name, Old: v.name(u.Old), New: v.name(u.New)}
			moved = moved || v.update(u.Name, "").Old != next.Old
			wanted = append(wanted, next)
		}
		if moved {
			return nil
		}
		return p.s.push(ctx, p.by, receive.Request{Repo: v.repo, Updates: wanted,
			Pack: func(ctx context.Context, w io.Writer) error { return odb.WritePack(ctx, w, v.format, added) }})
	})
	var refused *receive.Refused
	if errors.As(err, &refused) {
		if moved, err = p.s.moved(ctx, p.by, p.repo, wanted); err == nil && !moved {
			err = explain(refused)
		}
	}
	if moved {
		for i, u := range updates {
			results[i] = &transport.Rejected{Ref: u.Name, Kind: transport.RejectMoved}
		}
	}
	return results, err
}

// name returns an id in hexadecimal; the zero id stands for a ref that does not exist.
func (v *view) name(id object.ID) string {
	if id.IsZero() {
		return v.zero()
	}
	return id.String()
}
