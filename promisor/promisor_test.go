package promisor

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/gitcmd"
	"github.com/artifactfs/artifactfs/object"
)

// provided is a Provider whose blobs are all missing, and which records what it has to fetch.
type provided struct {
	objects string
	have    map[object.ID]bool
	asked   [][]object.ID
}

func (p *provided) Format() object.Format { return object.SHA1 }

func (p *provided) Objects() []string { return []string{p.objects} }

func (p *provided) Refresh() error { return nil }

func (p *provided) Missing(ids []object.ID) (missing []object.ID) {
	for _, id := range ids {
		if !p.have[id] {
			missing = append(missing, id)
		}
	}
	return missing
}

func (p *provided) Provide(_ context.Context, wanted, along []object.ID) error {
	p.asked = append(p.asked, append(wanted, along...))
	for _, id := range append(wanted, along...) {
		p.have[id] = true
	}
	return nil
}

// history creates a repository with three commits, each of which changes the file f and adds a file, and returns its path.
func history(t *testing.T) (gitDir string, git func(args ...string) string) {
	t.Helper()
	dir := t.TempDir()
	git = func(args ...string) string {
		t.Helper()
		cmd := gitcmd.Isolated(context.Background(), append([]string{"-C", dir}, args...)...)
		cmd.Env = append(cmd.Env, gitcmd.Identity()...)
		out, err := gitcmd.Output(cmd)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "-q", "--initial-branch=main")
	for _, n := range []string{"1", "2", "3"} {
		for _, name := range []string{"f", "g" + n} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(name+" "+n), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		git("add", ".")
		git("commit", "-q", "-m", n)
	}
	return filepath.Join(dir, ".git"), git
}

// predicted returns what a Server predicts for a git command that opens the blob f of HEAD.
func predicted(t *testing.T, args ...string) (names map[string]bool) {
	t.Helper()
	gitDir, git := history(t)
	// The blobs of the repository are on this host, so they must count as missing: the loose objects are moved away.
	p := &provided{objects: filepath.Join(t.TempDir(), "store"), have: map[object.ID]bool{}}
	wanted := object.MustID(git("rev-parse", "HEAD:f"))
	blobs := map[object.ID]string{}
	for line := range strings.Lines(git("rev-list", "--objects", "--all")) {
		if id, name, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			blobs[object.MustID(id)] = name
		}
	}
	if err := os.Rename(filepath.Join(gitDir, "objects"), p.objects); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(gitDir, "objects", "pack"), 0o755); err != nil {
		t.Fatal(err)
	}
	s, err := New(gitDir, p, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	h := Hint{Commands: []Command{{Process: "1-1", Args: append([]string{"git"}, args...), Dir: filepath.Dir(gitDir)}}}
	names = map[string]bool{}
	for _, id := range s.oracle.predict(context.Background(), h, wanted) {
		if id == wanted {
			t.Errorf("git %q: the prediction contains the opened blob", args)
		}
		names[blobs[id]] = true
	}
	return names
}

func TestPredictions(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"commit -a", ""},
		{"status", ""},
		{"hash-object f", ""},
		{"log -p", "f g1 g2 g3"},
		{"log -p -- f", "f"},
		{"diff HEAD~1 HEAD", "f g3"},
		{"diff HEAD~1..HEAD", "f g3"},
		{"diff HEAD~1...HEAD", "f g3"},
		{"diff HEAD~1", "f g3"},
		{"diff --name-only HEAD~1 HEAD", ""},
		{"diff --cached HEAD~1", "f g3"},
		{"show HEAD:f", ""},
		{"worktree add ../x HEAD", "g1 g2 g3"},
		{"merge-tree HEAD~1 HEAD", "f g3"},
		{"checkout HEAD~1", "f g3"},
	} {
		got := predicted(t, strings.Fields(c.args)...)
		for _, name := range strings.Fields(c.want) {
			if !got[name] {
				t.Errorf("git %s: the prediction %v lacks %s", c.args, got, name)
			}
			delete(got, name)
		}
		if len(got) > 0 {
			t.Errorf("git %s: the prediction contains also %v", c.args, got)
		}
	}
}

// A process that is not git fetches only what it opens.
func TestOtherProgramsAreNotPredicted(t *testing.T) {
	gitDir, git := history(t)
	p := &provided{objects: filepath.Join(gitDir, "objects"), have: map[object.ID]bool{}}
	s, err := New(gitDir, p, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	id := object.MustID(git("rev-parse", "HEAD:f"))
	if packed, err := s.Opened(context.Background(), uint32(os.Getpid()), id); packed || err != nil || len(p.asked) > 0 {
		t.Errorf("open by another program: got %v, %v and %d requests", packed, err, len(p.asked))
	}
	p.have[id] = true
	if packed, err := s.Opened(context.Background(), uint32(os.Getpid()), id); !packed || err != nil {
		t.Errorf("open of a packed blob: got %v, %v, want true", packed, err)
	}
}

func TestOptionsLetOnlyHarmlessOnesThrough(t *testing.T) {
	a := walkOptions.parse([]string{"-p", "-20", "-n", "3", "--since", "1.week", "-Sx", "-S", "y", "--output=f", "main", "-U", "5", "--author=me", "--", "a", "-b"})
	if got := strings.Join(a.flags, " "); got != "-20 -n3 --since=1.week --author=me" {
		t.Errorf("parsed flags: got %q", got)
	}
	if got := strings.Join(a.plain, " ") + "|" + strings.Join(a.paths, " "); got != "main|a -b" {
		t.Errorf("parsed words: got %q", got)
	}
	if v, ok := a.value("-S"); v != "y" || !ok || !a.has("-p") || a.has("--stat") {
		t.Errorf("parsed value: got %q, %v", v, ok)
	}
}

func FuzzReadChanges(f *testing.F) {
	id := strings.Repeat("ab", 20)
	f.Add([]byte("\x01" + id + "\x00\n:100644 100644 " + id + " " + id + " M\x00a/b\x00"))
	f.Add([]byte("::100644 100644 120000 " + id + " " + id + " " + id + " MM\x00:x\x00:000000 100644 " + strings.Repeat("0", 40) + " " + id + " A\x00y\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		err := readChanges(bufio.NewReader(bytes.NewReader(data)), func(string) error { return nil }, func(c change) error {
			if len(c.before) == 0 || c.status == "" {
				t.Errorf("parsed change: got %+v", c)
			}
			return nil
		})
		if err != nil && err != io.EOF {
			t.Error(err)
		}
	})
}
