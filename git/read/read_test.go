package read

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// confined runs git commands as a server does.
var confined = gitcmd.Confined{
	Env: append(gitcmd.IsolatedEnviron(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1"), Memory: 512 << 20,
}

// repo creates a repository whose branch main has one commit with the files.
func repo(t testing.TB, files map[string]gittest.File) (Repo, *gittest.Repo) {
	t.Helper()
	r, err := gittest.New(filepath.Join(t.TempDir(), "r.git"), gittest.RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Commit("main", files, "one"); err != nil {
		t.Fatal(err)
	}
	return Repo{Dir: r.Path, Git: confined}, r
}

func text(s string) gittest.File { return gittest.File{Data: []byte(s)} }

func TestNamesOfCommits(t *testing.T) {
	r, src := repo(t, map[string]gittest.File{"f": text("x")})
	if _, err := src.Commit("main", map[string]gittest.File{"f": text("y")}, "two"); err != nil {
		t.Fatal(err)
	}
	one, two := gittest.Must(t, src.Path, "rev-parse", "main~1"), gittest.Must(t, src.Path, "rev-parse", "main")
	for _, ref := range []string{"refs/heads/both", "refs/notes/n", "refs/heads/a/b", "refs/pull/1/head"} {
		gittest.Must(t, src.Path, "update-ref", ref, one)
	}
	gittest.Must(t, src.Path, "tag", "both", two)
	gittest.Must(t, src.Path, "tag", "-a", "-m", "x", "annotated", one)
	tag := gittest.Must(t, src.Path, "rev-parse", "annotated")
	for _, test := range []struct{ name, want, short string }{
		{"HEAD", two, two}, {"main", two, two}, {"both", one, one}, {"tags/both", two, ""}, {"refs/tags/both", two, ""},
		{"a/b", one, one},
		{"heads/main", two, ""}, {"refs/notes/n", one, ""}, {"notes/n", one, ""}, {"pull/1/head", one, ""},
		{"annotated", tag, tag},
		{one, one, one}, {one[:12], "", ""}, {"main~1", "", ""}, {"main@{0}", "", ""}, {":/one", "", ""},
		{"main:f", "", ""}, {"", "", ""},
		{"--all", "", ""}, {"-1", "", ""}, {"main\n", "", ""}, {"a\x00b", "", ""}, {"..", "", ""}, {"refs/heads/", "", ""},
		{"@", "", ""},
		{strings.Repeat("0", 40), "", ""}, {"FETCH_HEAD", "", ""},
	} {
		for _, short := range []bool{false, true} {
			r.ShortNames = short
			want := test.want
			if short {
				want = test.short
			}
			got, err := r.Resolve(t.Context(), test.name)
			if got != want || (err == nil) != (want != "") || err != nil && !errors.Is(err, ErrNotFound) {
				t.Errorf("resolve %q (short names %t) = %q, %v, want %q", test.name, short, got, err, want)
			}
			list, err := r.Log(t.Context(), test.name, 0, 1)
			if (err == nil && len(list) == 1) != (want != "") {
				t.Errorf("log of %q (short names %t) = %v, %v", test.name, short, list, err)
			}
		}
	}
}

func TestPathsOfFiles(t *testing.T) {
	files := map[string]gittest.File{"a b": text("1"), "d/e/f": text("2"), "ä": text("3"), ":x": text("4"),
		"-o":    text("5"),
		"d/..x": text("6"), "sub": {Data: []byte(strings.Repeat("1", 40)), Mode: "160000"}, "a missing": text("7"),
		"l": {Data: []byte("d"), Mode: "120000"}}
	r, _ := repo(t, files)
	forged := "x missing\n" + strings.Repeat("1", 40) + " blob 1"
	for path, want := range map[string]string{"a b": "1", "d/e/f": "2", "ä": "3", ":x": "4", "-o": "5",
		"d/..x": "6", "l": "d",
		"a missing": "7", "sub": "", "d": "", "d/": "", "/d/e/f": "", "d//e": "", "./a b": "", "d/../ä": "", "l/e/f": "",
		"a\nb": "", forged: "",
		"a\x00b": "", "": "", "none": ""} {
		b, err := r.File(t.Context(), "main", path)
		if want == "" {
			if !errors.Is(err, ErrNotFound) {
				t.Errorf("file %q: %v, want ErrNotFound", path, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("file %q: %v", path, err)
			continue
		}
		got, err := io.ReadAll(b)
		if string(got) != want || err != nil || b.Size != int64(len(want)) || b.Type != "blob" {
			t.Errorf("file %q: got %q, %v, %+v, want %q", path, got, err, b.Object, want)
		}
		b.Close()
	}
}

func TestLargeBlobIsNotReadToItsEnd(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	r, _ := repo(t, map[string]gittest.File{"big": {Data: data}})
	b, err := r.File(t.Context(), "main", "big")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(b, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	b.Close() // Close returns although git cannot write the rest
	b, err = r.Blob(t.Context(), b.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if got, err := io.ReadAll(b); err != nil || !bytes.Equal(got, data) {
		t.Errorf("read %d bytes, %v, want %d", len(got), err, len(data))
	}
}

func TestEndOfTheContextEndsGit(t *testing.T) {
	r, _ := repo(t, map[string]gittest.File{"big": {Data: make([]byte, 1<<20)}})
	ctx, cancel := context.WithCancel(t.Context())
	b, err := r.File(ctx, "main", "big")
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	cancel()
	if n, err := io.Copy(io.Discard, b); err == nil {
		t.Errorf("read %d bytes after the end of the context, want an error", n)
	}
}

// TestReplacementsAreIgnored checks that refs below refs/replace are ignored. Clients can push such refs, which would
// otherwise make other clients read other contents under the same id.
func TestReplacementsAreIgnored(t *testing.T) {
	r, src := repo(t, map[string]gittest.File{"f": text("true")})
	if _, err := src.Commit("main", map[string]gittest.File{"f": text("false")}, "two"); err != nil {
		t.Fatal(err)
	}
	one, two := gittest.Must(t, src.Path, "rev-parse", "main~1"), gittest.Must(t, src.Path, "rev-parse", "main")
	gittest.Must(t, src.Path, "update-ref", "refs/replace/"+one, two)
	c, err := r.Commit(t.Context(), one)
	if err != nil || c.Message != "one" || c.Hash != one {
		t.Errorf("commit: got %+v, %v", c, err)
	}
}

func TestCommits(t *testing.T) {
	r, src := repo(t, map[string]gittest.File{"f": text("x")})
	tree := gittest.Must(t, src.Path, "rev-parse", "main^{tree}")
	raw := "tree " + tree + "\nparent " + gittest.Must(t, src.Path, "rev-parse", "main") +
		"\nauthor J\xf6rg <j@x> 1600000000 +0200\n" +
		"committer  <> 1600000001 -0700\nencoding ISO-8859-1\n\n gr\xfc\xdfe\n\n indented\n\n"
	id := gitIn(t, src.Path, raw, "hash-object", "-t", "commit", "-w", "--stdin")
	c, err := r.Commit(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if c.Author != (Person{"Jörg", "j@x"}) || c.Committer != (Person{"", ""}) || c.TreeHash != tree ||
		c.Message != " grüße\n\n indented\n" || c.AuthoredAt != 1600000000 || c.CommittedAt != 1600000001 ||
		len(c.Parents) != 1 {
		t.Errorf("got %+v", c)
	}
	for _, other := range []string{tree, strings.Repeat("1", 40)} {
		if _, err := r.Commit(t.Context(), other); !errors.Is(err, ErrNotFound) {
			t.Errorf("commit %s: %v, want ErrNotFound", other, err)
		}
	}
}

// gitIn runs git with the standard input in.
func gitIn(t *testing.T, dir, in string, args ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "in")
	if err := os.WriteFile(path, []byte(in), 0o600); err != nil {
		t.Fatal(err)
	}
	return gittest.Must(t, dir, slices.Replace(args, len(args)-1, len(args), path)...)
}

func TestDiff(t *testing.T) {
	long := strings.Repeat("line\n", 50)
	r, src := repo(t, map[string]gittest.File{"old": text(long), "gone": text("x\n"), "bin": {Data: []byte{0, 1}},
		"f": text("a\nb\n")})
	files := map[string]gittest.File{"old": {Delete: true}, "new": text(long + "more\n"), "gone": {Delete: true},
		"bin": {Data: []byte{0, 2}},
		"f":   {Data: []byte("a\nc\nd\n"), Mode: "100755"}}
	if _, err := src.Commit("main", files, "two"); err != nil {
		t.Fatal(err)
	}
	gittest.Must(t, src.Path, "branch", "base", "main~1")
	d, err := r.Diff(t.Context(), "base", "main", true)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range d.Changes {
		c.OldHash, c.NewHash = "", ""
		got = append(got, strings.TrimSpace(strings.Join([]string{c.Status, c.OldPath, c.Path, c.OldMode, c.NewMode}, " ")))
		if c.Binary != (c.Path == "bin") {
			t.Errorf("%s is binary: %t", c.Path, c.Binary)
		}
	}
	want := []string{"modified  bin 100644 100644", "modified  f 100644 100755", "deleted  gone 100644 000000",
		"renamed old new 100644 100644"}
	if !slices.Equal(got, want) || d.Changes[1].Additions != 2 || d.Changes[1].Deletions != 1 || d.Truncated ||
		d.PatchTruncated {
		t.Errorf("got %q %+v, want %q", got, d, want)
	}
	if !strings.Contains(d.Patch, "rename from old\nrename to new\n") || !strings.Contains(d.Patch, "+c\n+d\n") {
		t.Errorf("patch:\n%s", d.Patch)
	}
	for _, names := range [][2]string{{"none", "main"}, {"main", "none"},
		{"main", gittest.Must(t, src.Path, "rev-parse", "main:f")}} {
		if _, err := r.Diff(t.Context(), names[0], names[1], false); !errors.Is(err, ErrNotFound) {
			t.Errorf("difference of %q: %v, want ErrNotFound", names, err)
		}
	}
}

func TestPatchIsLimited(t *testing.T) {
	r, src := repo(t, map[string]gittest.File{"f": text("x")})
	if _, err := src.Commit("main", map[string]gittest.File{"f": text(strings.Repeat("0123456789\n", maxPatch/8))},
		"two"); err != nil {
		t.Fatal(err)
	}
	gittest.Must(t, src.Path, "branch", "base", "main~1")
	d, err := r.Diff(t.Context(), "base", "main", true)
	if err != nil || !d.PatchTruncated || len(d.Patch) != maxPatch || d.Truncated || len(d.Changes) != 1 {
		t.Errorf("patch of %d bytes, truncated %t, %d changes, %v", len(d.Patch), d.PatchTruncated, len(d.Changes), err)
	}
}

// TestLargeFilesAreNotCompared checks that the lines of large files are not compared, because this needs much memory.
func TestLargeFilesAreNotCompared(t *testing.T) {
	r, src := repo(t, map[string]gittest.File{"f": text(strings.Repeat("0123456789abcde\n", 17<<16))})
	if _, err := src.Commit("main", map[string]gittest.File{"f": text("x")}, "two"); err != nil {
		t.Fatal(err)
	}
	gittest.Must(t, src.Path, "branch", "base", "main~1")
	d, err := r.Diff(t.Context(), "base", "main", true)
	if err != nil || len(d.Changes) != 1 || !d.Changes[0].Binary || len(d.Patch) > 1000 {
		t.Errorf("got %+v with a patch of %d bytes, %v", d.Changes, len(d.Patch), err)
	}
}

func TestReachable(t *testing.T) {
	r, src := repo(t, map[string]gittest.File{"f": text("x")})
	main, tree := gittest.Must(t, src.Path, "rev-parse", "main"), gittest.Must(t, src.Path, "rev-parse", "main^{tree}")
	loose := gittest.Must(t, src.Path, "commit-tree", "-m", "loose", "-p", main, tree)
	raw := "tree " + strings.Repeat("1", 40) + "\nauthor x <x> 1 +0000\ncommitter x <x> 1 +0000\n\nincomplete\n"
	broken := gitIn(t, src.Path, raw, "hash-object", "-t", "commit", "-w", "--stdin")
	for id, want := range map[string]bool{main: true, loose: true, broken: false, tree: false,
		strings.Repeat("1", 40): false} {
		if err := r.Reachable(t.Context(), id); (err == nil) != want || err != nil && !errors.Is(err, ErrNotFound) {
			t.Errorf("%s is complete: %v, want %t", id, err, want)
		}
	}
}

func TestBrokenRepositoryIsAnError(t *testing.T) {
	r := Repo{Dir: filepath.Join(t.TempDir(), "none"), Git: confined}
	if _, err := r.Log(t.Context(), "main", 0, 1); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("log: %v", err)
	}
	if _, err := r.File(t.Context(), "main", "f"); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("file: %v", err)
	}
	if _, err := r.Diff(t.Context(), "main", "main", false); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("difference: %v", err)
	}
}

func FuzzParseTree(f *testing.F) {
	f.Add([]byte("100644 a\x00"+strings.Repeat("x", 20)+"40000 b\x00"+strings.Repeat("y", 20)), true)
	f.Add([]byte("100644 a"), false)
	f.Fuzz(func(t *testing.T, content []byte, short bool) {
		size := 32
		if short {
			size = 20
		}
		var list []Entry
		err := parseTree(&io.LimitedReader{R: bytes.NewReader(content), N: int64(len(content))}, size, func(e Entry) bool {
			list = append(list, e)
			return true
		})
		n := 0
		for _, e := range list {
			n += len(e.Mode) + len(e.Name) + 2 + size
			if !object.ValidID(e.Hash) {
				t.Errorf("%q is no id", e.Hash)
			}
		}
		if err == nil && n != len(content) {
			t.Errorf("entries have %d bytes, the tree has %d", n, len(content))
		}
	})
}

func FuzzParseLog(f *testing.F) {
	f.Add("a\x00b\x00c d\x00n\x00e\x001\x00n\x00e\x002\x00message\n\x00")
	f.Fuzz(func(t *testing.T, text string) {
		if list, err := parseLog(text); err == nil && len(list) > strings.Count(text, "\x00")+1 {
			t.Errorf("%q has %d commits", text, len(list))
		}
	})
}

func FuzzParseDiff(f *testing.F) {
	f.Add(":100644 100644 a b M\x00f\x00:100644 100644 a b R090\x00g\x00h\x001\t2\tf\x00-\t-\t\x00g\x00h\x00", false)
	f.Add(":100644 100644 a b R090\x00g", true)
	f.Fuzz(func(t *testing.T, text string, cut bool) {
		list, _ := ParseDiff(text, cut)
		for _, c := range list {
			if c.Status == "" {
				t.Errorf("%+v has no status", c)
			}
		}
	})
}

func FuzzCandidates(f *testing.F) {
	for _, name := range []string{"main", "refs/heads/x", "a~1", "-x", "a b", "\x00", "..", "x.lock"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		for _, c := range (Repo{}).candidates(name) {
			if c != name && !strings.HasSuffix(c, name) || strings.ContainsAny(c, "\x00\n ~^:?*[\\") ||
				strings.HasPrefix(c, "-") {
				t.Errorf("%q is a candidate for %q", c, name)
			}
		}
	})
}

// TestGiantCommitIsRefused checks that a commit with a message of 70 MB is refused. Such a commit needs less than 1 MB
// in a push.
func TestGiantCommitIsRefused(t *testing.T) {
	r, src := repo(t, map[string]gittest.File{"f": text("one")})
	before := gittest.Must(t, src.Path, "rev-parse", "main")
	file := filepath.Join(t.TempDir(), "commit")
	tree := gittest.Must(t, src.Path, "rev-parse", "main^{tree}")
	head := "tree " + tree + "\nparent " + before +
		"\nauthor a <a@b> 1700000000 +0000\ncommitter a <a@b> 1700000000 +0000\n\n"
	if err := os.WriteFile(file, append([]byte(head), bytes.Repeat([]byte("m"), 70<<20)...), 0o600); err != nil {
		t.Fatal(err)
	}
	giant := gittest.Must(t, src.Path, "-c", "core.looseCompression=1", "hash-object", "-t", "commit", "-w", file)
	gittest.Must(t, src.Path, "update-ref", "refs/heads/giant", giant)
	gittest.Must(t, src.Path, "tag", "giant", giant)
	if list, err := r.Log(t.Context(), "giant", 0, 10); err == nil {
		t.Errorf("log of a giant commit: got %d commits", len(list))
	}
	if c, err := r.Commit(t.Context(), giant); err == nil {
		t.Errorf("giant commit: got %d bytes", len(c.Message))
	}
	if list, err := r.Log(t.Context(), "main", 0, 10); err != nil || len(list) != 1 {
		t.Errorf("log beside a giant commit: got %d commits, %v", len(list), err)
	}
}

func TestLogOfLongHistory(t *testing.T) {
	r, src := repo(t, nil)
	var stream strings.Builder
	const n = maxSkip + 5
	for i := range n {
		fmt.Fprintf(&stream, "commit refs/heads/long\ncommitter a <a@b> %d +0000\ndata <<.\n%d\n.\n", 1700000000+i, i)
	}
	load := confined.Command(t.Context(), "--git-dir="+src.Path, "fast-import", "--quiet")
	load.Stdin = strings.NewReader(stream.String())
	if err := gitcmd.Run(load); err != nil {
		t.Fatal(err)
	}
	for offset, want := range map[int]string{0: "10004 10003", maxSkip: "4 3", maxSkip + 1: "3 2", maxSkip + 4: "0",
		maxSkip + 5: ""} {
		list, err := r.Log(t.Context(), "long", offset, 2)
		var got []string
		for _, c := range list {
			got = append(got, c.Message)
		}
		if strings.Join(got, " ") != want || err != nil || list == nil {
			t.Errorf("two commits from %d on: got %v, %v, want %s", offset, got, err, want)
		}
	}
	if _, err := r.Log(t.Context(), "none", maxSkip+1, 2); !errors.Is(err, ErrNotFound) {
		t.Errorf("log of a branch that does not exist: got %v", err)
	}
}
