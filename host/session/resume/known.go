package resume

import (
	"bytes"
	"context"
	"io"

	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/locks"
	"github.com/artifactfs/artifactfs/session/thin"
)

// Known has data of a session that were read from a session remote. A command that knows only the name of a session
// reads these data to find out which remote to mount. The mount then reuses the data, because reading them again would
// take five round trips.
type Known struct {
	Remote  *thin.Remote  // session remote that the data were read from
	Format  object.Format // object format of the session remote
	Listing *thin.Listing // refs of the session, as the session remote lists them
	MetaID  object.ID     // commit of the session's metadata; zero if the session remote has no such session
	Meta    session.Meta  // metadata of the session; valid after ReadMeta
	// objects are the objects of the metadata; nil if one of the objects was too large to be kept in memory.
	objects []odb.Outgoing
}

// prefixes returns the prefixes of the names of the refs that are needed to resume the session called name. Those of
// the locks and of the policy are for the mount, which would request them separately otherwise.
func prefixes(name string) []string {
	return []string{session.MetaRef(name), session.LanePrefix(name), session.PinPrefix(name), session.KeptPrefix(name),
		session.CarriedPrefix(name), session.TranscriptRef(name), session.FactsRef(name), session.OwnerRef,
		session.TagsPrefix(name),
		locks.Ref, approval.PolicyRef, "refs/heads/", "refs/tags/"}
}

// List requests the refs of the session called name from a session remote.
func List(ctx context.Context, remote *thin.Remote, name string) (*Known, error) {
	remote.ListAhead(ctx, prefixes(name))
	caps, err := remote.Capabilities(ctx)
	if err != nil {
		return nil, fault.SessionRemote(remote, err)
	}
	k := &Known{Remote: remote, Format: caps.Format}
	if k.Listing, err = remote.List(ctx, prefixes(name)); err != nil {
		return nil, fault.SessionRemote(remote, err)
	}
	k.MetaID, _ = k.Listing.Has(session.MetaRef(name))
	return k, nil
}

// ReadMeta reads the metadata of the session, with their history, into k.Meta. Temporary files are created in dir.
func (k *Known) ReadMeta(ctx context.Context, dir string) (err error) {
	if k.Meta, k.objects, err = readMeta(ctx, dir, k.Remote, k.MetaID, 0); err != nil {
		return fault.SessionRemote(k.Remote, err)
	}
	return nil
}

// keepMeta stores the metadata of the session in the session repository of the mount. It fetches them if they are not
// in memory.
func (k *Known) keepMeta(ctx context.Context, objects Objects, remote *thin.Remote) error {
	if len(k.objects) > 0 {
		return objects.KeepAs(ctx, k.Format, k.objects)
	}
	if _, err := objects.Fetch(ctx, fetch.FetchRequest{From: remote, Wants: []object.ID{k.MetaID},
		Contents: true}); err != nil {
		return fault.SessionRemote(remote, err)
	}
	return nil
}

// maxMeta is the maximum size in bytes of one object of a session's metadata.
const maxMeta = 16 << 20

// Fetcher is a remote from which objects can be fetched.
type Fetcher interface {
	Fetch(ctx context.Context, req transport.FetchRequest) (*transport.FetchResponse, error)
}

// ReadMeta returns the metadata of a session in the commit id on a remote, without storing them. Temporary files are
// created in dir.
func ReadMeta(ctx context.Context, dir string, remote Fetcher, id object.ID) (session.Meta, error) {
	meta, _, err := readMeta(ctx, dir, remote, id, 1)
	return meta, err
}

// readMeta returns the metadata of a session in the commit id, and all objects of this commit and its history, at most
// depth commits (0 for the whole history). The slice of objects is nil if one of the objects was too large to be kept
// in memory.
func readMeta(ctx context.Context, dir string, remote Fetcher, id object.ID,
	depth int) (session.Meta, []odb.Outgoing, error) {
	tmp, remove, err := disk.TempDir(dir, "meta")
	if err != nil {
		return session.Meta{}, nil, err
	}
	defer remove()
	objects, err := odb.Open(tmp, id.Format())
	if err != nil {
		return session.Meta{}, nil, err
	}
	defer objects.Close()
	resp, err := remote.Fetch(ctx, transport.FetchRequest{Wants: []object.ID{id}, Depth: depth})
	if err != nil {
		return session.Meta{}, nil, err
	}
	defer resp.Pack.Close()
	var all []odb.Outgoing
	whole := true
	// Ingest passes nil as the content of an object that is too large for memory.
	_, err = objects.Ingest(ctx, resp.Pack, odb.IngestOptions{MaxObjectSize: maxMeta, Temporary: true},
		func(id object.ID, t object.Type, content []byte) {
			whole = whole && content != nil
			all = append(all, inMemory(id, t, content))
		})
	if err != nil {
		return session.Meta{}, nil, err
	}
	if !whole {
		all = nil
	}
	meta, err := session.MetaAt(objects, id.Format(), id)
	return meta, all, err
}

// inMemory returns an object with the given content in the form that is written into a pack.
func inMemory(id object.ID, t object.Type, content []byte) odb.Outgoing {
	return odb.Outgoing{ID: id, Type: t, Size: int64(len(content)), Open: func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}}
}
