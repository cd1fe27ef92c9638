package namedset

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/odb/named"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

const noLimit = 1 << 40

func forEachFormat(t *testing.T, test func(t *testing.T, f object.Format)) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		t.Run(f.String(), func(t *testing.T) { test(t, f) })
	}
}

// git runs git in dir and returns its output.
func git(t testing.TB, dir string, stdin []byte, args ...string) []byte {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-C", dir}, args...)...)
	cmd.Env = gittest.Env()
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

func openStore(t testing.TB, dir string, f object.Format) *odb.Store {
	t.Helper()
	s, err := odb.Open(dir, f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// oddHistory creates a repository whose trees have all modes that git writes, submodules, old modes that git only
// reads, names with spaces and digits that look like modes, and large directories of which each commit changes, adds
// and removes some entries.
func oddHistory(t testing.TB, f object.Format) string {
	t.Helper()
	dir := newRepo(t, f)
	var in bytes.Buffer
	gitlink := strings.Repeat("5", 2*f.Size())
	for c := range 40 {
		fmt.Fprintf(&in, "commit refs/heads/main\ncommitter A <a@example.org> %d +0000\ndata 2\nc\n", 1700000000+c)
		put := func(mode, path string, text string) {
			fmt.Fprintf(&in, "M %s inline %s\ndata %d\n%s\n", mode, path, len(text), text)
		}
		if c == 0 {
			for i := range 300 {
				put("100644", fmt.Sprintf("large/file%04d", i), fmt.Sprint("first ", i))
			}
			put("120000", "link", "large/file0000")
			put("100755", "a/b/c/run", "#!/bin/sh")
		}
		put("100644", fmt.Sprintf("large/file%04d", c*7), fmt.Sprint("changed ", c))
		put("100755", fmt.Sprintf("large/file%04d.x", c*7), fmt.Sprint("added ", c))
		put("100644", fmt.Sprintf("\"a/100644 %d\"", c%5), fmt.Sprint("odd name ", c))
		put("120000", fmt.Sprintf("a/40000 %d", c%3), fmt.Sprint("target ", c))
		fmt.Fprintf(&in, "M 160000 %s a/module%d\n", gitlink, c%4)
		if c > 0 {
			fmt.Fprintf(&in, "D large/file%04d\n", c*7+3)
		}
	}
	in.WriteString("done\n")
	git(t, dir, in.Bytes(), "fast-import", "--quiet", "--done")
	blob := strings.TrimSpace(string(git(t, dir, []byte("of an old mode"), "hash-object", "-w", "--stdin")))
	raw, err := object.ParseID(blob)
	if err != nil {
		t.Fatal(err)
	}
	old := append([]byte("100664 old\x00"), raw.Bytes()...)
	tree := strings.TrimSpace(string(git(t, dir, old, "hash-object", "-w", "--literally", "-t", "tree", "--stdin")))
	commit := strings.TrimSpace(string(git(t, dir, nil, "commit-tree", "-m", "old", tree)))
	git(t, dir, nil, "update-ref", "refs/heads/old", commit)
	return dir
}

// namedByGit returns the ids of the blobs that git finds in the trees of all commits.
func namedByGit(t testing.TB, dir string) (ids []object.ID) {
	t.Helper()
	for commit := range strings.FieldsSeq(string(git(t, dir, nil, "rev-list", "--all"))) {
		for line := range strings.Lines(string(git(t, dir, nil, "ls-tree", "-r", commit))) {
			if f := strings.Fields(line); f[1] == "blob" {
				ids = append(ids, object.MustID(f[2]))
			}
		}
	}
	slices.SortFunc(ids, object.ID.Compare)
	return slices.Compact(ids)
}

// namesOf returns all named blobs in the directories.
func namesOf(b Union) (ids []object.ID) {
	for first := range 256 {
		ids = slices.AppendSeq(ids, b.From(byte(first), object.ID{}))
	}
	return ids
}

// blobless returns a pack with the commits and trees of a repository.
func blobless(t testing.TB, dir string, revs ...string) []byte {
	t.Helper()
	return git(t, dir, []byte(strings.Join(revs, "\n")+"\n"), "pack-objects", "--revs", "--filter=blob:none",
		"--stdout", "-q",
		"--delta-base-offset", "--window=50", "--depth=50")
}

// ingestNamed stores a pack, and the set of the blobs that it names, in the directory of s and n.
func ingestNamed(t testing.TB, s *odb.Store, n *Dir, pack []byte) string {
	t.Helper()
	res, err := s.Ingest(context.Background(), bytes.NewReader(pack),
		odb.IngestOptions{Promisor: true, MaxObjectSize: noLimit, Names: n.Add}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(n.packs(), res.Name)
}

// equalNames fails the test unless the set contains exactly the ids in want.
func equalNames(t *testing.T, when string, b Union, want []object.ID) {
	t.Helper()
	if err := b.Sync(context.Background()); err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	got := namesOf(b)
	if !slices.Equal(got, want) || b.Count() != len(want) {
		t.Errorf("%s: set has %d blobs (counted %d), want %d", when, len(got), b.Count(), len(want))
	}
	for i, id := range want {
		if ok, err := b.Has(context.Background(), id); !ok || err != nil {
			t.Fatalf("%s: blob %s is not named: %v", when, id, err)
		}
		if found, ok, err := b.Prefixed(context.Background(), named.Prefix(id)); !ok || err != nil || found != id {
			t.Fatalf("%s: blob with the prefix of %s: got %s, %v, %v", when, id, found, ok, err)
		}
		if i+1 < len(want) && want[i+1].Bytes()[0] == id.Bytes()[0] {
			for next := range b.From(id.Bytes()[0], id) {
				if next != want[i+1] {
					t.Fatalf("%s: blob after %s: got %s, want %s", when, id, next, want[i+1])
				}
				break
			}
		}
		for _, bit := range []int{0, 7, len(id.Bytes()) - 1} {
			other := id
			other.Bytes()[bit] ^= 1
			if _, in := slices.BinarySearchFunc(want, other, object.ID.Compare); in {
				continue
			}
			if ok, err := b.Has(context.Background(), other); ok || err != nil {
				t.Fatalf("%s: blob %s, which no tree names, is named: %v", when, other, err)
			}
		}
	}
}

func TestNamedBlobsAreThoseOfGit(t *testing.T) {
	forEachFormat(t, func(t *testing.T, f object.Format) {
		from := oddHistory(t, f)
		want := namedByGit(t, from)
		dir := filepath.Join(t.TempDir(), "objects")
		s := openStore(t, dir, f)
		n := Open(dir, f)
		path := ingestNamed(t, s, n, blobless(t, from, "main", "old"))
		equalNames(t, "after Ingest", Union{n}, want)
		written, err := os.ReadFile(named.Path(path))
		if err != nil {
			t.Fatal(err)
		}
		equalNames(t, "in another process", Union{Open(dir, f)}, want)

		// Files of an older version lack the set, and those of a host that lost power may be damaged.
		for name, damage := range map[string]func() error{
			"missing":   func() error { return os.Remove(named.Path(path)) },
			"empty":     func() error { return replaceFile(named.Path(path), nil) },
			"truncated": func() error { return replaceFile(named.Path(path), written[:len(written)/2]) },
			"changed": func() error {
				changed := slices.Clone(written)
				changed[len(changed)/2] ^= 4
				return replaceFile(named.Path(path), changed)
			},
		} {
			if err := damage(); err != nil {
				t.Fatal(err)
			}
			equalNames(t, name, Union{Open(dir, f)}, want)
			if again, err := os.ReadFile(named.Path(path)); err != nil || !bytes.Equal(again, written) {
				t.Errorf("%s: file has %d bytes after the pack was read, want %d bytes: %v", name, len(again), len(written), err)
			}
		}
	})
}

func replaceFile(path string, data []byte) error {
	return errors.Join(os.Remove(path), os.WriteFile(path, data, 0o444))
}

func TestNamedBlobsOfPacksThatGitHasWritten(t *testing.T) {
	forEachFormat(t, func(t *testing.T, f object.Format) {
		from := oddHistory(t, f)
		want := namedByGit(t, from)
		to := newRepo(t, f)
		n := Open(filepath.Join(to, "objects"), f)
		equalNames(t, "without packs", Union{n}, nil)
		grown := make(chan struct{}, 1)
		defer Union{n}.Watch(func() { grown <- struct{}{} })()
		for _, args := range [][]string{{"--delta-base-offset"}, {"--window=30", "--depth=100"}} {
			in := append([]string{"pack-objects", "--revs", "--stdout", "-q"}, args...)
			git(t, to, git(t, from, []byte("main\nold\n"), in...), "index-pack", "--stdin")
		}
		if ok, err := (Union{n}).Has(context.Background(), want[0]); !ok || err != nil {
			t.Fatalf("a look-up does not find the packs of git: %v", err)
		}
		<-grown
		equalNames(t, "after git", Union{n}, want)
		git(t, to, nil, "fetch", "-q", from, "refs/heads/*:refs/heads/*")
		git(t, to, nil, "repack", "-a", "-d", "-q")
		equalNames(t, "after git has repacked", Union{n}, want)
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestNamedBlobsAfterJoin(t *testing.T) {
	from := oddHistory(t, object.SHA1)
	want := namedByGit(t, from)
	for _, lacking := range []bool{false, true} {
		dir := filepath.Join(t.TempDir(), "objects")
		s := openStore(t, dir, object.SHA1)
		n := Open(dir, object.SHA1)
		var last string
		last = ingestNamed(t, s, n, blobless(t, from, "main~39"))
		for i := 36; i >= 0; i -= 3 {
			last = ingestNamed(t, s, n, blobless(t, from, fmt.Sprintf("main~%d", i), fmt.Sprintf("^main~%d", min(i+3, 39))))
		}
		ingestNamed(t, s, n, blobless(t, from, "old"))
		if lacking {
			if err := os.Remove(named.Path(last)); err != nil {
				t.Fatal(err)
			}
		}
		equalNames(t, "before the join", Union{n}, want)
		res, err := s.Join(context.Background(), odb.JoinOptions{Above: 2, Keep: 1, Crowd: 100,
			Reader: func(int) bool { return true }})
		if err != nil || res.Packs < 2 {
			t.Fatalf("join: %+v, %v", res, err)
		}
		if _, err := os.Stat(named.Path(filepath.Join(dir, "pack", res.Name))); (err != nil) != lacking {
			t.Errorf("file of the joined pack: %v, while the file of one pack was missing: %v", err, lacking)
		}
		equalNames(t, "after the join", Union{n}, want)
		equalNames(t, "in another process", Union{Open(dir, object.SHA1)}, want)
		files, _ := os.ReadDir(filepath.Dir(named.Path(last)))
		if packs, _ := odb.ListPacks(filepath.Join(dir, "pack")); len(files) != len(packs) {
			t.Errorf("%d files for %d packs", len(files), len(packs))
		}
	}
}

// TestNamedBlobsPrecedeTheirPack checks, while Ingest adds packs, that the named blobs of a pack can be found before
// its index.
func TestNamedBlobsPrecedeTheirPack(t *testing.T) {
	from := oddHistory(t, object.SHA1)
	want := namedByGit(t, from)
	dir := filepath.Join(t.TempDir(), "objects")
	s := openStore(t, dir, object.SHA1)
	n := Open(dir, object.SHA1)
	calls := 0
	stop := Union{n}.Watch(func() {
		calls++
		if packs, err := odb.ListPacks(filepath.Join(dir, "pack")); err != nil || len(packs) != calls-1 {
			t.Errorf("packs at call %d of the watcher: got %d, %v", calls, len(packs), err)
		}
		if got := (Union{n}).Count(); got == 0 {
			t.Error("set is empty while the watcher is called")
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for seen := map[object.ID]bool{}; ctx.Err() == nil; {
				for _, id := range want {
					ok, err := (Union{n}).Has(context.Background(), id)
					if err != nil || !ok && seen[id] {
						t.Errorf("blob %s has left the set: %v", id, err)
						return
					}
					seen[id] = ok
				}
			}
		})
	}
	for _, rev := range []string{"main~20", "main", "old"} {
		ingestNamed(t, s, n, blobless(t, from, rev))
	}
	if calls != 3 {
		t.Errorf("watcher was called %d times for 3 packs, want 3", calls)
	}
	ingestNamed(t, s, n, blobless(t, from, "main~30"))
	if calls != 3 {
		t.Error("watcher was called although the set has not grown")
	}
	cancel()
	readers.Wait()
	stop()
	equalNames(t, "at the end", Union{n}, want)
}

func TestNamedBlobsOfAFailedIngest(t *testing.T) {
	from := oddHistory(t, object.SHA1)
	dir := filepath.Join(t.TempDir(), "objects")
	s := openStore(t, dir, object.SHA1)
	n := Open(dir, object.SHA1)
	pack := blobless(t, from, "main", "old")
	pack[len(pack)-1] ^= 1
	if _, err := s.Ingest(context.Background(), bytes.NewReader(pack),
		odb.IngestOptions{MaxObjectSize: noLimit, Names: n.Add}, nil); err == nil {
		t.Fatal("a damaged pack was stored")
	}
	equalNames(t, "after a failed Ingest", Union{n}, nil)
}
