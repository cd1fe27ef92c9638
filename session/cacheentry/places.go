package cacheentry

import (
	"context"
	"errors"
	"io"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session"
)

// Place is a git repository in which a Store stores entries: a Remote, or the Embedded session remote.
type Place interface {
	// Format returns the object format of the repository.
	Format(ctx context.Context) (object.Format, error)
	// Refs returns the refs whose names begin with a prefix.
	Refs(ctx context.Context, prefix string) ([]transport.Ref, error)
	// Read calls the function use with a store that contains the objects of the commits and of their ancestors up to a
	// depth. A depth of 1 means only the commits themselves.
	Read(ctx context.Context, commits []object.ID, depth int, use func(*odb.Store) error) error
	// Update stores objects and changes refs by compare-and-swap. It returns the result of each update: nil, or a
	// *transport.Rejected if the ref was not changed.
	Update(ctx context.Context, updates []transport.RefUpdate, objects []odb.Outgoing) ([]error, error)
}

var (
	_ Place = Remote{}
	_ Place = Embedded{}
)

// Remote is a session remote that is reached by its URL or path.
type Remote struct {
	Remote *transport.Remote // the caller closes it
	Dir    string            // directory for temporary files
}

// Format returns the object format of the session remote.
func (r Remote) Format(ctx context.Context) (object.Format, error) {
	caps, err := r.Remote.Capabilities(ctx)
	return caps.Format, err
}

// Refs requests the refs of the session remote whose names begin with prefix.
func (r Remote) Refs(ctx context.Context, prefix string) ([]transport.Ref, error) {
	refs, err := r.Remote.Refs(ctx, []string{prefix})
	return refs.List, err
}

// Read fetches the commits by one request into a temporary store, and calls use with the store.
func (r Remote) Read(ctx context.Context, commits []object.ID, depth int, use func(*odb.Store) error) (err error) {
	caps, err := r.Remote.Capabilities(ctx)
	if err != nil {
		return err
	}
	dir, remove, err := disk.TempDir(r.Dir, "cacheentry")
	if err != nil {
		return err
	}
	defer remove()
	objects, err := odb.Open(dir, caps.Format)
	if err != nil {
		return err
	}
	defer objects.Close()
	if !caps.Shallow {
		depth = 0
	}
	answer, err := r.Remote.Fetch(ctx, transport.FetchRequest{Wants: commits, Depth: depth})
	if err != nil {
		return err
	}
	defer answer.Pack.Close()
	limits := odb.IngestOptions{MaxObjectSize: MaxValue, Promisor: true, Temporary: true}
	if _, err := objects.Ingest(ctx, answer.Pack, limits, nil); err != nil {
		return err
	}
	return use(objects)
}

// Update pushes to the session remote.
func (r Remote) Update(ctx context.Context, updates []transport.RefUpdate, objects []odb.Outgoing) ([]error, error) {
	var refs []transport.Ref
	removes := false
	for _, u := range updates {
		refs = append(refs, transport.Ref{Name: u.Name, ID: u.Old})
		removes = removes || u.New.IsZero()
	}
	// OpenPushOf avoids a listing of all refs, but then the client does not know whether the server can remove refs.
	open := func() (*transport.Push, error) { return r.Remote.OpenPushOf(ctx, refs) }
	if removes {
		open = func() (*transport.Push, error) { return r.Remote.OpenPush(ctx, []string{session.EntryPrefix}) }
	}
	push, err := open()
	if err != nil {
		return nil, err
	}
	defer push.Close()
	req := transport.PushRequest{Updates: updates}
	if len(objects) > 0 {
		req.Pack = func(ctx context.Context, w io.Writer) error { return odb.WritePack(ctx, w, push.Format, objects) }
	}
	return push.Send(ctx, req)
}

// Embedded is the embedded session remote: the repository of a session on this host. It is read and written without
// git, because receive-pack would verify a push by reading all packs of the mounted remote.
type Embedded struct {
	Repo *session.Repo // the caller closes it
}

// Format returns the object format of the repository.
func (e Embedded) Format(context.Context) (object.Format, error) { return e.Repo.Format(), nil }

// Refs returns the refs of the repository whose names begin with prefix.
func (e Embedded) Refs(_ context.Context, prefix string) ([]transport.Ref, error) {
	all, err := e.Repo.Refs(prefix)
	var refs []transport.Ref
	for _, ref := range all {
		refs = append(refs, transport.Ref{Name: ref.Name, ID: ref.ID})
	}
	return refs, err
}

// Read calls use with the repository's object store. No gc removes objects until use returns.
func (e Embedded) Read(_ context.Context, _ []object.ID, _ int, use func(*odb.Store) error) error {
	defer e.Repo.Working()()
	objects, err := e.Repo.Packs()
	if err != nil {
		return err
	}
	return use(objects)
}

// Update writes objects and refs to the repository.
func (e Embedded) Update(ctx context.Context, updates []transport.RefUpdate, objects []odb.Outgoing) ([]error, error) {
	defer e.Repo.Working()()
	results := make([]error, len(updates))
	for i, u := range updates {
		change := []session.RefChange{{Name: u.Name, Old: u.Old, New: u.New}}
		var err error
		if len(objects) > 0 {
			err = e.Repo.Record(ctx, objects, change)
		} else {
			err = e.Repo.Update(ctx, change)
		}
		if errors.Is(err, session.ErrRefMoved) {
			results[i], err = &transport.Rejected{Ref: u.Name, Kind: transport.RejectMoved, Text: err.Error()}, nil
		}
		if err != nil {
			return nil, err
		}
	}
	return results, nil
}
