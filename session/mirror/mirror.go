// Package mirror reads sessions of a session remote without mounting them and without storing anything permanently.
//
// A Mirror is a bare repository in a temporary directory. Each method fetches one part of the sessions, usually with
// one request, so that a caller fetches only the parts that it needs: the metadata of sessions (Find), their
// checkpoints (Checkpoints), the trees of the checkpoints (Trees), the base tree (Base), and contents (Contents). The
// history of the mounted remote is not fetched: the requests name the base commit of the session as a commit that the
// client has.
//
// Objects that the session remote lacks are fetched from the mounted remote (Options.Origin). An example is the base
// commit of a session that was pushed without the history of the mounted remote.
//
// A Mirror must not be used by several goroutines concurrently.
package mirror

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session"
)

// maxObject is the maximum size in bytes of a fetched object. Larger objects are refused.
const maxObject = 1 << 30

// Remote is a session remote or a mounted remote. It is implemented by *transport.Remote.
type Remote interface {
	URL() string
	Capabilities(ctx context.Context) (transport.Capabilities, error)
	Refs(ctx context.Context, prefixes []string) (transport.Refs, error)
	Fetch(ctx context.Context, req transport.FetchRequest) (*transport.FetchResponse, error)
	Close() error
}

// Options configures a Mirror.
type Options struct {
	Dir    string // directory in which the temporary directory is created
	Remote Remote // session remote; the Mirror closes it
	// Origin opens the mounted remote with the given URL. The Mirror closes it. If Origin is nil, objects that the
	// session remote lacks are not fetched.
	Origin func(url string) (Remote, error)
}

// Mirror is a temporary repository with the fetched parts of the sessions of a session remote.
type Mirror struct {
	remote Remote
	open   func(url string) (Remote, error)
	origin map[string]Remote // mounted remotes that were opened, by URL
	dir    string            // directory of the temporary bare repository
	remove func() error      // removes dir; nil if dir was not created
	caps   transport.Capabilities
	refs   map[string]object.ID     // ids of the refs of the session remote that Find has read, by name
	main   *session.Repo            // the repository, through which objects are written
	views  map[string]*session.Repo // the same repository for each session, opened read-only
	metas  map[string]session.Meta
	// had states for each session which part of its checkpoints was fetched. based is the set of the base commits that
	// were fetched.
	had   map[string]depth
	based map[object.ID]bool
}

// depth states which part of a session's checkpoints was fetched: nothing, the commits, or the commits and their trees.
type depth int

const (
	nothing depth = iota
	commits
	trees
)

// Open returns an empty Mirror of o.Remote. It requests the session remote's capabilities.
func Open(ctx context.Context, o Options) (_ *Mirror, err error) {
	m := &Mirror{remote: o.Remote, open: o.Origin, origin: map[string]Remote{}, refs: map[string]object.ID{},
		views: map[string]*session.Repo{}, metas: map[string]session.Meta{}, had: map[string]depth{},
		based: map[object.ID]bool{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	if m.caps, err = o.Remote.Capabilities(ctx); err != nil {
		return nil, err
	}
	if m.dir, m.remove, err = disk.TempDir(o.Dir, "mirror"); err != nil {
		return nil, err
	}
	m.main, err = session.OpenRepo(m.dir, session.RepoOptions{Format: m.caps.Format})
	return m, err
}

// Close closes the remotes and removes the temporary repository.
func (m *Mirror) Close() error {
	err := m.remote.Close()
	for _, o := range m.origin {
		err = errors.Join(err, o.Close())
	}
	for _, v := range m.views {
		err = errors.Join(err, v.Close())
	}
	if m.main != nil {
		err = errors.Join(err, m.main.Close())
	}
	if m.remove != nil {
		err = errors.Join(err, m.remove())
	}
	return err
}

// Remote returns the session remote.
func (m *Mirror) Remote() Remote { return m.remote }

// Refs returns the ids of the refs of the session remote that Find has read, by full name.
func (m *Mirror) Refs() map[string]object.ID { return m.refs }

// Find fetches the metadata of the sessions with the given names, or of all sessions if no names are given. It sends
// two requests.
func (m *Mirror) Find(ctx context.Context, names ...string) error {
	prefixes := []string{session.Prefix}
	if len(names) > 0 {
		prefixes = []string{session.OwnerRef}
		for _, n := range names {
			prefixes = append(prefixes, session.MetaRef(n), session.LanePrefix(n), session.PinPrefix(n),
				session.TranscriptRef(n),
				session.FactsRef(n))
		}
	}
	refs, err := m.remote.Refs(ctx, prefixes)
	if err != nil {
		return err
	}
	var metas []object.ID
	for _, r := range refs.List {
		m.refs[r.Name] = r.ID
		if strings.HasPrefix(r.Name, session.MetaRef("")) && !slices.Contains(metas, r.ID) {
			metas = append(metas, r.ID)
		}
	}
	if len(metas) == 0 {
		return nil
	}
	if err := m.fetch(ctx, transport.FetchRequest{Wants: metas, Depth: 1}); err != nil {
		return err
	}
	for name, id := range m.refs {
		if of, ok := strings.CutPrefix(name, session.MetaRef("")); ok {
			meta, err := session.MetaAt(m.main, m.caps.Format, id)
			if errors.Is(err, session.ErrNotMeta) || errors.Is(err, session.ErrNewerMeta) || err == nil && meta.Session != of {
				continue // another program or a later version wrote this ref, so skip it and read the others
			}
			if err != nil {
				return err
			}
			m.metas[of] = meta
		}
	}
	return m.writeRefs()
}

// writeRefs writes the refs into the packed-refs file of the repository, where session.Repo reads them.
func (m *Mirror) writeRefs() error {
	var list []packedrefs.Ref
	for name, id := range m.refs {
		list = append(list, packedrefs.Ref{Name: name, ID: id})
	}
	return os.WriteFile(filepath.Join(m.dir, "packed-refs"), packedrefs.Encode(nil, list), 0o600)
}

// fetch sends the request r to the session remote, and stores the fetched objects.
func (m *Mirror) fetch(ctx context.Context, r transport.FetchRequest) error {
	return m.fetchFrom(ctx, m.remote, m.caps, r)
}

// fetchAny sends the request r to the session remote and, if this fails, to the mounted remote of the session called
// name. It stores the fetched objects.
func (m *Mirror) fetchAny(ctx context.Context, name string, r transport.FetchRequest) error {
	err := m.fetch(ctx, r)
	url := m.metas[name].Remote
	if err == nil || url == "" || m.open == nil || ctx.Err() != nil {
		return err
	}
	if m.origin[url] == nil {
		o, openErr := m.open(url)
		if openErr != nil {
			return errors.Join(err, openErr)
		}
		m.origin[url] = o
	}
	caps, originErr := m.origin[url].Capabilities(ctx)
	if originErr == nil {
		originErr = m.fetchFrom(ctx, m.origin[url], caps, r)
	}
	if originErr != nil {
		return errors.Join(err, originErr)
	}
	return nil
}

// fetchFrom sends the request r to a remote, and stores the fetched objects. If the server does not support filters or
// shallow fetches, the request is sent without its filter or its depth.
func (m *Mirror) fetchFrom(ctx context.Context, from Remote, caps transport.Capabilities,
	r transport.FetchRequest) error {
	if !caps.Filter {
		r.Filter = ""
	}
	if !caps.Shallow {
		r.Depth = 0
	}
	packs, err := m.main.Packs()
	if err != nil {
		return err
	}
	resp, err := from.Fetch(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Pack.Close()
	if _, err := packs.Ingest(ctx, resp.Pack, odb.IngestOptions{MaxObjectSize: maxObject, Promisor: true, Temporary: true},
		nil); err != nil {
		return err
	}
	// The views use the same pack directory as m.main, but each view has a separate list of packs.
	for _, v := range m.views {
		packs, err := v.Packs()
		if err == nil {
			err = packs.Refresh()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Sessions returns the names of the sessions that Find has found, sorted.
func (m *Mirror) Sessions() []string {
	var names []string
	for name := range m.metas {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Meta returns the metadata of a session, and false if Find has not found the session.
func (m *Mirror) Meta(name string) (session.Meta, bool) {
	meta, ok := m.metas[name]
	return meta, ok
}

// Repo returns the temporary repository, opened read-only as the repository of the session called name. The caller must
// not close the result; the Mirror does.
func (m *Mirror) Repo(name string) (*session.Repo, error) {
	if v := m.views[name]; v != nil {
		return v, nil
	}
	v, err := session.OpenRepo(m.dir, session.RepoOptions{Format: m.caps.Format, Session: name, ReadOnly: true})
	if err == nil {
		m.views[name] = v
	}
	return v, err
}

// Checkpoints fetches the commits of all checkpoints of the named sessions by one request.
func (m *Mirror) Checkpoints(ctx context.Context, names ...string) error {
	return m.checkpoints(ctx, commits, names)
}

// Trees fetches the checkpoints, transcripts and facts of the named sessions by one request: the commits and their
// trees, except for trees that the base commits contain.
func (m *Mirror) Trees(ctx context.Context, names ...string) error {
	return m.checkpoints(ctx, trees, names)
}

// checkpoints fetches the parts of the named sessions that d states, by one request. It leaves out sessions of which
// these parts were fetched before.
func (m *Mirror) checkpoints(ctx context.Context, d depth, names []string) error {
	filter := map[depth]string{commits: "tree:0", trees: "blob:none"}[d]
	var wants, haves []object.ID
	for _, name := range names {
		meta, ok := m.metas[name]
		if !ok || m.had[name] >= d {
			continue
		}
		for ref, id := range m.refs {
			checkpoint := strings.HasPrefix(ref, session.LanePrefix(name)) || strings.HasPrefix(ref, session.PinPrefix(name))
			recorded := ref == session.TranscriptRef(name) || ref == session.FactsRef(name)
			if (checkpoint || d == trees && recorded) && !slices.Contains(wants, id) {
				wants = append(wants, id)
			}
		}
		// State that this client has the base commit, so that the server leaves out the history of the mounted remote.
		if base, err := object.ParseID(meta.Base); err == nil && !slices.Contains(haves, base) {
			haves = append(haves, base)
		}
	}
	if len(wants) > 0 {
		if err := m.fetch(ctx, transport.FetchRequest{Wants: wants, Haves: haves, Filter: filter}); err != nil {
			return err
		}
	}
	for _, name := range names {
		m.had[name] = max(m.had[name], d)
	}
	return nil
}

// Base fetches the base commit of the session called name, and all trees of that commit.
func (m *Mirror) Base(ctx context.Context, name string) error {
	base, err := object.ParseID(m.metas[name].Base)
	if err != nil || m.based[base] { // either the session started on an unborn branch, or the commit was fetched before
		return nil
	}
	if err := m.fetchAny(ctx, name, transport.FetchRequest{Wants: []object.ID{base}, Depth: 1,
		Filter: "blob:none"}); err != nil {
		return fmt.Errorf("fetch base commit %s of session %s: %w", base, name, err)
	}
	m.based[base] = true
	return nil
}

// Commits fetches commits of the session called name, or of its mounted remote, without their history, and all trees of
// these commits.
func (m *Mirror) Commits(ctx context.Context, name string, ids []object.ID) error {
	return m.fetchAny(ctx, name, transport.FetchRequest{Wants: ids, Depth: 1, Filter: "blob:none"})
}

// Contents fetches those of the given blobs that are missing in the Mirror, by one request. The blobs are contents of
// files of the session called name.
func (m *Mirror) Contents(ctx context.Context, name string, ids []object.ID) error {
	var wants []object.ID
	for _, id := range ids {
		if !m.main.Owned(id) && !slices.Contains(wants, id) {
			wants = append(wants, id)
		}
	}
	if len(wants) == 0 {
		return nil
	}
	return m.fetchAny(ctx, name, transport.FetchRequest{Wants: wants, Filter: "blob:none"})
}

// History fetches the given commits and all their ancestors from the session remote, without trees.
func (m *Mirror) History(ctx context.Context, commits ...object.ID) error {
	return m.fetch(ctx, transport.FetchRequest{Wants: commits, Filter: "tree:0"})
}

// Since fetches the given commits and those of their ancestors that are not ancestors of the commit base, from the
// session remote, without trees.
func (m *Mirror) Since(ctx context.Context, base object.ID, commits ...object.ID) error {
	return m.fetch(ctx, transport.FetchRequest{Wants: commits, Haves: []object.ID{base}, Filter: "tree:0"})
}

// Commit returns a commit that was fetched before.
func (m *Mirror) Commit(id object.ID) (object.CommitInfo, error) { return m.main.Commit(id) }

// Write stores objects in the temporary repository, so that a git command can read them.
func (m *Mirror) Write(ctx context.Context, objects []odb.Outgoing) error {
	return m.main.Write(ctx, objects)
}

// Snapshot fetches one commit with its trees from the session remote, and returns the id of its root tree.
func (m *Mirror) Snapshot(ctx context.Context, commit object.ID) (object.ID, error) {
	if err := m.fetch(ctx, transport.FetchRequest{Wants: []object.ID{commit}, Depth: 1, Filter: "blob:none"}); err != nil {
		return object.ID{}, err
	}
	c, err := m.main.Commit(commit)
	return c.Tree, err
}

// Tree returns the entries of a tree that was fetched before.
func (m *Mirror) Tree(id object.ID) ([]object.TreeEntry, error) { return m.main.Tree(id) }

// Dir returns the directory of the temporary repository.
func (m *Mirror) Dir() string { return m.dir }
