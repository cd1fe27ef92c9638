package loose

import (
	"bytes"
	"compress/zlib"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
)

// random returns n pseudo-random bytes, which are the same in each run.
func random(n int) []byte {
	r := rand.NewChaCha8([32]byte{1})
	b := make([]byte, n)
	r.Read(b)
	return b
}

// sizes lists sizes of contents near the limits of blocks. The header of a blob of 65,524 to 65,535 bytes has 11 bytes.
var sizes = []int{0, 1, 2, 9, 10, 99, 100, 4095, 4096, 65_523, 65_524, 65_525, 65_535, 65_536, 131_058, 131_059,
	131_060, 200_000}

// TestGitReads writes loose objects to the objects directory of a repository, and compares the contents that git reads
// there.
func TestGitReads(t *testing.T) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		dir := filepath.Join(t.TempDir(), "repo.git")
		git := func(args ...string) string {
			t.Helper()
			out, err := gitcmd.Output(gitcmd.Isolated(context.Background(), args...))
			if err != nil {
				t.Fatal(err)
			}
			return string(out)
		}
		git("init", "--quiet", "--bare", "--object-format="+f.String(), dir)
		for _, n := range sizes {
			content := random(n)
			id, err := object.Hash(f, object.Blob, content)
			if err != nil {
				t.Fatal(err)
			}
			b := New(bytes.NewReader(content), int64(n))
			form, err := io.ReadAll(io.NewSectionReader(b, 0, b.Size()))
			if err != nil {
				t.Fatal(err)
			}
			if int64(len(form)) != Size(int64(n)) {
				t.Errorf("loose form of %d bytes: got %d bytes, want %d", n, len(form), Size(int64(n)))
			}
			name := id.String()
			path := filepath.Join(dir, "objects", name[:2], name[2:])
			os.MkdirAll(filepath.Dir(path), 0o755)
			if err := os.WriteFile(path, form, 0o444); err != nil {
				t.Fatal(err)
			}
			if got := git("--git-dir="+dir, "cat-file", "blob", name); got != string(content) {
				t.Errorf("git cat-file of a loose form of %d bytes: got other contents", n)
			}
		}
		if out := git("--git-dir="+dir, "fsck", "--full", "--no-dangling"); strings.Contains(out, "error") {
			t.Errorf("git fsck: %s", out)
		}
	}
}

// FuzzReadAt compares parts of an encoded loose object with the whole, and the whole with the data that zlib inflates
// from it.
func FuzzReadAt(f *testing.F) {
	for _, n := range sizes {
		f.Add(n, 0, 16)
		f.Add(n, n, 64)
	}
	f.Fuzz(func(t *testing.T, n, off, length int) {
		if n < 0 || n > 1<<18 || off < 0 || length < 0 || length > 1<<18 {
			return
		}
		content := random(n)
		b := New(bytes.NewReader(content), int64(n))
		whole := make([]byte, b.Size())
		if _, err := b.ReadAt(whole, 0); err != nil {
			t.Fatal(err)
		}
		r, err := zlib.NewReader(bytes.NewReader(whole))
		if err != nil {
			t.Fatal(err)
		}
		plain, err := io.ReadAll(r)
		if want := fmt.Sprintf("blob %d\x00%s", n, content); err != nil || string(plain) != want {
			t.Fatalf("inflated form of %d bytes: got %d bytes and error %v, want %d bytes", n, len(plain), err, len(want))
		}
		part := make([]byte, length)
		got, err := b.ReadAt(part, int64(off))
		var want []byte
		if off < len(whole) {
			want = whole[off:min(off+length, len(whole))]
		}
		if !bytes.Equal(part[:got], want) {
			t.Errorf("%d bytes from offset %d: got %d other bytes, want %d", length, off, got, len(want))
		}
		if (err == io.EOF) != (got < length) || err != nil && err != io.EOF {
			t.Errorf("%d bytes from offset %d: got %d bytes and error %v", length, off, got, err)
		}
	})
}

// TestShortContents checks that contents with fewer bytes than stated cause an error, and not the end of the encoded
// object.
func TestShortContents(t *testing.T) {
	b := New(bytes.NewReader(random(10)), 11)
	if _, err := b.ReadAt(make([]byte, b.Size()), 0); err == nil || err == io.EOF {
		t.Errorf("read form of truncated contents: got error %v, want another one", err)
	}
}
