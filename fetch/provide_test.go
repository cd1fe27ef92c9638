package fetch

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/fetch/bare"
	"github.com/artifactfs/artifactfs/fetch/treewalk"
	"github.com/artifactfs/artifactfs/git/convert"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// provided is a store of a served remote, and the files of its tree.
type provided struct {
	*Store
	server *gittest.Server
	view   *View
	files  []Blob
	ids    []object.ID
}

func newProvided(t testing.TB, f object.Format, rtt time.Duration) *provided {
	t.Helper()
	root := t.TempDir()
	repo, err := gittest.New(filepath.Join(root, "r.git"), gittest.RepoOptions{Format: f})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := repo.Sized(4, 30); err != nil {
		t.Fatal(err)
	}
	server, err := gittest.Serve(gittest.ServerOptions{Root: root, RTT: rtt})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	p := &provided{Store: openStore(t, t.TempDir(), server.URL("r.git")), server: server}
	snap, err := p.Acquire(t.Context(), "")
	if err == nil {
		err = snap.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	p.view = p.View(snap, convert.Settings{}, nil)
	t.Cleanup(p.view.Close)
	p.trees.WalkLocal(snap.Tree, "", func(f treewalk.File) {
		p.files, p.ids = append(p.files, Blob{ID: f.ID, Path: f.Path}), append(p.ids, f.ID)
	})
	server.Log().Reset()
	return p
}

// fetches counts the requests for objects so far; no blob may have been sent twice.
func (p *provided) fetches(t *testing.T) int {
	t.Helper()
	sent, _ := p.server.Log().Blobs()
	for id, n := range sent {
		if n > 1 {
			t.Errorf("blob %s was sent %d times\n%s", id, n, p.server.Log())
			break
		}
	}
	return len(p.server.Log().Fetches())
}

func (p *provided) read(t *testing.T, b Blob) {
	t.Helper()
	c, err := p.view.Open(t.Context(), b)
	if err != nil {
		t.Error(err)
		return
	}
	c.Release()
}

func TestProvideWritesWhatWasRead(t *testing.T) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		p := newProvided(t, f, 0)
		for _, b := range p.files {
			p.read(t, b)
		}
		before := p.fetches(t)
		if err := p.Provide(t.Context(), p.ids[:1], p.ids); err != nil {
			t.Fatal(err)
		}
		if n := p.fetches(t); n != before || len(p.Missing(p.ids)) > 0 {
			t.Errorf("got %d requests and %d missing objects", n-before, len(p.Missing(p.ids)))
		}
		if _, err := bare.Run(t.Context(), p.GitDir(), "cat-file", "blob", p.ids[7].String()); err != nil {
			t.Error(err)
		}
	}
}

func TestProvidedIsReadWithoutTheRemote(t *testing.T) {
	p := newProvided(t, object.SHA1, 0)
	if err := p.Provide(t.Context(), p.ids[:1], p.ids[1:]); err != nil {
		t.Fatal(err)
	}
	if n := p.fetches(t); n != 1 {
		t.Errorf("requests to the remote: got %d", n)
	}
	p.server.Down()
	for _, b := range p.files {
		p.read(t, b)
	}
	if err := p.Provide(t.Context(), p.ids, nil); err != nil {
		t.Error(err)
	}
}

func TestProvidersAndReadersShareWhatIsUnderWay(t *testing.T) {
	p := newProvided(t, object.SHA1, 20*time.Millisecond)
	var wg sync.WaitGroup
	for n := range 4 {
		wg.Go(func() {
			if err := p.Provide(t.Context(), p.ids[n:n+1], p.ids); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() { p.read(t, p.files[40*n/2]) })
	}
	wg.Wait()
	if n := p.fetches(t); n > 8 || len(p.Missing(p.ids)) > 0 {
		t.Errorf("got %d requests and %d missing objects", n, len(p.Missing(p.ids)))
	}
}

func TestProvideDoesWithoutWhatIsOnlyGuessed(t *testing.T) {
	p := newProvided(t, object.SHA1, 0)
	var bogus []object.ID
	for i := range 10 {
		id, err := object.Hash(object.SHA1, object.Blob, fmt.Appendf(nil, "nobody has %d", i))
		if err != nil {
			t.Fatal(err)
		}
		bogus = append(bogus, id)
	}
	if err := p.Provide(t.Context(), p.ids[:3], append(bogus, p.ids...)); err != nil {
		t.Error(err)
	}
	if n := p.fetches(t); n > provideTries {
		t.Errorf("requests to the remote: got %d", n)
	}
	if err := p.Provide(t.Context(), bogus[:1], nil); err == nil {
		t.Error("Provide of an object that no remote has succeeded")
	}
}
