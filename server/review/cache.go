package review

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/server/receive"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session/cacheentry"
	"github.com/artifactfs/artifactfs/transport"
)

// Entries returns the cache entries of a repository as package cacheentry reads and changes them. Changes are pushes by the user of by,
// which must be allowed. The result is used by one goroutine.
func (s *Service) Entries(by By, repo records.Repo) *cacheentry.Store {
	return &cacheentry.Store{Place: place{s, by, repo}, Now: s.o.Now}
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
	err = p.s.look(ctx, p.repo, func(v *view) error {
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
	return p.s.look(ctx, p.repo, func(v *view) error {
		objects, err := odb.Open(filepath.Join(v.git.Dir, "objects"), v.format)
		if err != nil {
			return err
		}
		defer objects.Close()
		return use(objects)
	})
}

// Update implements cacheentry.Place. All updates are made, or none.
func (p place) Update(ctx context.Context, updates []transport.RefUpdate, objects []odb.Outgoing) ([]error, error) {
	if err := p.by.allowed(p.repo); err != nil {
		return nil, err
	}
	results := make([]error, len(updates))
	moved := false
	var wanted []records.RefUpdate
	err := p.s.look(ctx, p.repo, func(v *view) error {
		for _, u := range updates {
			next := records.RefUpdate{Name: u.Name, Old: v.name(u.Old), New: v.name(u.New)}
			moved = moved || v.update(u.Name, "").Old != next.Old
			wanted = append(wanted, next)
		}
		if moved {
			return nil
		}
		return p.s.o.Pusher.Push(ctx, receive.Request{Repo: v.repo, Token: p.by.Token, Cause: p.by.Cause, Updates: wanted,
			Pack: func(ctx context.Context, w io.Writer) error { return odb.WritePack(ctx, w, v.format, objects) }})
	})
	var refused *receive.Refused
	if errors.As(err, &refused) {
		if moved, err = p.s.moved(ctx, p.repo, wanted); err == nil && !moved {
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
