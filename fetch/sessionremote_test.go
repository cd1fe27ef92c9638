package fetch

import (
	"errors"
	"io"
	"path/filepath"
	"slices"
	"testing"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/git/convert"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// twoRemotes is a repository, and a second one that has a further commit.
type twoRemotes struct {
	first, second *gittest.Server
	store         *Store
	local         *Local
	remote        *transport.Remote // second
	snap          *Snapshot         // of the first repository
	tip, tree     object.ID         // of the second repository
	own, both     Blob              // a blob that only the second repository has, and one that both have
	changed       object.ID         // another blob that only the second repository has, in the same directory
}

func newTwoRemotes(t *testing.T) *twoRemotes {
	t.Helper()
	root, elsewhere := t.TempDir(), t.TempDir()
	repo, err := gittest.New(filepath.Join(root, "r.git"), gittest.RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]gittest.File{"same": {Data: []byte("same\n")}, "dir/changed": {Data: []byte("before\n")},
		"dir/kept": {Data: []byte("kept\n")}}
	if _, err := repo.Commit("main", files, "first"); err != nil {
		t.Fatal(err)
	}
	git := func(dir string, args ...string) string {
		t.Helper()
		out, err := gittest.Git(t.Context(), dir, args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	other, err := gittest.New(filepath.Join(elsewhere, "s.git"), gittest.RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	git(other.Path, "fetch", "-q", repo.Path, "main:main")
	tip, err := other.Commit("main", map[string]gittest.File{"dir/changed": {Data: []byte("after\n")},
		"dir/new": {Data: []byte("new\n")}}, "second")
	if err != nil {
		t.Fatal(err)
	}
	w := &twoRemotes{tip: tip, tree: object.MustID(git(other.Path, "rev-parse", tip.String()+"^{tree}"))}
	if w.first, err = gittest.Serve(gittest.ServerOptions{Root: root}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.first.Close() })
	if w.second, err = gittest.Serve(gittest.ServerOptions{Root: elsewhere}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.second.Close() })
	dir := t.TempDir()
	w.store = openStore(t, dir, w.first.URL("r.git"))
	w.snap, err = w.store.Acquire(t.Context(), "")
	if err == nil {
		err = w.snap.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	if w.remote, err = transport.Open(w.second.URL("s.git"), transport.Options{Log: zap.NewNop()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.remote.Close() })
	w.local = w.store.OpenLocal(filepath.Join(dir, "session.git", "objects"))
	t.Cleanup(func() { w.local.Close() })
	blob := func(path string) Blob {
		return Blob{ID: object.MustID(git(other.Path, "rev-parse", tip.String()+":"+path)), Path: path}
	}
	w.own, w.both = blob("dir/new"), blob("dir/kept")
	w.changed = blob("dir/changed").ID
	return w
}

// bring fetches the commits and trees of the second remote.
func (w *twoRemotes) bring(t *testing.T) {
	t.Helper()
	in, err := w.local.Fetch(t.Context(), FetchRequest{From: w.remote, Wants: []object.ID{w.tip},
		Haves: []object.ID{w.snap.Commit}})
	if err != nil || in.Objects != 3 { // a commit and two trees
		t.Fatalf("fetch from the second remote: got %+v, %v", in, err)
	}
	w.snap.Tree = w.tree
}

func read(t *testing.T, v *View, b Blob) (string, error) {
	t.Helper()
	c, err := v.Open(t.Context(), b)
	if err != nil {
		return "", err
	}
	defer c.Release()
	text, err := io.ReadAll(io.NewSectionReader(c, 0, c.Size()))
	return string(text), err
}

// Contents that a session created are fetched from the session remote, all others from the mounted remote, and each
// remote receives one request.
func TestContentsOfTwoRemotes(t *testing.T) {
	for _, expected := range []bool{true, false} {
		w := newTwoRemotes(t)
		w.bring(t)
		w.local.SetSessionRemote(w.remote)
		if expected {
			w.local.Expect([]object.ID{w.own.ID, w.changed})
		}
		w.first.Log().Reset()
		v := w.store.View(w.snap, convert.Settings{}, nil)
		defer v.Close()
		// The second read is taken for that of a reader that reads backward, so dir/changed is requested with it.
		for _, c := range []struct {
			blob Blob
			want string
		}{{w.own, "new\n"}, {w.both, "kept\n"}} {
			blob, want := c.blob, c.want
			if text, err := read(t, v, blob); err != nil || text != want {
				t.Errorf("contents of %s: got %q, %v", blob.Path, text, err)
			}
		}
		if n := len(w.first.Log().Requests()); expected && n > 1 {
			t.Errorf("requests to the first remote: got %d", n)
		}
		if lacking := w.local.Missing([]object.ID{w.own.ID}); len(lacking) != 0 {
			t.Error("objects of the second remote were not stored")
		}
		if lacking := w.store.Missing([]object.ID{w.own.ID}); len(lacking) != 1 {
			t.Error("objects of the second remote are in the store of the mounted remote")
		}
	}
}

// If the second remote is a partial clone, which fails when an object is missing there, the other objects are fetched
// from it anyway.
func TestSecondRemoteThatDies(t *testing.T) {
	w := newTwoRemotes(t)
	w.bring(t)
	w.local.SetSessionRemote(w.remote)
	w.local.Expect([]object.ID{w.own.ID, w.both.ID})
	w.second.Inject(gittest.Fault{Kind: gittest.Cut, On: gittest.Fetch,
		Match: func(r gittest.Request) bool { return slices.Contains(r.Wants, w.both.ID) }})
	came := map[object.ID]bool{}
	if _, err := w.store.fetcher.fetchBlobs(t.Context(), &pipeline.Batch{}, []object.ID{w.own.ID, w.both.ID},
		func(id object.ID, _ []byte) { came[id] = true }); err != nil {
		t.Error(err)
	}
	if !came[w.own.ID] || !came[w.both.ID] {
		t.Errorf("fetched objects: got %v", came)
	}
	w = newTwoRemotes(t)
	w.bring(t)
	w.local.SetSessionRemote(w.remote)
	wanted := []object.ID{w.own.ID, w.both.ID}
	w.local.Expect(wanted)
	w.second.Inject(gittest.Fault{Kind: gittest.Cut, On: gittest.Fetch,
		Match: func(r gittest.Request) bool { return slices.Contains(r.Wants, w.both.ID) }})
	if err := w.local.Provide(t.Context(), wanted, nil); err != nil || len(w.local.Missing(wanted)) > 0 {
		t.Errorf("Provide: got %v; missing objects %v", err, w.local.Missing(wanted))
	}
}

// Provide fetches objects of both remotes into the repository from which git borrows them.
func TestProvideFromTwoRemotes(t *testing.T) {
	for _, expected := range []bool{true, false} {
		w := newTwoRemotes(t)
		w.bring(t)
		w.local.SetSessionRemote(w.remote)
		if expected {
			w.local.Expect([]object.ID{w.own.ID})
		}
		wanted := []object.ID{w.own.ID, w.both.ID}
		if err := w.local.Provide(t.Context(), wanted, nil); err != nil {
			t.Error(err)
		}
		if lacking := w.local.Missing(wanted); len(lacking) > 0 {
			t.Errorf("missing objects: got %s", lacking)
		}
		if kind, n, err := w.local.Size(w.own.ID); err != nil || kind != object.Blob || n != 4 {
			t.Errorf("object header: got size %d and type %s, %v", n, kind, err)
		}
	}
}

// An object that neither remote has is reported as missing, and an unreachable second remote as unreachable. Other
// objects are not affected.
func TestContentsOfNoRemote(t *testing.T) {
	w := newTwoRemotes(t)
	w.bring(t)
	w.local.SetSessionRemote(w.remote)
	v := w.store.View(w.snap, convert.Settings{}, nil)
	defer v.Close()
	nowhere := Blob{ID: object.MustID("0123456789012345678901234567890123456789"), Path: "nowhere"}
	if _, err := read(t, v, nowhere); !errors.Is(err, ErrNotFound) {
		t.Errorf("fetch an object that no remote has: got %v", err)
	}
	if err := w.local.Provide(t.Context(), []object.ID{nowhere.ID}, nil); !errors.Is(err, ErrNotFound) && !isNotOurs(err) {
		t.Errorf("Provide an object that no remote has: got %v", err)
	}
	w.second.Down()
	w.local.Expect([]object.ID{w.own.ID})
	if _, err := read(t, v, w.own); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("fetch from an unreachable session remote: got %v", err)
	}
	if text, err := read(t, v, w.both); err != nil || text != "kept\n" {
		t.Errorf("fetch from the mounted remote: got %q, %v", text, err)
	}
	if err := w.second.Up(); err != nil {
		t.Fatal(err)
	}
	if text, err := read(t, v, w.own); err != nil || text != "new\n" {
		t.Errorf("fetch from the session remote that is reachable again: got %q, %v", text, err)
	}
}

func isNotOurs(err error) bool {
	var refused transport.NotOurRef
	return errors.As(err, &refused)
}
