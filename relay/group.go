package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/internal/signal"
	"github.com/artifactfs/artifactfs/relay/packs"
	"github.com/artifactfs/artifactfs/relay/wire"
)

const (
	// maxGroup is the maximum size of the contents of a group. Without sizes, a group of large files can be larger than intended; such
	// a group is not stored, and its blobs are requested from the git server when clients request them.
	maxGroup = 256 << 20
	// spoolOver is the size of a blob above which it is stored in a file while it is decoded.
	spoolOver = 4 << 20
)

// groupFlight is the flight of a group.
type groupFlight struct {
	flight
	plan *planned
	ids  []object.ID
	more chan struct{} // has an element when a client has called want

	// flight.mu protects the fields below.
	places map[object.ID]packs.Place // of the blobs in the file
	left   map[object.ID]struct{}    // blobs that are not in the file and were not requested
	wanted map[object.ID]struct{}    // blobs for which clients wait, since the last request for such blobs
}

// want records that a client waits for blobs, so that they are requested soon.
func (f *groupFlight) want(ids []object.ID) {
	f.mu.Lock()
	for _, id := range ids {
		f.wanted[id] = struct{}{}
	}
	f.mu.Unlock()
	signal.Send(f.more)
}

// errTooLarge means that a group has more than maxGroup bytes.
var errTooLarge = errors.New("group is too large to be stored")

// flyGroup returns the flight for a group of whose blobs a client wants some, and starts it if there is none. The caller must call release.
func (m *remote) flyGroup(p *planned, g int, wants []object.ID, c caller) *groupFlight {
	key := m.key(packs.Blob, p.Name(g))
	f := launch(m, m.groups, key, func() *groupFlight {
		return &groupFlight{flight: newFlight(key, c), plan: p, ids: p.Group(g), more: make(chan struct{}, 1),
			places: map[object.ID]packs.Place{}, wanted: map[object.ID]struct{}{}}
	}, m.runGroup)
	f.want(wants)
	return f
}

// runGroup fetches a group: from the object store or, if it is not there, from the git server.
func (m *remote) runGroup(ctx context.Context, f *groupFlight) error {
	if file, err := m.relay.shelf.Load(ctx, f.key); err == nil {
		places, err := verifyGroup(file, f.plan.Format)
		if err == nil {
			f.mu.Lock()
			f.file, f.places, f.complete = file.File, places, true
			f.mu.Unlock()
			return nil
		}
		file.Close()
		m.relay.shelf.Forget(ctx, f.key, err)
	}
	if m.refuses() {
		return errors.New("git server has refused a request for blobs")
	}
	temp, err := m.relay.shelf.Temp()
	if err != nil {
		return err
	}
	reader, err := os.Open(temp.Name())
	if err != nil {
		m.relay.shelf.Drop(temp)
		return err
	}
	f.mu.Lock()
	f.file = reader
	f.mu.Unlock()
	if err := m.fill(ctx, f, temp); err != nil {
		m.relay.shelf.Drop(temp)
		var refused wire.Refused
		if errors.As(err, &refused) {
			m.refuse()
		}
		return err
	}
	f.mu.Lock()
	f.complete = true
	f.wake()
	f.mu.Unlock()
	return m.relay.shelf.Keep(temp, f.key, true)
}

// verifyGroup compares every blob of a group from the object store, which others can write to, with its id.
func verifyGroup(file *packs.File, f object.Format) (map[object.ID]packs.Place, error) {
	places, err := packs.Places(file.Table, file.Body)
	if err != nil {
		return nil, err
	}
	var entry []byte
	for id, at := range places {
		entry = slices.Grow(entry[:0], int(at.Length))[:at.Length]
		if _, err := file.ReadAt(entry, at.Offset); err != nil {
			return nil, err
		}
		if err := packs.VerifyEntry(entry, f, id, object.Blob); err != nil {
			return nil, err
		}
	}
	return places, nil
}

// borrow copies blobs from groups of other commits on the local disk, and removes them from left. After a commit that changes one file,
// only this file is missing in the new group.
func (m *remote) borrow(f *groupFlight, w *packs.Writer, left map[object.ID]struct{}) error {
	m.mu.Lock()
	plans := slices.Clone(m.plans)
	m.mu.Unlock()
	for _, p := range plans {
		common := map[object.ID]struct{}{}
		for id := range left {
			if p.HasBlob(id) {
				common[id] = struct{}{}
			}
		}
		for g, ids := range p.Split(common) {
			key := m.key(packs.Blob, p.Name(g))
			if key == f.key {
				continue
			}
			if err := m.borrowFrom(key, ids, f, w, left); err != nil {
				return err
			}
		}
	}
	return nil
}

// borrowFrom copies blobs from one group.
func (m *remote) borrowFrom(key string, ids []object.ID, f *groupFlight, w *packs.Writer, left map[object.ID]struct{}) error {
	file, ok := m.relay.shelf.Local(key)
	if !ok {
		return nil
	}
	defer file.Close()
	places, err := packs.Places(file.Table, file.Body)
	if err != nil {
		return nil // the group is requested from the git server when it is needed
	}
	news := map[object.ID]packs.Place{}
	defer func() { f.publish(news) }()
	for _, id := range ids {
		at, ok := places[id]
		if !ok {
			continue
		}
		entry := make([]byte, at.Length)
		if _, err := file.ReadAt(entry, at.Offset); err != nil || packs.VerifyEntry(entry, f.plan.Format, id, object.Blob) != nil {
			continue
		}
		place, err := w.AddEntry(id, entry)
		if err != nil {
			return err
		}
		news[id] = place
		m.relay.counts.borrowed.Add(1)
		delete(left, id)
	}
	return nil
}

// unpacking decodes a pack whose objects are written to a file without deltas.
type unpacking struct {
	dir    string // for temporary files
	format object.Format
	file   io.ReaderAt
	place  func(object.ID) (packs.Place, bool) // of an object in file; it may lag behind the decoder until idle is called
	idle   func()
	limit  int64 // maximum size of all contents
}

// run decodes the pack and calls sink with each object and its contents.
func (u *unpacking) run(ctx context.Context, pack io.Reader, sink func(odb.Object, io.Reader) error) error {
	var total int64
	_, err := odb.Unpack(ctx, idleReader{pack, u.idle}, odb.UnpackOptions{
		Format: u.format, SpoolOver: spoolOver, MaxObjectSize: u.limit,
		Spool: func(int64) (*os.File, error) { return os.CreateTemp(u.dir, "unpack-*.tmp") },
		Base: func(id object.ID) (io.ReaderAt, int64, func(), error) {
			u.idle()
			at, ok := u.place(id)
			if !ok {
				return nil, 0, nil, fmt.Errorf("object %s is not in the pack", id)
			}
			data, err := packs.Contents(u.file, at, u.limit)
			if err != nil {
				return nil, 0, nil, err
			}
			return bytes.NewReader(data), int64(len(data)), func() {}, nil
		},
	}, func(o odb.Object) error {
		defer o.Discard()
		if total += o.Size; total > u.limit {
			return errTooLarge
		}
		var contents io.Reader = bytes.NewReader(o.Data)
		if o.File != nil {
			contents = io.NewSectionReader(o.File, 0, o.Size)
		}
		return sink(o, contents)
	})
	return err
}

// idleReader calls a function before each read.
type idleReader struct {
	io.Reader
	idle func()
}

// Read implements io.Reader.
func (r idleReader) Read(p []byte) (int, error) {
	r.idle()
	return r.Reader.Read(p)
}
