package thin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/packs"
)

// unpacked is the extracted contents of a container: a bare repository without refs, into which its packs were
// extracted.
type unpacked struct {
	dir     string                 // directory of the repository
	repo    *session.Repo          // bare repository that contains the objects of the packs
	objects *odb.Store             // packs of that repository
	ids     map[string][]object.ID // ids of each pack's objects, by the pack's name
}

// close closes the repository and removes its directory.
func (u *unpacked) close() error { return errors.Join(u.repo.Close(), os.RemoveAll(u.dir)) }

// load makes the container with the commit tip the known one: it sets r.tip and r.manifest. It takes the manifest from
// memory, from the state file, or from the session remote. The caller holds r.loading.
func (r *Remote) load(ctx context.Context, tip object.ID) error {
	r.mu.Lock()
	known := r.tip == tip
	r.mu.Unlock()
	if known {
		return nil
	}
	if tip.IsZero() { // the session has no container yet, or the container's ref was deleted
		r.set(tip, manifest{})
		return nil
	}
	if st, ok := r.readState(); ok {
		switch tip {
		case st.Tip:
			r.set(tip, st.Manifest)
			return nil
		case st.Next: // the push of this container has succeeded, but the answer of the server was lost
			r.set(tip, st.NextManifest)
			return nil
		}
	}
	u, m, err := r.fetchContainer(ctx, tip)
	if err != nil {
		return fmt.Errorf("read container of session %s: %w", r.session, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unpacked, r.tip, r.manifest = u, tip, m
	return nil
}

// Adopt records that this host has the objects of the container that was fetched last, because the caller has copied
// them to its repository and continues the session on this host. If no container was fetched, Adopt does nothing.
func (r *Remote) Adopt() error {
	r.loading.Lock()
	defer r.loading.Unlock()
	r.mu.Lock()
	u, tip, m := r.unpacked, r.tip, r.manifest
	r.mu.Unlock()
	if u == nil {
		return nil
	}
	return errors.Join(r.writeIDs(m, u.ids), r.writeState(state{Tip: tip, Manifest: m}))
}

// set records that the session remote has the container with the commit tip and the manifest m. The caller must not
// hold r.mu.
func (r *Remote) set(tip object.ID, m manifest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tip, r.manifest = tip, m
}

// fetchContainer fetches the container with the commit tip, validates its manifest, and extracts its packs. It first
// removes the container that was extracted before.
func (r *Remote) fetchContainer(ctx context.Context, tip object.ID) (_ *unpacked, m manifest, err error) {
	dir, err := r.stateDir()
	if err != nil {
		return nil, m, err
	}
	// Close the container that was extracted before, because it uses the same directory.
	r.mu.Lock()
	before := r.unpacked
	r.unpacked = nil
	r.mu.Unlock()
	if before != nil {
		if err := before.close(); err != nil {
			return nil, m, err
		}
	}
	incoming, spool := join(dir, "incoming"), join(dir, "objects")
	for _, old := range []string{incoming, spool} { // a killed process may have left these directories
		if err := os.RemoveAll(old); err != nil {
			return nil, m, err
		}
	}
	defer os.RemoveAll(incoming)
	came, err := odb.Open(incoming, tip.Format())
	if err != nil {
		return nil, m, err
	}
	defer came.Close()
	if err := r.fetchInto(ctx, came, tip); err != nil {
		return nil, m, err
	}
	if m, err = readManifest(came, tip); err != nil {
		return nil, m, err
	}
	if m.Session != r.session {
		return nil, m, fmt.Errorf("%w: container belongs to session %s", ErrContainer, m.Session)
	}
	repo, err := session.OpenRepo(spool, session.RepoOptions{Format: tip.Format(), Session: r.session, Log: r.log})
	if err != nil {
		return nil, m, err
	}
	u := &unpacked{dir: spool, repo: repo, ids: map[string][]object.ID{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, u.close())
		}
	}()
	if u.objects, err = repo.Packs(); err != nil {
		return nil, m, err
	}
	for _, p := range m.Packs {
		if err := u.take(ctx, came, p); err != nil {
			return nil, m, fmt.Errorf("%w: pack %s: %w", ErrContainer, p.Name, err)
		}
	}
	return u, m, nil
}

// fetchInto fetches the container with the commit tip into the object store into. It leaves out the ancestors of the
// container if the session remote supports shallow fetches.
func (r *Remote) fetchInto(ctx context.Context, into *odb.Store, tip object.ID) error {
	caps, err := r.Capabilities(ctx)
	if err != nil {
		return err
	}
	req := transport.FetchRequest{Wants: []object.ID{tip}}
	// A container is complete without its ancestors, so do not fetch them.
	if caps.Shallow {
		req.Depth = 1
	}
	resp, err := r.Remote.Fetch(ctx, req)
	if err != nil {
		return err
	}
	defer resp.Pack.Close()
	// The pack need not survive a power loss, because it is removed after the container was extracted.
	_, err = into.Ingest(ctx, resp.Pack, odb.IngestOptions{MaxObjectSize: maxPack, Temporary: true}, nil)
	return err
}

// readManifest reads the manifest of the container with the commit tip. It returns ErrContainer if the manifest is
// invalid, or does not list exactly the packs in the tree of the container.
func readManifest(from *odb.Store, tip object.ID) (m manifest, err error) {
	f := tip.Format()
	// read returns the contents of the object id, which must have the type want.
	read := func(id object.ID, want object.Type, limit int64) ([]byte, error) {
		t, content, err := from.Get(id, limit)
		if err == nil && t != want {
			err = fmt.Errorf("object %s is a %v, want a %v", id, t, want)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrContainer, err)
		}
		return content, nil
	}
	// tree returns the entries of the tree id, by name.
	tree := func(id object.ID) (map[string]object.TreeEntry, error) {
		content, err := read(id, object.Tree, object.MaxTreeSize)
		if err != nil {
			return nil, err
		}
		list, err := object.ParseTree(f, content)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrContainer, err)
		}
		named := map[string]object.TreeEntry{}
		for _, e := range list {
			named[e.Name] = e
		}
		return named, nil
	}
	content, err := read(tip, object.Commit, object.MaxCommitSize)
	if err != nil {
		return m, err
	}
	commit, err := object.ParseCommit(f, content)
	if err != nil {
		return m, fmt.Errorf("%w: %w", ErrContainer, err)
	}
	root, err := tree(commit.Tree)
	if err != nil {
		return m, err
	}
	if content, err = read(root[manifestName].ID, object.Blob, maxManifest); err != nil {
		return m, err
	}
	if m, err = decodeManifest(content); err != nil {
		return m, err
	}
	packs := map[string]object.TreeEntry{}
	if e, ok := root[packDir]; ok {
		if packs, err = tree(e.ID); err != nil {
			return m, err
		}
	}
	// A pack in the tree that the manifest does not list would never be read, so the counts must be equal.
	if m.Format != f || len(packs) != len(m.Packs) {
		return m, fmt.Errorf("%w: container has %d packs, but the manifest lists %d", ErrContainer, len(packs), len(m.Packs))
	}
	for _, p := range m.Packs {
		if packs[p.Name].ID != p.Blob {
			return m, fmt.Errorf("%w: pack %s differs from the manifest", ErrContainer, p.Name)
		}
	}
	return m, nil
}

// take extracts a pack from its blob, and records the ids of its objects in u.ids. Ingest verifies the hash of each
// object.
func (u *unpacked) take(ctx context.Context, from *odb.Store, p packEntry) error {
	t, size, err := from.Size(p.Blob)
	if err != nil {
		return err
	}
	if t != object.Blob || size != p.Size {
		return fmt.Errorf("object %s is a %v of %d bytes, want a blob of %d bytes", p.Blob, t, size, p.Size)
	}
	// The pack may be larger than memory, so it is streamed through a pipe.
	in, out := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		out.CloseWithError(from.WriteTo(p.Blob, out))
	}()
	_, err = u.objects.Ingest(ctx, in, odb.IngestOptions{MaxObjectSize: maxPack, Temporary: true},
		func(id object.ID, _ object.Type, _ []byte) {
			u.ids[p.Name] = append(u.ids[p.Name], id)
		})
	// Closing the pipe ends the goroutine if Ingest returned early.
	in.CloseWithError(io.ErrClosedPipe)
	<-done
	return err
}

// stream returns a reader of a pack with all objects of the container. Git writes the pack, and reuses existing deltas.
func (u *unpacked) stream(ctx context.Context) io.ReadCloser {
	var ids []object.ID
	for _, name := range slices.Sorted(maps.Keys(u.ids)) {
		ids = append(ids, u.ids[name]...)
	}
	in, out := io.Pipe()
	s := &stream{in, make(chan struct{})}
	go func() {
		defer close(s.ended)
		out.CloseWithError(packs.Git(u.repo.Dir(), ids)(ctx, out))
	}()
	return s
}
