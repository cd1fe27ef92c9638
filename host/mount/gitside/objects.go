package gitside

import (
	"context"
	"fmt"

	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/object/loose"
	"github.com/artifactfs/artifactfs/git/odb/named"
	"github.com/artifactfs/artifactfs/git/promisor"
)

// objects implements fuse.Objects: it supplies the objects in the directory gitdir.Hidden of the mount, from which git
// reads missing objects. The number of an object is the prefix of its ID.
type objects struct{ side *Side }

var _ fuse.Objects = objects{}

// Objects returns the source of the objects in the directory gitdir.Hidden of the mount.
func (s *Side) Objects() fuse.Objects { return objects{s} }

// server returns the source of missing objects, or nil if git commands cannot run yet.
func (o objects) server() *promisor.Server {
	o.side.mu.Lock()
	defer o.side.mu.Unlock()
	return o.side.servers.objects
}

// Find returns how the process of the thread tid is to find the object with the ID name (by its contents, by its
// existence, or not at all), and the number of the object.
func (o objects) Find(ctx context.Context, tid uint32, name string) (fuse.Finding, uint64, error) {
	server := o.server()
	id, err := object.ParseID(name)
	if err != nil || server == nil || id.Format() != o.side.provider().Format() {
		return fuse.Absent, 0, nil
	}
	found, contents, err := server.Find(ctx, tid, id)
	switch {
	case err != nil || !found:
		return fuse.Absent, 0, err
	case !contents:
		return fuse.Existence, 0, nil
	}
	return fuse.Contents, named.Prefix(id), nil
}

// looseObject is the loose form of a blob, as git stores an object in a file.
type looseObject struct {
	*loose.Blob
	fetch.Content
}

func (o looseObject) Size() int64 { return o.Blob.Size() }

func (o looseObject) ReadAt(p []byte, off int64) (int, error) { return o.Blob.ReadAt(p, off) }

// Open returns the blob with this number in the form of a loose object.
func (o objects) Open(ctx context.Context, number uint64) (fuse.Object, error) {
	id, ok, err := o.side.provider().NamedBlobs().Prefixed(ctx, number)
	if err == nil && !ok {
		err = fmt.Errorf("no blob has the prefix %016x", number)
	}
	if err != nil {
		return nil, err
	}
	c, err := o.side.Contents.View.OpenAlone(ctx, fetch.Blob{ID: id, Path: id.String(), Link: true})
	if err != nil {
		return nil, err
	}
	return looseObject{loose.New(c, c.Size()), c}, nil
}

// Opened records that the process of the thread tid has opened the object for which Find was called last, and fetches
// the object if the process cannot request it.
func (o objects) Opened(ctx context.Context, tid uint32) {
	if server := o.server(); server != nil {
		server.Opened(ctx, tid, o.changed)
	}
}

// changed returns the paths that have changed since the mount showed an unchanged tree. It returns nil if they are not
// known.
func (o objects) changed() []string {
	monitor := o.side.Index.Tree.Monitor()
	c, err := monitor.Changes(monitor.StartToken())
	if err != nil || c.All {
		return nil
	}
	return c.Paths
}

// Lists reports whether the process of the thread tid is to find objects by listing a directory.
func (o objects) Lists(tid uint32) bool {
	server := o.server()
	return server != nil && server.Lists(tid)
}

// List returns the names in the directory for object IDs that begin with the byte first.
func (o objects) List(first byte) []string {
	if server := o.server(); server != nil {
		return server.List(first)
	}
	return nil
}
