package gitdir

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
)

// A new directory has the files that it is given, instead of those of the template. Those of a state replace them.
func TestFilesOfANewDirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "git")
	if _, err := Create(path, Options{
		Format: object.SHA1, WorkTree: "/w", Remote: "https://example.org/r.git", Objects: t.TempDir(), Git: Version{2, 39},
		Files: map[string][]byte{"info/exclude": []byte("dist\n"), "info/attributes": []byte("* -text\n")},
		State: &State{Branch: "refs/heads/main", Files: map[string]File{"info/exclude": {Content: []byte("state\n")}}},
	}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"info/exclude": "state\n", "info/attributes": "* -text\n"} {
		if got, err := os.ReadFile(filepath.Join(path, name)); err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, want)
		}
	}
}

// TestANewDirectoryStartsOnAnotherBranch checks HEAD, the branches and the reflogs of git directories that are created
// with another HEAD than that of the checkpoint or of the mounted branch.
func TestANewDirectoryStartsOnAnotherBranch(t *testing.T) {
	root := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", args...)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b",
			"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %q failed: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "-q", "-b", "main", "from")
	git("-C", "from", "commit", "-q", "--allow-empty", "-m", "one")
	old := object.MustID(git("-C", "from", "rev-parse", "HEAD"))
	git("-C", "from", "commit", "-q", "--allow-empty", "-m", "two")
	head := object.MustID(git("-C", "from", "rev-parse", "HEAD"))
	from := filepath.Join(root, "from")
	state := &State{Branch: "refs/heads/main", Head: head,
		Refs: []packedrefs.Ref{{Name: "refs/heads/main", ID: head}, {Name: "refs/heads/other", ID: old}}}
	for _, test := range []struct {
		name           string
		state          *State
		branch         string
		detach         bool
		head, branches string
	}{
		{"new branch", nil, "refs/heads/fix/it", false, "refs/heads/fix/it", "fix/it=2 main=2"},
		{"detached", nil, "", true, "", "main=2"},
		{"new branch of a state", state, "refs/heads/fix", false, "refs/heads/fix", "fix=2 main=2 other=1"},
		{"moved branch of a state", state, "refs/heads/other", false, "refs/heads/other", "main=2 other=2"},
		{"detached state", state, "", true, "", "main=2 other=1"},
		{"unborn branch", &State{Branch: "refs/heads/main"}, "refs/heads/fix", false, "refs/heads/fix", ""},
	} {
		path := filepath.Join(root, strings.ReplaceAll(test.name, " ", "-"))
		if _, err := Create(path, Options{
			Format: object.SHA1, WorkTree: from, Remote: "https://example.org/r.git",
			Objects: filepath.Join(from, ".git", "objects"), Ref: "refs/heads/main", Commit: head, Git: Version{2, 39},
			State: test.state, Branch: test.branch, Detach: test.detach,
			Committer: func(object.ID) string { return "a <a@b> 1700000000 +0000" },
		}); err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		dir := "--git-dir=" + path
		var got []string
		for line := range strings.Lines(git(dir, "for-each-ref", "--format=%(refname:short) %(objectname)", "refs/heads")) {
			name, id, _ := strings.Cut(strings.TrimSpace(line), " ")
			got = append(got, name+"="+map[string]string{old.String(): "1", head.String(): "2"}[id])
		}
		if text := strings.Join(got, " "); text != test.branches {
			t.Errorf("branches with %s: got %q, want %q", test.name, text, test.branches)
		}
		if test.head == "" {
			text := git(dir, "rev-parse", "--symbolic-full-name", "HEAD") + git(dir, "rev-parse", "HEAD")
			if text != "HEAD"+head.String() {
				t.Errorf("HEAD with %s: got %q", test.name, text)
			}
		} else if text := git(dir, "symbolic-ref", "HEAD"); text != test.head {
			t.Errorf("HEAD with %s: got %q, want %q", test.name, text, test.head)
		}
		if test.branches != "" && !strings.HasPrefix(git(dir, "reflog", "show", "HEAD"), head.String()[:7]) {
			t.Errorf("reflog of HEAD with %s: got %q", test.name, git(dir, "reflog", "show", "HEAD"))
		}
	}
	for _, bad := range []Options{{Branch: "refs/tags/x"}, {Branch: "refs/heads/../../config"}, {Detach: true}} {
		bad.Format = object.SHA1
		path := filepath.Join(root, "bad")
		if _, err := Create(path, bad); err == nil || Exists(path) {
			t.Errorf("git directory with %+v is created: %v", bad, err)
		}
	}
}

func TestCheckBranch(t *testing.T) {
	refs := []packedrefs.Ref{{Name: "refs/heads/main"}, {Name: "refs/heads/a/b"}, {Name: "refs/tags/v1"}}
	for name, want := range map[string]error{"main": ErrBranchExists, "main/x": ErrBranchBlocked, "a": ErrBranchBlocked,
		"a/b/c": ErrBranchBlocked, "a/c": nil, "mai": nil, "v1": nil, "maine": nil} {
		if err := CheckBranch("refs/heads/"+name, false, refs); !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("branch %s: got %v, want %v", name, err, want)
		}
	}
	if err := CheckBranch("refs/heads/main", true, refs); err != nil {
		t.Errorf("move an existing branch: %v", err)
	}
}
