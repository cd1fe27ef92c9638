package odb

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// The tests compare their results with git: it creates the packs that are read, and checks those that are written.

var formats = []object.Format{object.SHA1, object.SHA256}

func forEachFormat(t *testing.T, test func(t *testing.T, f object.Format)) {
	for _, f := range formats {
		t.Run(f.String(), func(t *testing.T) { test(t, f) })
	}
}

// git runs git in dir and returns its output.
func git(t testing.TB, dir string, stdin []byte, args ...string) []byte {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-C", dir}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
		"GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_AUTHOR_DATE=1700000000 +0000",
		"GIT_COMMITTER_NAME=A", "GIT_COMMITTER_EMAIL=a@example.org", "GIT_COMMITTER_DATE=1700000000 +0000")
	cmd.Stdin = bytes.NewReader(stdin)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return out
}

func newRepo(t testing.TB, f object.Format) string {
	t.Helper()
	dir := t.TempDir()
	git(t, dir, nil, "init", "-q", "--bare", "-b", "main", "--object-format="+f.String(), ".")
	return dir
}

// truth contains all objects of a repository, as git cat-file prints them.
type truth map[object.ID]content

type content struct {
	typ  object.Type
	data []byte
}

func readAll(t testing.TB, dir string) truth {
	t.Helper()
	out := git(t, dir, nil, "cat-file", "--batch-all-objects", "--unordered", "--batch")
	all := truth{}
	for r := bufio.NewReader(bytes.NewReader(out)); ; {
		line, err := r.ReadString('\n')
		if err == io.EOF {
			return all
		}
		var hex, typ string
		var size int
		if _, err := fmt.Sscanf(line, "%s %s %d", &hex, &typ, &size); err != nil {
			t.Fatalf("cat-file line %q: %v", line, err)
		}
		c := content{data: make([]byte, size)}
		for _, known := range []object.Type{object.Commit, object.Tree, object.Blob, object.Tag} {
			if known.String() == typ {
				c.typ = known
			}
		}
		if _, err := io.ReadFull(r, c.data); err != nil {
			t.Fatal(err)
		}
		r.ReadByte()
		all[object.MustID(hex)] = c
	}
}

// history fills a repository with many versions of a few files, so that its packs have long chains of deltas,
// and with special cases: empty, incompressible, large and tagged objects.
func history(t testing.TB, f object.Format) string {
	t.Helper()
	dir := newRepo(t, f)
	rnd := rand.New(rand.NewPCG(1, 2))
	lines := make([]string, 400)
	for i := range lines {
		lines[i] = fmt.Sprintf("line %d of the file, %x\n", i, rnd.Uint64())
	}
	noise := make([]byte, 70<<10)
	for i := range noise {
		noise[i] = byte(rnd.Uint32())
	}
	var in bytes.Buffer
	file := func(path string, data []byte) {
		fmt.Fprintf(&in, "M 100644 inline %s\ndata %d\n%s\n", path, len(data), data)
	}
	for c := range 60 {
		fmt.Fprintf(&in, "commit refs/heads/main\nmark :%d\ncommitter A <a@example.org> %d +0000\ndata 2\nc\n",
			c+1, 1700000000+c)
		for range 3 {
			lines[rnd.IntN(len(lines))] = fmt.Sprintf("changed in %d: %x\n", c, rnd.Uint64())
		}
		file("src/main.c", []byte(strings.Join(lines, "")))
		file(fmt.Sprintf("src/dir%d/part.c", c%7), []byte(strings.Join(lines[c:c+100], "")))
		if c == 0 {
			file("empty", nil)
		}
		if c%20 == 0 {
			noise[c*1000]++
			file("noise", noise)
			file("large", bytes.Repeat([]byte(strings.Join(lines, "")), 150))
		}
	}
	fmt.Fprintf(&in, "tag v1\nfrom :60\ntagger A <a@example.org> 1700000000 +0000\ndata 2\nt\n")
	git(t, dir, in.Bytes(), "fast-import", "--quiet")
	return dir
}

// fixtures contains repositories that are created once for all tests. The tests must not write to them.
var fixtures = struct {
	sync.Mutex
	dirs   map[object.Format]string
	truths map[object.Format]truth
}{dirs: map[object.Format]string{}, truths: map[object.Format]truth{}}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, dir := range fixtures.dirs {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

func fixture(t testing.TB, f object.Format) (string, truth) {
	t.Helper()
	fixtures.Lock()
	defer fixtures.Unlock()
	if fixtures.dirs[f] == "" {
		dir, err := os.MkdirTemp("", "odb-fixture")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(history(t, f), filepath.Join(dir, "git")); err != nil {
			t.Fatal(err)
		}
		fixtures.dirs[f] = dir
		fixtures.truths[f] = readAll(t, filepath.Join(dir, "git"))
	}
	return filepath.Join(fixtures.dirs[f], "git"), fixtures.truths[f]
}

// packOf returns a pack of all objects of a repository.
func packOf(t testing.TB, dir string, args ...string) []byte {
	t.Helper()
	return git(t, dir, nil, append([]string{"pack-objects", "-q", "--all", "--stdout", "--window=50", "--depth=50"},
		args...)...)
}

func open(t testing.TB, dir string, f object.Format) *Store {
	t.Helper()
	s, err := Open(dir, f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

const noLimit = 1 << 40

func ingest(t testing.TB, s *Store, pack []byte) IngestResult {
	t.Helper()
	res, err := s.Ingest(context.Background(), bytes.NewReader(pack), IngestOptions{MaxObjectSize: noLimit}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// check fails the test unless all results of s for the objects in want are correct.
func (want truth) check(t testing.TB, s *Store) {
	t.Helper()
	for id, c := range want {
		typ, data, err := s.Get(id, noLimit)
		if err != nil {
			t.Fatal(err)
		}
		if typ != c.typ || !bytes.Equal(data, c.data) {
			t.Fatalf("Get(%s): %s of %d bytes, want %s of %d", id, typ, len(data), c.typ, len(c.data))
		}
		if typ, size, err := s.Size(id); err != nil || typ != c.typ || size != int64(len(c.data)) {
			t.Fatalf("Size(%s) = %s, %d, %v, want %s, %d", id, typ, size, err, c.typ, len(c.data))
		}
		var b bytes.Buffer
		if err := s.WriteTo(id, &b); err != nil || !bytes.Equal(b.Bytes(), c.data) {
			t.Fatalf("WriteTo(%s): %v, %d bytes, want %d", id, err, b.Len(), len(c.data))
		}
		if !s.Has(id) {
			t.Fatalf("Has(%s) = false", id)
		}
	}
}
