package relay

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/relay/packs"
)

// If only the object store has a group and a client wants few of its blobs, these blobs are read from the object store
// one by one: a read of some KiB takes milliseconds, and the whole group takes a hundred. After several such reads, the
// group is copied to the local disk.
const (
	rangedBlobs = 32
	rangedBytes = 512 << 10
	rangedTimes = 4        // maximum number of requests for one group that are answered by reading single blobs
	rangedGap   = 32 << 10 // maximum number of unneeded bytes between two blobs that are read in one request
	tableRead   = 128 << 10
	maxTables   = 256 // maximum number of tables in memory for one remote
)

// remoteTable is the table of a group in the object store, and the number of requests that have used it.
type remoteTable struct {
	places map[object.ID]packs.Place
	uses   int
}

// readRanges reads the entries of single blobs of a group from the object store. ok is false if the whole group should
// be fetched instead.
func (m *remote) readRanges(ctx context.Context, p *planned, g int,
	ids []object.ID) (entries map[object.ID][]byte, ok bool) {
	if len(ids) > rangedBlobs || !m.relay.shelf.Available() {
		return nil, false
	}
	key := m.key(packs.Blob, p.Name(g))
	m.mu.Lock()
	t, flying := m.tables[key], m.groups[key] != nil
	if t != nil {
		t.uses++
	}
	m.mu.Unlock()
	if flying || t != nil && t.uses > rangedTimes {
		return nil, false
	}
	if t == nil {
		var err error
		if t, err = m.readTable(ctx, key); err != nil {
			return nil, false
		}
		m.mu.Lock()
		if len(m.tables) >= maxTables {
			clear(m.tables)
		}
		m.tables[key] = t
		m.mu.Unlock()
	}
	type piece struct {
		id object.ID
		at packs.Place
	}
	var pieces []piece
	var total int64
	for _, id := range ids {
		at, found := t.places[id]
		if total += at.Length; !found || total > rangedBytes {
			return nil, false
		}
		pieces = append(pieces, piece{id, at})
	}
	slices.SortFunc(pieces, func(a, b piece) int { return cmp.Compare(a.at.Offset, b.at.Offset) })
	entries = map[object.ID][]byte{}
	for i := 0; i < len(pieces); {
		start, end := pieces[i].at.Offset, pieces[i].at.Offset+pieces[i].at.Length
		last := i + 1
		for ; last < len(pieces) && pieces[last].at.Offset-end <= rangedGap; last++ {
			end = pieces[last].at.Offset + pieces[last].at.Length
		}
		data, _, err := m.relay.shelf.Range(ctx, key, start, end-start)
		if err != nil || int64(len(data)) < end-start {
			return nil, false
		}
		for ; i < last; i++ {
			entry := data[pieces[i].at.Offset-start:][:pieces[i].at.Length]
			if err := packs.VerifyEntry(entry, p.Format, pieces[i].id, object.Blob); err != nil {
				m.relay.shelf.Forget(ctx, key, err)
				return nil, false
			}
			entries[pieces[i].id] = entry
		}
	}
	return entries, true
}

// readTable reads the table of a group in the object store.
func (m *remote) readTable(ctx context.Context, key string) (*remoteTable, error) {
	end, size, err := m.relay.shelf.Range(ctx, key, -tableRead, 0)
	if err != nil {
		return nil, err
	}
	if len(end) < packs.FooterSize {
		return nil, errors.New("file in the object store is too short for a footer")
	}
	start, length, err := packs.ParseFooter(end[len(end)-packs.FooterSize:], size)
	if err != nil {
		m.relay.shelf.Forget(ctx, key, err)
		return nil, err
	}
	first := size - int64(len(end)) // offset of the bytes end in the file
	table := []byte(nil)
	if start >= first {
		table = end[start-first:][:length]
	} else if table, _, err = m.relay.shelf.Range(ctx, key, start, length); err != nil {
		return nil, err
	}
	places, err := packs.Places(table, start)
	if err != nil {
		m.relay.shelf.Forget(ctx, key, err)
		return nil, err
	}
	return &remoteTable{places: places, uses: 1}, nil
}
