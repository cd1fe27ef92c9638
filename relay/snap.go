package relay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"os"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/relay/packs"
	"github.com/artifactfs/artifactfs/relay/plan"
	"github.com/artifactfs/artifactfs/relay/wire"
)

// The limits of the first request of a mount, for a commit and its parents with their trees. The relay sends the same
// request to the git server.
const (
	snapDepth  = 2
	snapFilter = "blob:none"
)

// snapFlight is the flight of a snap. At its end, the plan of the snap was added to the remote, unless the flight has
// failed or the commit has no plan.
type snapFlight struct {
	flight
	id object.ID

	// flight.mu protects the fields below.
	began   bool
	shallow []object.ID
	size    int64 // number of bytes of the pack that have arrived
	fresh   bool  // true if the git server, and not the object store, has sent the pack, on behalf of the starter
}

// key returns the key of a file of the remote.
func (m *remote) key(k packs.Kind, name string) string { return m.prefix + string(k) + "/" + name }

// fly returns the flight of a snap, and starts it if there is none. The caller must call release.
func (m *remote) fly(id object.ID, c caller) *snapFlight {
	key := m.key(packs.Snap, id.String())
	return launch(m, m.snaps, key, func() *snapFlight { return &snapFlight{flight: newFlight(key, c), id: id} }, m.run)
}

// run fetches a snap: from the object store or, if that does not have it, from the git server.
func (m *remote) run(ctx context.Context, f *snapFlight) error {
	if file, err := m.relay.shelf.Load(ctx, f.key); err == nil {
		p, err := m.read(ctx, f.starter, file, f.id)
		if err == nil {
			shallow, _ := packs.IDs(file.Table)
			f.mu.Lock()
			f.began, f.complete, f.shallow, f.file, f.size = true, true, shallow, file.File, file.Body
			f.wake()
			f.mu.Unlock()
			m.add(p)
			return nil
		}
		file.Close()
		m.relay.shelf.Forget(ctx, f.key, err)
	}
	return m.acquire(ctx, f)
}

// acquire fetches a snap from the git server, stores its file and adds its plan.
func (m *remote) acquire(ctx context.Context, f *snapFlight) (err error) {
	temp, err := m.relay.shelf.Temp()
	if err != nil {
		return err
	}
	kept := false
	defer func() {
		if !kept {
			m.relay.shelf.Drop(temp)
		}
	}()
	req := wire.Request{Format: f.id.Format(), Wants: []object.ID{f.id}, Depth: snapDepth, Filter: snapFilter}
	answer, body, err := m.relay.upstream.fetch(ctx, m.url, f.starter, req)
	if err != nil {
		return err
	}
	defer body.Close()
	// Clients read through a second descriptor, because Keep closes the first one.
	reader, err := os.Open(temp.Name())
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.began, f.fresh, f.shallow, f.file = true, true, answer.Shallow, reader
	f.wake()
	f.mu.Unlock()
	sum := sha256.New()
	if err := f.receive(answer, io.MultiWriter(temp, sum)); err != nil {
		return err
	}
	if err := finishSnap(temp, sum, answer.Shallow); err != nil {
		return err
	}
	// Clients may read the pack before it is verified here, because they verify it, too.
	file := &packs.File{File: temp, Body: f.size}
	p, err := m.read(ctx, f.starter, file, f.id)
	if err != nil {
		return err
	}
	kept = true
	if err := m.relay.shelf.Keep(temp, f.key, true); err != nil {
		return err
	}
	m.add(p)
	return nil
}

// receive copies the pack of an answer to w, and wakes clients that wait for bytes.
func (f *snapFlight) receive(answer io.Reader, w io.Writer) error {
	buf := make([]byte, 128<<10)
	for {
		n, err := answer.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return fmt.Errorf("store pack: %w", err)
			}
		}
		f.mu.Lock()
		f.size += int64(n)
		f.complete = err == io.EOF
		f.wake()
		f.mu.Unlock()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read answer of git server: %w", err)
		}
	}
}

// finishSnap writes the table and the footer of a snap to w. sum is the hash of its pack.
func finishSnap(w io.Writer, sum hash.Hash, shallow []object.ID) error {
	var table []byte
	for _, id := range shallow {
		table = packs.AppendID(table, id)
	}
	if _, err := w.Write(packs.Finish(table, sum)); err != nil {
		return fmt.Errorf("store pack: %w", err)
	}
	return nil
}

// read returns the plan of a snap. It verifies every object of the snap, and stores the file of the kind tree. If the
// git server reports sizes, read requests them on behalf of c.
func (m *remote) read(ctx context.Context, c caller, f *packs.File, want object.ID) (*planned, error) {
	all, err := plan.Unpack(ctx, io.NewSectionReader(f, 0, f.Body), want.Format(), m.relay.shelf.Dir())
	if err != nil {
		return nil, err
	}
	p, err := plan.New(want, all)
	if err != nil {
		return nil, err
	}
	if err := checkShallow(f, all, p.Format); err != nil {
		return nil, err
	}
	if err := m.storeTrees(p, all); err != nil {
		return nil, err
	}
	known := m.sizesOf(ctx, c, p)
	p.Cut(known)
	return &planned{p, known}, nil
}

// checkShallow returns an error if the stored list of shallow commits does not contain a commit whose parents are
// missing, because a client would look for these parents.
func checkShallow(f *packs.File, all plan.Objects, format object.Format) error {
	listed := map[object.ID]bool{}
	ids, err := packs.IDs(f.Table)
	// a new snap has no table yet; its list of shallow commits is that of the git server
	if err != nil || f.Table == nil {
		return err
	}
	for _, id := range ids {
		listed[id] = true
	}
	for id, o := range all {
		if o.Type != object.Commit || listed[id] {
			continue
		}
		info, err := object.ParseCommit(format, o.Data)
		if err != nil {
			return err
		}
		for _, parent := range info.Parents {
			if _, ok := all[parent]; !ok {
				return fmt.Errorf("%w: parents of commit %s are missing, and it is not in the list of shallow commits",
					packs.ErrDamaged, id)
			}
		}
	}
	return nil
}

// storeTrees stores the tag, the commit and the trees of a plan without deltas, so that each of them can be sent alone.
func (m *remote) storeTrees(p *plan.Plan, all plan.Objects) error {
	key := m.key(packs.Tree, p.Want.String())
	if f, ok := m.relay.shelf.Local(key); ok {
		f.Close()
		return nil
	}
	temp, err := m.relay.shelf.Temp()
	if err != nil {
		return err
	}
	ids := append(append([]object.ID{}, p.Heads...), p.Trees...)
	w, err := packs.NewWriter(temp, p.Format, len(ids))
	for _, id := range ids {
		if err == nil {
			o, ok := all[id]
			if !ok { // only the empty tree may be missing; git does not store it
				o.Type = object.Tree
			}
			_, err = w.Add(id, o.Type, int64(len(o.Data)), bytes.NewReader(o.Data))
		}
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		m.relay.shelf.Drop(temp)
		return fmt.Errorf("store trees: %w", err)
	}
	return m.relay.shelf.Keep(temp, key, false)
}

// serveSnap answers the first request of a mount, for a commit and its parents without blobs. It returns false if the
// request has to be passed.
func (e *exchange) serveSnap(ctx context.Context, id object.ID) (bool, error) {
	m := e.remote
	if !m.filters() {
		return false, nil
	}
	if file, ok := m.relay.shelf.Local(m.key(packs.Snap, id.String())); ok {
		defer file.Close()
		shallow, err := packs.IDs(file.Table)
		if err != nil || e.check(ctx, id) != nil {
			return false, nil
		}
		out := e.beginFetch()
		if err := out.Begin(true, shallow); err != nil {
			return true, err
		}
		if _, err := io.CopyBuffer(out, onlyReader{io.NewSectionReader(file, 0, file.Body)},
			make([]byte, 128<<10)); err != nil {
			return true, err
		}
		return true, out.End()
	}
	f := m.fly(id, e.caller)
	defer f.release()
	return e.follow(ctx, f)
}

// follow sends the pack of a flight to the client while it arrives. It returns false if the flight has failed before
// the answer began.
func (e *exchange) follow(ctx context.Context, f *snapFlight) (bool, error) {
	var sent int64
	var out *wire.FetchWriter
	buf := make([]byte, 128<<10)
	for {
		f.mu.Lock()
		began, size, complete, err, changed := f.began, f.size, f.complete, f.err, f.changed
		proven := f.fresh && f.starter.reader == e.caller.reader
		f.mu.Unlock()
		switch {
		case err != nil && out == nil:
			return false, nil
		case err != nil:
			return true, err
		case began && out == nil:
			if !proven && e.check(ctx, f.id) != nil {
				return false, nil
			}
			out = e.beginFetch()
			if err := out.Begin(true, f.shallow); err != nil {
				return true, err
			}
			continue
		case sent < size:
			n, err := f.file.ReadAt(buf[:min(int64(len(buf)), size-sent)], sent)
			if n == 0 {
				return true, err
			}
			if _, err := out.Write(buf[:n]); err != nil {
				return true, err
			}
			sent += int64(n)
			continue
		case complete && out != nil:
			return true, out.End()
		}
		if out != nil {
			if err := out.Flush(); err != nil {
				return true, err
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return out != nil, context.Cause(ctx)
		}
	}
}
