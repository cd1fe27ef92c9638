package gitside

import (
	"context"

	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb/namedset"
	"github.com/artifactfs/artifactfs/worktree"
)

// objects supplies the blobs in the object directory of the mount.
type objects struct {
	namedset.Union
	side   *Side
	format object.Format
}

var _ fuse.Objects = objects{}

// Objects returns the source of the blobs in the object directory of the mount.
func (s *Side) Objects() fuse.Objects {
	p := s.provider()
	return objects{p.NamedBlobs(), s, p.Format()}
}

// Format returns the object format of the repository.
func (o objects) Format() object.Format { return o.format }

// Opened fetches the blob id and those that the process of the thread tid will probably open next. It returns true if the blob is in a
// pack then. If the contents of the blob are on this host, Opened fetches nothing.
func (o objects) Opened(ctx context.Context, tid uint32, id object.ID) (packed bool, err error) {
	o.side.mu.Lock()
	server := o.side.servers.objects
	o.side.mu.Unlock()
	if len(o.side.provider().Missing([]object.ID{id})) == 0 {
		return true, nil
	}
	if _, fetched, _ := o.side.Index.View.BlobState(id); fetched || server == nil {
		return false, nil
	}
	return server.Opened(ctx, tid, id)
}

// sweep is the number of blobs that are fetched at once for a process that reads all blobs.
const sweep = 18_000

// Swept fetches the blob id and those that follow in the order of the ids, if the blob is not on this host.
func (o objects) Swept(ctx context.Context, id object.ID) error {
	if _, fetched, _ := o.side.Index.View.BlobState(id); fetched {
		return nil
	}
	p := o.side.provider()
	wanted := []object.ID{id}
	for first, after := int(id.Bytes()[0]), id; first < 256 && len(wanted) < sweep; first, after = first+1, (object.ID{}) {
		for next := range o.From(byte(first), after) {
			if _, fetched, _ := o.side.Index.View.BlobState(next); !fetched {
				wanted = append(wanted, next)
			}
			if len(wanted) >= sweep {
				break
			}
		}
	}
	return p.Provide(ctx, wanted[:1], wanted)
}

// Size returns the size of a blob in bytes, or -1 if it is not known.
func (o objects) Size(id object.ID) int64 {
	size, _, _ := o.side.Index.View.BlobState(id)
	return size
}

// Content returns the contents of a blob as they are in the repository.
func (o objects) Content(ctx context.Context, id object.ID) (worktree.Content, error) {
	return o.side.Index.View.OpenAlone(ctx, fetch.Blob{ID: id, Path: id.String(), Link: true})
}
