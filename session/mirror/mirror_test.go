package mirror_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/mirror"
)

// counted is a remote that records the requests.
type counted struct {
	*transport.Remote
	lists   [][]string
	fetches []transport.FetchRequest
	failing error // error that Capabilities returns
	closed  int
}

func dial(t *testing.T, dir string) *counted {
	t.Helper()
	r, err := transport.Open(dir, transport.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return &counted{Remote: r}
}

func (c *counted) Capabilities(ctx context.Context) (transport.Capabilities, error) {
	if c.failing != nil {
		return transport.Capabilities{}, c.failing
	}
	return c.Remote.Capabilities(ctx)
}

func (c *counted) Refs(ctx context.Context, prefixes []string) (transport.Refs, error) {
	c.lists = append(c.lists, prefixes)
	return c.Remote.Refs(ctx, prefixes)
}

func (c *counted) Fetch(ctx context.Context, req transport.FetchRequest) (*transport.FetchResponse, error) {
	c.fetches = append(c.fetches, req)
	return c.Remote.Fetch(ctx, req)
}

func (c *counted) Close() error {
	c.closed++
	return c.Remote.Close()
}

// world is a session remote with the sessions one and two. It lacks the history of the mounted remote.
type world struct {
	t           *testing.T
	dir, origin string // directories of the session remote and of the mounted remote
	repo        *session.Repo
	base        object.ID
	checkpoints map[string][]session.Checkpoint
	contents    map[session.CheckpointID]object.ID // blob of the file "own" of each checkpoint
	transcript  object.ID
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	root := t.TempDir()
	origin, err := gittest.New(filepath.Join(root, "origin.git"), gittest.RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dir: filepath.Join(root, "far.git"), origin: origin.Path,
		checkpoints: map[string][]session.Checkpoint{}, contents: map[session.CheckpointID]object.ID{}}
	files := map[string]gittest.File{"dir/deep": {Data: []byte("deep\n")}}
	if w.base, err = origin.Commit("main", files, "base"); err != nil {
		t.Fatal(err)
	}
	if w.repo, err = session.OpenRepo(w.dir, session.RepoOptions{Format: object.SHA1, Session: "one"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.repo.Close() })
	for _, key := range []string{"uploadpack.allowFilter", "uploadpack.allowAnySHA1InWant"} {
		gittest.Must(t, w.dir, "config", key, "true")
	}
	for i, name := range []string{"one", "two"} {
		m := session.Meta{Session: name, Remote: w.origin, Ref: "refs/heads/main", Base: w.base.String()}
		if _, err := session.CreateMeta(t.Context(), w.repo, m, "ann"); err != nil {
			t.Fatal(err)
		}
		at := time.Unix(1_750_000_000+int64(i)*1000, 0)
		w.checkpoint(name, at)
		w.checkpoint(name, at.Add(time.Minute))
	}
	w.transcript = w.write(w.tree(w.blob("a prompt\n")), "transcript")
	w.set(session.TranscriptRef("one"), w.transcript)
	return w
}

func (w *world) put(typ object.Type, content string) object.ID {
	w.t.Helper()
	o, err := session.Outgoing(object.SHA1, typ, []byte(content))
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.repo.Write(w.t.Context(), []odb.Outgoing{o}); err != nil {
		w.t.Fatal(err)
	}
	return o.ID
}

func (w *world) blob(text string) object.ID { return w.put(object.Blob, text) }

func (w *world) tree(own object.ID) object.ID {
	entries := []object.TreeEntry{{Name: "own", Mode: object.ModeFile, ID: own}}
	return w.put(object.Tree, string(session.EncodeTree(entries)))
}

func (w *world) write(tree object.ID, text string) object.ID {
	return w.put(object.Commit, fmt.Sprintf("tree %s\nauthor a <a> 1 +0000\ncommitter a <a> 1 +0000\n\n%s\n", tree, text))
}

func (w *world) set(ref string, id object.ID) {
	w.t.Helper()
	old, err := w.repo.Ref(ref)
	if err == nil {
		err = w.repo.Update(w.t.Context(), []session.RefChange{{Name: ref, Old: old, New: id}})
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// checkpoint adds a checkpoint to a session.
func (w *world) checkpoint(name string, at time.Time) {
	w.t.Helper()
	own := w.blob(name + at.String())
	tree := w.tree(own)
	state, objects, err := session.EncodeState(object.SHA1, session.State{Index: session.Index{Tree: tree}}, nil, at)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.repo.Write(w.t.Context(), objects); err != nil {
		w.t.Fatal(err)
	}
	p := session.Checkpoint{ID: session.NewCheckpointID(at), Tree: tree, State: state, Session: name,
		Lane: "main", Segment: 1, Reason: session.Idle, Time: at.UTC()}
	var parent object.ID
	if made := w.checkpoints[name]; len(made) > 0 {
		parent, p.Prev = made[len(made)-1].Commit, made[len(made)-1].ID
	}
	p.Commit = w.put(object.Commit, string(p.Encode(parent)))
	w.set(session.SegmentRef(name, "main", 1), p.Commit)
	w.checkpoints[name] = append(w.checkpoints[name], p)
	w.contents[p.ID] = own
}

// open returns a Mirror of the session remote. At the end of the test, it checks that the Mirror has removed its files.
func (w *world) open(origin func(string) (mirror.Remote, error)) (*mirror.Mirror, *counted) {
	w.t.Helper()
	dir, remote := w.t.TempDir(), dial(w.t, w.dir)
	m, err := mirror.Open(w.t.Context(), mirror.Options{Dir: dir, Remote: remote, Origin: origin})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := m.Close(); err != nil || remote.closed != 1 {
			w.t.Errorf("close: got %v, and the remote was closed %d times", err, remote.closed)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			w.t.Errorf("after close: got %v, %v, want an empty directory", left, err)
		}
	})
	return m, remote
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// TestPartsOfSession checks that each further part of a session takes one request, and that nothing is fetched twice.
func TestPartsOfSession(t *testing.T) {
	w := newWorld(t)
	m, remote := w.open(nil)
	requests := func(what string, want int) {
		t.Helper()
		if got := len(remote.fetches); got != want {
			t.Errorf("%s: got %d requests, want %d", what, got, want)
		}
		remote.fetches = nil
	}
	w.must(m.Find(t.Context()))
	requests("find", 1)
	meta, ok := m.Meta("two")
	if !slices.Equal(m.Sessions(), []string{"one", "two"}) || !ok || meta.Base != w.base.String() {
		t.Errorf("sessions: got %q, and metadata %+v of two", m.Sessions(), meta)
	}
	if _, ok := m.Meta("three"); ok {
		t.Error("a session that is not on the session remote has metadata")
	}
	w.must(m.Checkpoints(t.Context(), "one", "two"))
	if haves := remote.fetches[0].Haves; !slices.Equal(haves, []object.ID{w.base}) {
		t.Errorf("request of checkpoints: got haves %v, want the base commit, whose history is not needed", haves)
	}
	requests("checkpoints of two sessions", 1)
	newest := w.checkpoints["one"][1]
	for name, want := range w.checkpoints {
		r, err := m.Repo(name)
		w.must(err)
		got, err := r.Checkpoints(0)
		if err != nil || len(got) != 2 || got[0].ID != want[1].ID || got[1].ID != want[0].ID {
			t.Errorf("checkpoints of %s: got %+v, %v, want the two that were made, newest first", name, got, err)
		}
	}
	if _, err := m.Tree(newest.Tree); err == nil {
		t.Error("trees were fetched with the checkpoints")
	}
	if _, err := m.Commit(w.transcript); err == nil {
		t.Error("the transcript was fetched with the checkpoints")
	}
	w.must(m.Trees(t.Context(), "one"))
	requests("trees", 1)
	w.must(m.Trees(t.Context(), "one"))
	w.must(m.Checkpoints(t.Context(), "one"))
	requests("trees and checkpoints again", 0)
	entries, err := m.Tree(newest.Tree)
	if err != nil || len(entries) != 1 || entries[0].ID != w.contents[newest.ID] {
		t.Errorf("tree of a checkpoint: got %v, %v", entries, err)
	}
	if _, err := m.Commit(w.transcript); err != nil {
		t.Errorf("transcript of the session: %v", err)
	}
	r, err := m.Repo("one")
	w.must(err)
	own := w.contents[newest.ID]
	if r.Owned(own) {
		t.Error("contents were fetched with the trees")
	}
	older := w.contents[w.checkpoints["one"][0].ID]
	w.must(m.Contents(t.Context(), "one", []object.ID{own, own}))
	if wants := remote.fetches[0].Wants; !slices.Equal(wants, []object.ID{own}) {
		t.Errorf("request of the contents of one file: got wants %v, want %s", wants, own)
	}
	w.must(m.Contents(t.Context(), "one", []object.ID{own}))
	requests("contents, and the same again", 1)
	if !r.Owned(own) || r.Owned(older) {
		t.Errorf("contents: got %v of the wanted file and %v of another one", r.Owned(own), r.Owned(older))
	}
	w.must(m.Contents(t.Context(), "one", []object.ID{own, older}))
	if len(remote.fetches) != 1 || !slices.Equal(remote.fetches[0].Wants, []object.ID{older}) {
		t.Errorf("contents of which one file is there: got requests %+v, want the other file", remote.fetches)
	}
}

func TestFindByName(t *testing.T) {
	w := newWorld(t)
	m, _ := w.open(nil)
	w.must(m.Find(t.Context(), "two"))
	if !slices.Equal(m.Sessions(), []string{"two"}) {
		t.Errorf("sessions: got %q, want two", m.Sessions())
	}
	for name := range m.Refs() {
		if name != session.MetaRef("two") && name != session.SegmentRef("two", "main", 1) {
			t.Errorf("find listed %s, which is not of session two", name)
		}
	}
	w.must(m.Checkpoints(t.Context(), "two"))
	r, err := m.Repo("two")
	w.must(err)
	if got, err := r.Checkpoints(0); err != nil || len(got) != 2 {
		t.Errorf("checkpoints of the session: got %+v, %v, want two", got, err)
	}
	w.must(m.Find(t.Context(), "three"))
	if !slices.Equal(m.Sessions(), []string{"two"}) {
		t.Errorf("sessions after a search for one that does not exist: got %q, want two", m.Sessions())
	}
}

// TestForeignRefsAreSkipped checks that the sessions are found although another program has written refs to the session
// remote.
func TestForeignRefsAreSkipped(t *testing.T) {
	w := newWorld(t)
	one, err := w.repo.Ref(session.MetaRef("one"))
	w.must(err)
	w.set(session.MetaRef("renamed"), one)
	w.set(session.MetaRef("odd"), w.transcript)
	m, _ := w.open(nil)
	w.must(m.Find(t.Context()))
	if got := m.Sessions(); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("sessions: got %q, want one and two", got)
	}
}

// TestBaseIsOnMountedRemote checks that the base commit, which the session remote lacks, is fetched from the mounted
// remote.
func TestBaseIsOnMountedRemote(t *testing.T) {
	w := newWorld(t)
	origin := dial(t, w.origin)
	var urls []string
	t.Cleanup(func() { // after the cleanup of the mirror
		if origin.closed != 1 {
			t.Errorf("the mounted remote was closed %d times, want once", origin.closed)
		}
	})
	m, _ := w.open(func(url string) (mirror.Remote, error) {
		urls = append(urls, url)
		return origin, nil
	})
	w.must(m.Find(t.Context()))
	for _, name := range []string{"one", "two", "one"} { // both sessions have the same base commit
		w.must(m.Base(t.Context(), name))
	}
	if len(origin.fetches) != 1 {
		t.Errorf("mounted remote: got %d requests for the same base commit, want 1", len(origin.fetches))
	}
	w.must(m.Commits(t.Context(), "two", []object.ID{w.base}))
	if !slices.Equal(urls, []string{w.origin}) {
		t.Errorf("mounted remote: opened %q, want it once", urls)
	}
	c, err := m.Commit(w.base)
	w.must(err)
	dir, err := m.Tree(c.Tree)
	w.must(err)
	if file, err := m.Tree(dir[0].ID); err != nil || len(file) != 1 || file[0].Name != "deep" {
		t.Errorf("directory of the base commit: got %v, %v", file, err)
	}
}

func TestBaseIsMissing(t *testing.T) {
	w := newWorld(t)
	m, _ := w.open(nil)
	w.must(m.Find(t.Context()))
	if err := m.Base(t.Context(), "one"); err == nil {
		t.Error("base commit without a mounted remote: got nil, want an error")
	}
	away := errors.New("away")
	m, _ = w.open(func(string) (mirror.Remote, error) { return nil, away })
	w.must(m.Find(t.Context()))
	if err := m.Base(t.Context(), "one"); !errors.Is(err, away) {
		t.Errorf("base commit while the mounted remote is away: got %v, want its error", err)
	}
}

func TestOpenFails(t *testing.T) {
	w := newWorld(t)
	remote := dial(t, w.dir)
	remote.failing = errors.New("away")
	dir := t.TempDir()
	_, err := mirror.Open(t.Context(), mirror.Options{Dir: dir, Remote: remote})
	if !errors.Is(err, remote.failing) || remote.closed != 1 {
		t.Errorf("open: got %v, and closed the remote %d times, want the error and one close", err, remote.closed)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("after the failure: got %v, %v, want an empty directory", left, err)
	}
}
