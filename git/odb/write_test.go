package odb

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// outgoing returns blobs for Write.
func outgoing(t testing.TB, f object.Format, contents ...[]byte) []Outgoing {
	t.Helper()
	var all []Outgoing
	for _, c := range contents {
		id, err := object.Hash(f, object.Blob, c)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, Outgoing{id, object.Blob, int64(len(c)),
			func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(c)), nil }})
	}
	return all
}

func gitIn(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestGitReadsWhatIsWritten(t *testing.T) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		t.Run(f.String(), func(t *testing.T) {
			dir := t.TempDir()
			gitIn(t, dir, "init", "-q", "--bare", "--object-format="+f.String())
			random := rand.New(rand.NewPCG(1, 2))
			noise := make([]byte, 3<<20)
			for i := range noise {
				noise[i] = byte(random.Uint32())
			}
			contents := [][]byte{{}, []byte("a"), bytes.Repeat([]byte("line\n"), 100_000),
				bytes.Repeat([]byte("long\n"), 500_000), noise}
			for n := range 300 {
				contents = append(contents, noise[n:n+n*17])
			}
			s, err := Open(filepath.Join(dir, "objects"), f)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			all := outgoing(t, f, contents...)
			name, err := s.Write(context.Background(), append(all, all[0], all[1]), WriteOptions{Promisor: true})
			if err != nil {
				t.Fatal(err)
			}
			pack := filepath.Join(dir, "objects", "pack", name)
			if _, err := os.Stat(pack + ".promisor"); err != nil {
				t.Error(err)
			}
			gitIn(t, dir, "verify-pack", pack)
			gitIn(t, dir, "index-pack", "--strict", "--verify", pack+".pack")
			if out := gitIn(t, dir, "fsck", "--full", "--strict"); strings.Contains(out, "error") {
				t.Error(out)
			}
			for i, o := range all {
				_, got, err := s.Get(o.ID, 64<<20)
				if err != nil || !bytes.Equal(got, contents[i]) {
					t.Fatalf("get content %d: got %d bytes, %v", i, len(got), err)
				}
				if i < 8 && gitIn(t, dir, "cat-file", "blob", o.ID.String()) != string(contents[i]) {
					t.Errorf("git reads content %d differently", i)
				}
			}
			if name, err := s.Write(context.Background(), all, WriteOptions{}); name != "" || err != nil {
				t.Errorf("existing objects were written again as %q, %v", name, err)
			}
		})
	}
}

func TestWriteKeepsNothingOfAFailure(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, object.SHA1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, size := range []int{10, 2 << 20} {
		all := outgoing(t, object.SHA1, []byte("fine"), bytes.Repeat([]byte("x"), size))
		all[1].Open = func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(bytes.Repeat([]byte("y"), size))), nil
		}
		if _, err := s.Write(context.Background(), all, WriteOptions{Promisor: true}); err == nil {
			t.Errorf("Write accepted %d bytes that do not match the id", size)
		}
		ctx, cancel := context.WithCancel(context.Background())
		all = outgoing(t, object.SHA1, []byte("fine"), bytes.Repeat([]byte("x"), size))
		all[0].Open = func() (io.ReadCloser, error) { cancel(); return io.NopCloser(strings.NewReader("fine")), nil }
		if _, err := s.Write(ctx, all, WriteOptions{Promisor: true}); err == nil {
			t.Error("Write with a cancelled context succeeded")
		}
		if s.Has(all[0].ID) {
			t.Error("an object of a failed pack exists")
		}
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "pack")); len(left) > 0 {
		t.Errorf("temporary files: got %v, want none", left)
	}
}

func TestWriteAhead(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	s, err := Open(dir, object.SHA1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	all := outgoing(t, object.SHA1, []byte("ahead"))
	name, settle, err := s.WriteAhead(ctx, all, WriteOptions{})
	if err != nil || name == "" || !s.Has(all[0].ID) {
		t.Fatalf("Write returned %q, %v; the object exists: %v", name, err, s.Has(all[0].ID))
	}
	again, others, err := s.WriteAhead(ctx, all, WriteOptions{})
	if err != nil || again != "" {
		t.Fatalf("existing objects were written to %q, %v", again, err)
	}
	// Make the fsync of the directory fail.
	pack := filepath.Join(dir, "pack")
	if err := os.Rename(pack, pack+".away"); err != nil {
		t.Fatal(err)
	}
	if err := others(); err == nil {
		t.Error("a pack that another process is writing counts as durable")
	}
	if err := settle(); err == nil {
		t.Error("a pack counts as durable without a fsync of its directory")
	}
	if err := others(); err != nil {
		t.Errorf("wait for a pack that was removed: got %v", err)
	}
	if err := os.Rename(pack+".away", pack); err != nil {
		t.Fatal(err)
	}
	if v := s.acquire(); len(v.packs) > 0 {
		t.Error("a pack that is not durable was kept")
	}
}
