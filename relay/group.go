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
	// maxGroup is the maximum size, in bytes, of the contents of a group. A group of large files can exceed it if the
	// sizes of the files are not known. Such a group is not stored: its blobs are requested from the git server each
	// time that clients request them.
	maxGroup = 256 << 20
	// spoolOver is the size, in bytes, above which a blob is decoded to a file instead of to memory.
	spoolOver = 4 << 20
)

// groupFlight is the flight of a group.
type groupFlight struct {
	flight
	plan *planned
	ids  []object.ID
	more chan struct{} // receives an element when a client has called want

	// flight.mu protects the fields below. places has the places of the blobs that are in the file.
	places map[object.ID]packs.Place // of the blobs in the file
	left   map[object.ID]struct{}    // blobs that are neither in the file nor requested yet
	wanted map[object.ID]struct{}    // blobs for which clients have called want, and that were not requested since
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

// errTooLarge means that a group of blobs has more than maxGroup bytes.
var errTooLarge = errors.New("group of blobs is too large to be stored")

// flyGroup returns the flight of the group with the index g, and starts it if there is none. wants are the blobs of the
// group that a client wants. The caller must call release.
func (m *remote) flyGroup(p *planned, g int, wants []object.ID, c caller) *groupFlight {
	key := m.key(packs.Blob, p.Name(g))
	f := launch(m, m.groups, key, func() *groupFlight {
		f := &groupFlight{flight: newFlight(key, c), plan: p, ids: p.Group(g), more: make(chan struct{}, 1),
			places: map[object.ID]packs.Place{}, wanted: map[object.ID]struct{}{}}
		f.want(wants) // before the flight starts: its first request depends on what is wanted
		return f
	}, m.runGroup)
	f.want(wants) // of a flight that was under way
	return f
}

// runGroup fetches a group: from the object store or, if that does not have it, from the git server.
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
		return errors.New("git server has refused a request for blobs before")
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

// verifyGroup compares every blob of a group with its id, because other processes can write to the object store. It
// returns the places of the blobs.
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

// borrow copies blobs from groups of other commits on the local disk, and removes them from left. For example, after a
// commit that changes one file, all other files of the new group are in a group of the parent commit.
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

// borrowFrom copies the blobs ids from the group with the key, and removes them from left.
func (m *remote) borrowFrom(key string, ids []object.ID, f *groupFlight, w *packs.Writer,
	left map[object.ID]struct{}) error {
	file, ok := m.relay.shelf.Local(key)
	if !ok {
		return nil
	}
	defer file.Close()
	places, err := packs.Places(file.Table, file.Body)
	if err != nil {
		return nil // a damaged group is skipped, and its blobs are requested from the git server
	}
	news := map[object.ID]packs.Place{}
	defer func() { f.publish(news) }()
	for _, id := range ids {
		at, ok := places[id]
		if !ok {
			continue
		}
		entry := make([]byte, at.Length)
		if _, err := file.ReadAt(entry, at.Offset); err != nil ||
			packs.VerifyEntry(entry, f.plan.Format, id, object.Blob) != nil {
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
	dir    string // directory for temporary files
	format object.Format
	file   io.ReaderAt
	// place of an object in file; may miss the latest objects until idle is called
	place func(object.ID) (packs.Place, bool)
	idle  func()
	limit int64 // maximum size of all contents, in bytes
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
				return nil, 0, nil, fmt.Errorf("pack does not contain object %s, on which a delta is based", id)
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

// idleReader calls the function idle before each read.
type idleReader struct {
	io.Reader
	idle func()
}

// Read implements io.Reader.
func (r idleReader) Read(p []byte) (int, error) {
	r.idle()
	return r.Reader.Read(p)
}
