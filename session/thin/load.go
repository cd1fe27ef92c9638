package thin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/artifactfs/artifactfs/internal/gitcmd"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/transport"
)

// unpacked is a container whose packs were extracted into a bare repository without refs.
type unpacked struct {
	dir     string
	repo    *session.Repo
	objects *odb.Store
	ids     map[string][]object.ID // ids of each pack's objects, by the pack's name
}

// close closes the repository and removes it.
func (u *unpacked) close() error { return errors.Join(u.repo.Close(), os.RemoveAll(u.dir)) }

// load sets tip and manifest to those of a container: from memory, from the state file, or by fetching it from the
// session remote. The caller holds loading.
func (r *Remote) load(ctx context.Context, tip object.ID) error {
	r.mu.Lock()
	known := r.tip == tip
	r.mu.Unlock()
	if known {
		return nil
	}
	if tip.IsZero() { // there was no container yet, or the session remote has lost it
		r.set(tip, manifest{})
		return nil
	}
	if st, ok := r.readState(); ok {
		switch tip {
		case st.Tip:
			r.set(tip, st.Manifest)
			return nil
		case st.Next: // a push whose answer was lost
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

// Adopt records the contents of the container, for a process that continues the session, once the
// caller has its objects.
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

// set records the container that the session remote is known to have.
func (r *Remote) set(tip object.ID, m manifest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tip, r.manifest = tip, m
}

// fetchContainer fetches a container, validates its manifest, and extracts its packs. Only one extracted container is
// kept.
func (r *Remote) fetchContainer(ctx context.Context, tip object.ID) (u *unpacked, m manifest, err error) {
	dir, err := r.place()
	if err != nil {
		return nil, m, err
	}
	// The container that was unpacked before uses the same directory.
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
	for _, old := range []string{incoming, spool} { // of a process that was killed
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
		return nil, m, fmt.Errorf("%w: it is of session %s", ErrContainer, m.Session)
	}
	repo, err := session.OpenRepo(spool, session.RepoOptions{Format: tip.Format(), Session: r.session, Log: r.log})
	if err != nil {
		return nil, m, err
	}
	u = &unpacked{dir: spool, repo: repo, ids: map[string][]object.ID{}}
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
			return nil, m, fmt.Errorf("%w: %s: %w", ErrContainer, p.Name, err)
		}
	}
	return u, m, nil
}

// fetchInto fetches one container without its predecessors.
func (r *Remote) fetchInto(ctx context.Context, into *odb.Store, tip object.ID) error {
	caps, err := r.Capabilities(ctx)
	if err != nil {
		return err
	}
	req := transport.FetchRequest{Wants: []object.ID{tip}}
	// Each container is complete in itself, so its predecessors are not needed.
	if caps.Shallow {
		req.Depth = 1
	}
	resp, err := r.Remote.Fetch(ctx, req)
	if err != nil {
		return err
	}
	defer resp.Pack.Close()
	// The pack need not survive a power loss: it is removed after it was unpacked.
	_, err = into.Ingest(ctx, resp.Pack, odb.IngestOptions{MaxObjectSize: maxPack, Temporary: true}, nil)
	return err
}

// readManifest reads the manifest of a container and compares its packs with those in the container's tree. It
// returns ErrContainer if they differ.
func readManifest(from *odb.Store, tip object.ID) (m manifest, err error) {
	f := tip.Format()
	// read returns the contents of an object of the type want.
	read := func(id object.ID, want object.Type, limit int64) ([]byte, error) {
		t, content, err := from.Get(id, limit)
		if err == nil && t != want {
			err = fmt.Errorf("%s is a %v", id, t)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrContainer, err)
		}
		return content, nil
	}
	// tree returns the entries of a tree by their names.
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
	// A pack in the tree that the manifest does not list would never be read, so the numbers must be equal.
	if m.Format != f || len(packs) != len(m.Packs) {
		return m, fmt.Errorf("%w: it has %d packs, and names %d", ErrContainer, len(packs), len(m.Packs))
	}
	for _, p := range m.Packs {
		if packs[p.Name].ID != p.Blob {
			return m, fmt.Errorf("%w: %s is not the pack that it names", ErrContainer, p.Name)
		}
	}
	return m, nil
}

// take extracts a pack from its blob. Ingest verifies the hash of each object. The ids of the objects are recorded in
// u.ids.
func (u *unpacked) take(ctx context.Context, from *odb.Store, p packEntry) error {
	t, size, err := from.Size(p.Blob)
	if err != nil {
		return err
	}
	if t != object.Blob || size != p.Size {
		return fmt.Errorf("a %v of %d bytes", t, size)
	}
	// The pack may be larger than memory, so it is passed through a pipe.
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

// stream returns one pack of all objects. Stock git makes it and reuses existing deltas.
func (u *unpacked) stream(ctx context.Context) (io.ReadCloser, error) {
	var ids bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(u.ids)) {
		for _, id := range u.ids[name] {
			ids.WriteString(id.String() + "\n")
		}
	}
	cmd := gitcmd.Isolated(ctx, "--git-dir="+u.repo.Dir(), "-c", "core.commitGraph=false", "pack-objects", "-q", "--stdout")
	var stderr gitcmd.Tail
	cmd.Stdin, cmd.Stderr = &ids, &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &stream{out, func() error {
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("make pack: %w", gitcmd.Failed(cmd, err, stderr.Bytes()))
		}
		return nil
	}}, nil
}
