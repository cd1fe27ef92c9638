package fetch

import (
	"bytes"
	"context"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/convert"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// Objects that only a mount's git directory has are read from there: loose and packed ones, trees and large blobs,
// and the commit from which a session is resumed.
func TestLocalObjectsAreRead(t *testing.T) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		for _, packed := range []bool{false, true} {
			name := f.String() + " loose"
			if packed {
				name = f.String() + " packed"
			}
			t.Run(name, func(t *testing.T) { testLocalObjects(t, f, packed) })
		}
	}
}

func testLocalObjects(t *testing.T, f object.Format, packed bool) {
	root, dir := t.TempDir(), t.TempDir()
	repo, err := gittest.New(filepath.Join(root, "r.git"), gittest.RepoOptions{Format: f})
	if err == nil {
		_, err = repo.History(2)
	}
	if err != nil {
		t.Fatal(err)
	}
	server, err := gittest.Serve(gittest.ServerOptions{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	s := openStore(t, dir, server.URL("r.git"))
	first, err := s.Acquire(t.Context(), "")
	if err == nil {
		err = first.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}

	own := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		out, err := gittest.Git(context.Background(), own, args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	git("init", "-q", "-b", "main", "--object-format="+f.String())
	local := s.OpenLocal(filepath.Join(own, ".git", "objects"))
	other, err := gittest.New(filepath.Join(t.TempDir(), "own.git"), gittest.RepoOptions{Format: f})
	if err != nil {
		t.Fatal(err)
	}
	large := bytes.Repeat([]byte("large "), spoolOver/5)
	files := map[string]gittest.File{"dir/small": {Data: []byte("small")}, "dir/large": {Data: large}}
	commit, err := other.Commit("main", files, "Own")
	if err != nil {
		t.Fatal(err)
	}
	if packed {
		git("-c", "fetch.unpackLimit=1", "fetch", "-q", other.Path, "main")
	} else {
		git("-c", "fetch.unpackLimit=100", "fetch", "-q", other.Path, "main")
	}
	tree, err := object.ParseID(git("rev-parse", commit.String()+"^{tree}"))
	if err != nil {
		t.Fatal(err)
	}
	server.Down()
	server.Log().Reset()

	snap, err := s.Resume(t.Context(), Base{Commit: commit, Format: f, Own: []*Local{local}})
	if err != nil || snap.Tree != tree {
		t.Fatalf("snapshot of a local commit: got %+v, %v", snap, err)
	}
	v := s.View(snap, convert.Settings{}, nil)
	defer v.Close()
	for path, want := range files {
		id, err := object.ParseID(git("rev-parse", commit.String()+":"+path))
		if err != nil {
			t.Fatal(err)
		}
		b := Blob{ID: id, Path: path}
		if n, err := v.Size(t.Context(), b); err != nil || n != int64(len(want.Data)) {
			t.Errorf("size of %s: got %d, %v", path, n, err)
		}
		c, err := v.Open(t.Context(), b)
		if err != nil {
			t.Errorf("open %s: %v", path, err)
			continue
		}
		got, err := io.ReadAll(io.NewSectionReader(c, 0, c.Size()))
		if err != nil || !bytes.Equal(got, want.Data) {
			t.Errorf("contents of %s: got %d bytes, %v", path, len(got), err)
		}
		c.Release()
	}
	if n := len(server.Log().Requests()); n > 0 {
		t.Errorf("requests to the remote: got %d", n)
	}
	if missing := s.Missing([]object.ID{tree}); len(missing) != 1 {
		t.Error("objects of the git directory count as the store's")
	}
	if err := local.Close(); err != nil {
		t.Error(err)
	}
	if _, _, err := s.storage.get(commit, object.MaxCommitSize); err == nil {
		t.Error("objects can be read after the git directory was removed from the store")
	}
	if res, err := local.Join(t.Context(), odb.JoinOptions{}); err != nil && !strings.Contains(err.Error(), "closed") {
		t.Errorf("Join after Close: got %+v, %v", res, err)
	}
}

// Prefetch does not request contents that are already on this host.
func TestHydrationOfLocalObjects(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	repo, err := gittest.New(filepath.Join(root, "r.git"), gittest.RepoOptions{})
	if err == nil {
		_, err = repo.History(1)
	}
	if err != nil {
		t.Fatal(err)
	}
	server, err := gittest.Serve(gittest.ServerOptions{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	s := openStore(t, dir, server.URL("r.git"))
	if first, err := s.Acquire(t.Context(), ""); err != nil || first.Wait(t.Context()) != nil {
		t.Fatal(err)
	}
	other, err := gittest.New(filepath.Join(t.TempDir(), "own.git"), gittest.RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	commit, err := other.Commit("main", map[string]gittest.File{"a": {Data: []byte("a")}, "b/c": {Data: []byte("c")}},
		"Own")
	if err != nil {
		t.Fatal(err)
	}
	defer s.OpenLocal(filepath.Join(other.Path, "objects")).Close()
	snap, err := s.Resume(t.Context(), Base{Commit: commit})
	if err != nil {
		t.Fatal(err)
	}
	server.Log().Reset()
	v := s.View(snap, convert.Settings{}, nil)
	defer v.Close()
	if err := v.Prefetch(t.Context(), PrefetchAll, 0); err != nil {
		t.Error(err)
	}
	if h := v.Counts(t.Context()); h.Fetched != 2 {
		t.Errorf("result of the prefetch: got %+v", h)
	}
	if n := len(server.Log().Requests()); n > 0 {
		t.Errorf("requests to the remote: got %d", n)
	}
}
