package gittest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

var formats = []object.Format{object.SHA1, object.SHA256}

func newRepo(t testing.TB, f object.Format) *Repo {
	t.Helper()
	r, err := New(filepath.Join(t.TempDir(), "repo.git"), RepoOptions{Format: f})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *Repo) must(t testing.TB, args ...string) string {
	t.Helper()
	out, err := r.git(args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// list returns the files of a commit: the map contains "MODE TYPE ID" by path, as git prints it.
func (r *Repo) list(t testing.TB, commit object.ID) map[string]string {
	t.Helper()
	list := map[string]string{}
	for entry := range strings.SplitSeq(r.must(t, "ls-tree", "-r", "-z", commit.String()), "\x00") {
		if head, path, ok := strings.Cut(entry, "\t"); ok {
			list[path] = head
		}
	}
	return list
}

func TestCommit(t *testing.T) {
	for _, f := range formats {
		t.Run(f.String(), func(t *testing.T) {
			r := newRepo(t, f)
			one, err := r.Commit("main", map[string]File{"a": {Data: []byte("A")}, "dir/b": {Mode: executable},
				"dir/l": {Data: []byte("b"), Mode: symlink}}, "one")
			if err != nil {
				t.Fatal(err)
			}
			two, err := r.Commit("main", map[string]File{"dir": {Delete: true}, "c": {Data: []byte("data 3\nC\n")}},
				"two\n\nwith a body")
			if err != nil {
				t.Fatal(err)
			}
			if one.Format() != f || r.must(t, "rev-parse", "HEAD", "HEAD^") != two.String()+"\n"+one.String() {
				t.Errorf("HEAD and before: %s, want %s %s", r.must(t, "rev-parse", "HEAD", "HEAD^"), two, one)
			}
			content := func(data string) object.ID {
				id, err := object.Hash(f, object.Blob, []byte(data))
				if err != nil {
					t.Fatal(err)
				}
				return id
			}
			for commit, want := range map[object.ID]map[string]string{
				one: {"a": "100644 blob " + content("A").String(), "dir/b": "100755 blob " + content("").String(),
					"dir/l": "120000 blob " + content("b").String()},
				two: {"a": "100644 blob " + content("A").String(), "c": "100644 blob " + content("data 3\nC\n").String()},
			} {
				if got := r.list(t, commit); fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%s holds %v, want %v", commit, got, want)
				}
			}
			if got := r.must(t, "log", "-1", "--format=%B%ct"); got != "two\n\nwith a body\n"+fmt.Sprint(epoch+60) {
				t.Errorf("message and time: %q", got)
			}

			if err := r.Tag("light", one); err != nil {
				t.Fatal(err)
			}
			tag, err := r.AnnotatedTag("v1", two, "first")
			if err != nil {
				t.Fatal(err)
			}
			if got := r.must(t, "rev-parse", "light", "v1^{commit}", "v1"); got != fmt.Sprintf("%s\n%s\n%s", one, two, tag) ||
				tag == two {
				t.Errorf("tags are %s", got)
			}
		})
	}
}

func TestCommitFails(t *testing.T) {
	r := newRepo(t, object.SHA1)
	for name, files := range map[string]map[string]File{
		"bad mode":    {"a": {Mode: "777777"}},
		"bad gitlink": {"a": {Mode: gitlink, Data: []byte("no id")}},
		"bad path":    {"a//b": {}},
	} {
		// The input after this file is larger than the buffer of a pipe: the writer must not wait for a git process
		// that has ended.
		files["z"] = File{Data: bytes.Repeat([]byte("x"), 1<<20)}
		if id, err := r.Commit("main", files, name); err == nil {
			t.Errorf("%s: committed as %s", name, id)
		}
	}
	if refs := r.must(t, "for-each-ref"); refs != "" {
		t.Errorf("refs after failures: %s", refs)
	}
}

func TestIDsAreTheSameEverywhere(t *testing.T) {
	var ids []string
	for range 2 {
		r := newRepo(t, object.SHA1)
		sized, err := r.Sized(2, 3)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, sized.String())
	}
	if ids[0] != ids[1] {
		t.Errorf("the same files are %s and %s", ids[0], ids[1])
	}
}

func TestTricky(t *testing.T) {
	for _, f := range formats {
		t.Run(f.String(), func(t *testing.T) {
			r := newRepo(t, f)
			id, err := r.Tricky()
			if err != nil {
				t.Fatal(err)
			}
			list := r.list(t, id)
			wide, kinds := 0, map[string]int{}
			for path, head := range list {
				mode, _, _ := strings.Cut(head, " ")
				kinds[mode]++
				if filepath.Dir(path) == TrickyWide {
					wide++
				}
			}
			if wide != TrickyEntries {
				t.Errorf("%d entries in %s, want %d", wide, TrickyWide, TrickyEntries)
			}
			for mode, want := range map[string]int{executable: 1, symlink: 7, gitlink: 1} {
				if kinds[mode] != want {
					t.Errorf("%d of mode %s, want %d", kinds[mode], mode, want)
				}
			}
			for _, path := range []string{"latin1-\xe9t\xe9", "new\nline", strings.Repeat("n", 255),
				strings.Repeat("deep/", 40) + "bottom", TrickyGitlink, "empty"} {
				if list[path] == "" {
					t.Errorf("%q is not there", path)
				}
			}
			if f != object.SHA1 {
				return // one checkout is sufficient for both formats
			}
			// Stock git can check out all files.
			out := t.TempDir()
			r.must(t, "--work-tree="+out, "checkout", "--quiet", "--force", "main", "--", ".")
			if got, err := os.ReadFile(filepath.Join(out, "crlf.txt")); string(got) != "one\r\ntwo\r\n" {
				t.Errorf("crlf.txt: %q, %v", got, err)
			}
		})
	}
}

func TestHistory(t *testing.T) {
	r := newRepo(t, object.SHA1)
	first, err := r.History(5)
	if err != nil {
		t.Fatal(err)
	}
	more, err := r.History(3)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, id := range append(first, more...) {
		want = append(want, id.String())
	}
	if got := strings.Split(r.must(t, "rev-list", "--reverse", "main"), "\n"); !slices.Equal(got, want) {
		t.Errorf("history is %v, want %v", got, want)
	}
}

func TestSized(t *testing.T) {
	r := newRepo(t, object.SHA1)
	id, err := r.Sized(50, 100)
	if err != nil {
		t.Fatal(err)
	}
	list := r.list(t, id)
	blobs := map[string]bool{}
	for _, head := range list {
		blobs[head] = true
	}
	if len(list) != 5000 || len(blobs) != 5000 {
		t.Errorf("%d files with %d contents, want 5000 of each", len(list), len(blobs))
	}
}
