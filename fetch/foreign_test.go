package fetch

import (
	"bytes"
	"compress/zlib"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/git/convert"
	"github.com/artifactfs/artifactfs/git/guard"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// A container puts an invalid object into the git directory of its mount. Other mounts of the store read the valid one
// from the remote.
func TestInvalidObjectOfAnotherMount(t *testing.T) {
	root := t.TempDir()
	repo, err := gittest.New(filepath.Join(root, "r.git"), gittest.RepoOptions{})
	if err == nil {
		_, err = repo.Commit("main", map[string]gittest.File{"a": {Data: []byte("valid")}}, "Add")
	}
	if err != nil {
		t.Fatal(err)
	}
	server, err := gittest.Serve(gittest.ServerOptions{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	s := openStore(t, t.TempDir(), server.URL("r.git"))
	snap, err := s.Acquire(t.Context(), "")
	if err == nil {
		err = snap.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	v := s.View(snap, convert.Settings{}, nil)
	defer v.Close()
	tree, err := v.Tree(t.Context(), snap.Tree)
	if err != nil {
		t.Fatal(err)
	}
	id := tree[0].ID

	own := filepath.Join(t.TempDir(), "git")
	local := s.OpenLocal(filepath.Join(own, "objects"))
	defer local.Close()
	name := filepath.Join(own, "objects", id.String()[:2], id.String()[2:])
	var b bytes.Buffer
	z := zlib.NewWriter(&b)
	_, err = z.Write([]byte("blob 1000\x00invalid"))
	if err := errors.Join(err, z.Close(), os.MkdirAll(filepath.Join(own, "objects", "pack"), 0o755),
		os.MkdirAll(filepath.Dir(name), 0o755),
		os.WriteFile(name, b.Bytes(), 0o644), guard.Create(own, nil)); err != nil {
		t.Fatal(err)
	}
	blob := Blob{ID: id, Path: "a"}
	if n, err := v.Size(t.Context(), blob); err != nil || n != 5 {
		t.Errorf("size: got %d, %v, want 5", n, err)
	}
	c, err := v.Open(t.Context(), blob)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Release()
	if got, err := io.ReadAll(io.NewSectionReader(c, 0, c.Size())); err != nil || string(got) != "valid" {
		t.Errorf("contents: got %q, %v, want valid", got, err)
	}
}
