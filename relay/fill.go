package relay

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/relay/packs"
	"github.com/artifactfs/artifactfs/relay/wire"
)

// A git server sends the first bytes of a pack only after it has prepared the whole pack. So clients that want a few
// blobs do not wait for the whole group: their blobs are requested at once. The rest of the group is requested in
// pieces, one after the other; the first piece begins after the blobs that were requested last. If clients want a large
// part of a group, one request fetches all its missing blobs.
const (
	// urgentBlobs is the maximum number of wanted blobs in one request. If clients want more, everything is requested
	// at once.
	urgentBlobs = 128
	// urgentPart: if clients want at least 1/urgentPart of the missing blobs of a group, everything is requested at
	// once.
	urgentPart = 4
	// urgentRequests is the maximum number of concurrent requests of one group for blobs that clients want.
	urgentRequests = 3
	// pieceBytes and pieceBlobs limit one request for blobs that no client wants yet.
	pieceBytes = 2 << 20
	pieceBlobs = 512
	// wakeTime is the minimum interval at which clients that wait for blobs of a flight are woken while more blobs arrive.
	wakeTime = 2 * time.Millisecond
)

// filling writes the file of a group with blobs from the git server.
type filling struct {
	*remote
	f *groupFlight

	mu    sync.Mutex // protects the fields below; held while a blob is written to the local disk
	w     *packs.Writer
	bytes int64 // total size of the contents written so far, in bytes
}

// fill writes the file of a group. It copies blobs that other groups on the local disk contain, and requests the others
// from the git server.
func (m *remote) fill(ctx context.Context, f *groupFlight, temp *os.File) error {
	w, err := packs.NewWriter(temp, f.plan.Format, len(f.ids))
	if err != nil {
		return err
	}
	left := make(map[object.ID]struct{}, len(f.ids))
	for _, id := range f.ids {
		left[id] = struct{}{}
	}
	if err := m.borrow(f, w, left); err != nil {
		return err
	}
	f.mu.Lock()
	f.left = left
	f.mu.Unlock()
	if err := (&filling{remote: m, f: f, w: w}).run(ctx); err != nil {
		return err
	}
	return w.Close()
}

// run requests all blobs that are not in the file yet.
func (l *filling) run(ctx context.Context) error {
	requests, ctx := errgroup.WithContext(ctx)
	// one element for each request that has ended: whether clients wanted its blobs
	ended := make(chan bool, urgentRequests+2)
	running := map[bool]int{}
	for at := 0; ctx.Err() == nil; {
		ids, wanted := l.f.next(running[true], running[false], &at)
		if len(ids) > 0 {
			running[wanted]++
			requests.Go(func() error {
				defer func() { ended <- wanted }()
				return l.request(ctx, ids)
			})
			continue
		}
		if running[true]+running[false] == 0 {
			break
		}
		select {
		case wanted := <-ended:
			running[wanted]--
		case <-l.f.more:
		case <-ctx.Done():
		}
	}
	return requests.Wait()
}

// next returns the blobs of the next request, and whether clients want them. It returns no blobs if all were requested,
// or if as many requests as allowed are running. at points to the position in the group after the blobs that were
// requested last; next updates it.
func (f *groupFlight) next(urgent, pieces int, at *int) (ids []object.ID, wanted bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range f.wanted {
		if _, ok := f.left[id]; !ok {
			delete(f.wanted, id)
		}
	}
	n := len(f.wanted)
	all := n > urgentBlobs || n > 0 && n >= len(f.left)/urgentPart
	wanted = all || n > 0 && urgent < urgentRequests
	if len(f.left) == 0 || !wanted && pieces > 0 {
		return nil, false
	}
	start, size := *at, int64(0)
	for i := range f.ids {
		if wanted {
			start = 0 // search all blobs of the group, in the order of their paths
		}
		pos := (start + i) % len(f.ids)
		id := f.ids[pos]
		_, left := f.left[id]
		_, want := f.wanted[id]
		if !left || wanted && !all && !want {
			continue
		}
		ids, *at = append(ids, id), pos+1
		delete(f.left, id)
		if size += f.plan.size(id); !wanted && (size >= pieceBytes || len(ids) >= pieceBlobs) {
			break
		}
	}
	return ids, wanted
}

// request requests blobs from the git server and writes them to the file of the group.
func (l *filling) request(ctx context.Context, wants []object.ID) error {
	f := l.f
	answer, body, err := l.relay.upstream.fetch(ctx, l.url, f.starter, wire.Request{Format: f.plan.Format, Wants: wants})
	if err != nil {
		return err
	}
	defer body.Close()
	l.relay.counts.groups.Add(1)
	left := make(map[object.ID]struct{}, len(wants))
	for _, id := range wants {
		left[id] = struct{}{}
	}
	u := unpacking{dir: l.relay.shelf.Dir(), file: f.file, limit: maxGroup, format: f.plan.Format, place: f.place}
	news, last := map[object.ID]packs.Place{}, time.Now()
	publish := func() {
		f.publish(news)
		clear(news)
		last = time.Now()
	}
	u.idle = func() { // publish the blobs before each read from the network, because the read may take long
		if len(news) > 0 {
			publish()
		}
	}
	err = u.run(ctx, answer, func(o odb.Object, contents io.Reader) error {
		if _, ok := left[o.ID]; !ok || o.Type != object.Blob {
			return nil
		}
		at, err := l.add(o, contents)
		if err != nil {
			return err
		}
		delete(left, o.ID)
		if news[o.ID] = at; time.Since(last) > wakeTime {
			publish()
		}
		return nil
	})
	publish()
	if err != nil {
		return err
	}
	for _, id := range wants {
		if _, ok := left[id]; ok {
			return fmt.Errorf("answer of git server does not contain blob %s", id)
		}
	}
	return nil
}

// add writes a blob to the file.
func (l *filling) add(o odb.Object, contents io.Reader) (packs.Place, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bytes += o.Size; l.bytes > maxGroup {
		return packs.Place{}, errTooLarge
	}
	return l.w.Add(o.ID, o.Type, o.Size, contents)
}

// place returns the place of a blob in the file, and false if the file does not contain the blob yet.
func (f *groupFlight) place(id object.ID) (packs.Place, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, ok := f.places[id]
	return at, ok
}

// publish makes blobs that were written to the file available to clients.
func (f *groupFlight) publish(news map[object.ID]packs.Place) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.Copy(f.places, news)
	f.wake()
}
