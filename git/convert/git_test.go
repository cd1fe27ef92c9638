package convert

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// repo is a repository of the installed git, with which the tests of this package compare their results.
type repo struct {
	t      *testing.T
	dir    string
	config []string // configuration of clones
}

func newRepo(t *testing.T) *repo {
	t.Helper()
	r := &repo{t: t, dir: t.TempDir()}
	r.git(nil, "init", "-q", "-b", "main")
	return r
}

func (r *repo) git(stdin io.Reader, args ...string) []byte {
	r.t.Helper()
	cmd := exec.CommandContext(context.Background(), "git", args...)
	cmd.Dir, cmd.Stdin = r.dir, stdin
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_ATTR_NOSYSTEM=1",
		"HOME="+r.dir, "XDG_CONFIG_HOME="+r.dir, "LC_ALL=C")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		r.t.Fatalf("git %v failed: %v\n%s", args, err, stderr.Bytes())
	}
	return out
}

// commit replaces the only commit of the repository by one with the given contents, by path.
func (r *repo) commit(files map[string][]byte) {
	r.t.Helper()
	var b bytes.Buffer
	b.WriteString("commit refs/heads/main\ncommitter A <a@example.com> 1 +0000\ndata 0\ndeleteall\n")
	for path, content := range files {
		fmt.Fprintf(&b, "M 100644 inline %s\ndata %d\n%s\n", path, len(content), content)
	}
	r.git(&b, "fast-import", "--quiet", "--force")
}

// checkout returns the files in the working tree of a new clone, by path.
func (r *repo) checkout(s Settings, files map[string][]byte) map[string][]byte {
	r.t.Helper()
	dir := filepath.Join(r.t.TempDir(), "clone")
	args := []string{"clone", "-q", "--shared"}
	if s.AutoCRLF != "" {
		args = append(args, "-c", "core.autocrlf="+s.AutoCRLF)
	}
	if s.EOL != "" {
		args = append(args, "-c", "core.eol="+s.EOL)
	}
	for _, entry := range r.config {
		args = append(args, "-c", entry)
	}
	r.git(nil, append(args, r.dir, dir)...)
	out := make(map[string][]byte, len(files))
	for path := range files {
		content, err := os.ReadFile(filepath.Join(dir, path))
		if err != nil {
			r.t.Fatal(err)
		}
		out[path] = content
	}
	return out
}

// chain returns the parsed .gitattributes files of all directories above path.
func chain(parsed map[string]*File, path string) []*File {
	files := []*File{parsed[""]}
	for i, c := range path {
		if c == '/' {
			files = append(files, parsed[path[:i+1]])
		}
	}
	return files
}

func parseAll(s Settings, files map[string][]byte) map[string]*File {
	parsed := map[string]*File{}
	for path, content := range files {
		if dir, ok := strings.CutSuffix(path, ".gitattributes"); ok {
			if f := s.Parse(content, dir == ""); f.Matters() {
				parsed[dir] = f
			}
		}
	}
	return parsed
}

// compareCheckout compares each file of a checkout with the result of Decide and Apply.
func compareCheckout(t *testing.T, s Settings, files map[string][]byte) {
	t.Helper()
	r := newRepo(t)
	r.commit(files)
	compareClone(t, r, s, files)
}

func compareClone(t *testing.T, r *repo, s Settings, files map[string][]byte) {
	t.Helper()
	parsed := parseAll(s, files)
	bad, changed := 0, 0
	for path, want := range r.checkout(s, files) {
		content := files[path]
		id, err := object.Hash(object.SHA1, object.Blob, content)
		if err != nil {
			t.Fatal(err)
		}
		rule := Decide(s, chain(parsed, path), path)
		got := rule.Apply(id, content)
		if !bytes.Equal(content, want) {
			changed++
		} else if len(content) > 0 && &got[0] != &content[0] {
			t.Errorf("%s: unchanged contents were copied", path)
		}
		if !bytes.Equal(got, want) {
			if bad++; bad <= 20 {
				dir := path[:strings.LastIndexByte(path, '/')+1]
				t.Errorf("%+v %s %s: %.200q\n gives %.200q\n  want %.200q\nattributes %.300q", s, path, rule, content, got, want,
					files[dir+".gitattributes"])
			}
		}
	}
	t.Logf("%+v: %d files, %d converted, %d wrong", s, len(files), changed, bad)
}

var attrNames = []string{"text", "crlf", "eol", "ident", "filter", "working-tree-encoding"}

func (v value) String() string {
	switch v.state {
	case set:
		return "set"
	case unset:
		return "unset"
	case valued:
		return v.text
	}
	return "unspecified"
}

// compareAttributes compares the attributes of each path with those of `git check-attr`, which reads the index.
func compareAttributes(t *testing.T, r *repo, s Settings, attributes map[string][]byte, paths []string) {
	t.Helper()
	r.commit(attributes)
	r.git(nil, "read-tree", "main")
	out := r.git(strings.NewReader(strings.Join(paths, "\x00")+"\x00"),
		append([]string{"check-attr", "--cached", "-z", "--stdin"}, attrNames...)...)
	fields := strings.Split(string(out), "\x00")
	if len(fields) != 3*len(attrNames)*len(paths)+1 {
		t.Fatalf("git check-attr printed %d fields for %d paths", len(fields), len(paths))
	}
	parsed := parseAll(s, attributes)
	for i, path := range paths {
		values := s.collect(chain(parsed, path), path, 1<<numValues-1)
		for j, name := range attrNames {
			at := 3 * (i*len(attrNames) + j)
			if fields[at] != path || fields[at+1] != name {
				t.Fatalf("git check-attr printed %q", fields[at:at+3])
			}
			if got, want := values[j].String(), fields[at+2]; got != want {
				t.Errorf("attribute of %q, %s: got %q, want %q", path, name, got, want)
				for _, dir := range slices.Sorted(maps.Keys(attributes)) {
					t.Logf("%s:\n%s", dir, attributes[dir])
				}
				t.FailNow()
			}
		}
	}
}
