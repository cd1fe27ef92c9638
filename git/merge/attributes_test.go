package merge

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// attributed makes a repository whose branches ours and theirs change the same files, which have attributes. The branch
// apart changes another file, and plain is ours without attributes. It returns the paths of a clone with a working tree
// and of a bare one.
func attributed(t *testing.T) (clone, bare string) {
	t.Helper()
	dir := t.TempDir()
	script := exec.Command("sh", "-euc", `git init -q -b base clone; cd clone
edit() { for f in pkg.lock a.bin f.own d/x e/x "$2"; do sed -i "$1" "$f"; done; }
printf '[attr]own merge=own\npkg.lock -merge\nLOG merge=union\n*.bin binary\n*.own own\n' >.gitattributes
mkdir d e; printf 'x -merge\nmoved -merge\n' >d/.gitattributes; echo 'x text' >e/.gitattributes; echo 1 >LOG
for f in pkg.lock a.bin f.own d/x e/x moved; do printf '1\n2\n3\n4\n5\n' >$f; done
git add .; git commit -qm base
git checkout -qb theirs; git mv moved d/moved; edit 's/5/five/' d/moved; echo theirs >>LOG; git commit -qam theirs
git checkout -qb ours base; edit 's/1/one/' moved; echo ours >>LOG; git commit -qam ours
git checkout -qb apart base; echo apart >apart; git add apart; git commit -qam apart
git checkout -qb plain ours; git rm -q .gitattributes d/.gitattributes e/.gitattributes; git commit -qm plain
git clone -q --bare . ../bare; for d in . ../bare; do git -C $d config merge.own.driver 'cat %B >>%A'; done`)
	script.Dir, script.Env = dir, gittest.Env()
	if out, err := script.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return filepath.Join(dir, "clone"), filepath.Join(dir, "bare")
}

// TestAttributes compares merges in a bare repository with those of git merge in a working tree. It also counts the git
// commands of merges to which no attributes apply.
func TestAttributes(t *testing.T) {
	t.Parallel()
	clone, bare := attributed(t)
	repo := gitcmd.Repo{Dir: bare, Base: gittest.Env()}
	for _, c := range []struct {
		ours, theirs string
		conflicts    []string
		commands     int
	}{
		{"ours", "theirs", []string{"a.bin", "d/moved", "d/x", "pkg.lock"}, 4},
		{"theirs", "ours", []string{"a.bin", "d/moved", "d/x", "pkg.lock"}, 4},
		{"plain", "theirs", []string{"LOG"}, 2},
		{"apart", "ours", []string{}, 1},
	} {
		commands := 0
		m, err := Commits(func(args ...string) ([]byte, error) {
			commands++
			return repo.Runner(t.Context())(args...)
		}, c.ours, c.theirs, Renames(true))
		if err != nil {
			t.Fatal(err)
		}
		got := m.Conflicted()
		slices.Sort(got)
		if !slices.Equal(got, c.conflicts) || commands != c.commands {
			t.Errorf("merge of %s into %s: got conflicts in %q after %d commands, want %q, %d", c.theirs, c.ours, got,
				commands, c.conflicts, c.commands)
		}
		gittest.Must(t, clone, "checkout", "-qf", c.ours)
		_, err = gittest.Git(t.Context(), clone, "merge", "-q", "--no-commit", "--no-ff", c.theirs)
		if (err != nil) != (len(c.conflicts) > 0) {
			t.Errorf("git merge of %s into %s: got %v, want conflicts in %q", c.theirs, c.ours, err, c.conflicts)
		}
		for path := range strings.FieldsSeq(gittest.Must(t, bare, "ls-tree", "-r", "--name-only", m.Result.String())) {
			want, err := os.ReadFile(filepath.Join(clone, path))
			if text := gittest.Must(t, bare, "cat-file", "blob", m.Result.String()+":"+path); err != nil ||
				path != "LOG" && text != strings.TrimSuffix(string(want), "\n") ||
				path == "LOG" && strings.Contains(text, "<<<") != strings.Contains(string(want), "<<<") {
				t.Errorf("%s after a merge of %s into %s: got\n%s\nwant that of git merge:\n%s\n%v", path, c.theirs, c.ours, text,
					want, err)
			}
		}
		gittest.Must(t, clone, "reset", "-q", "--hard")
	}
}

// TestMissingAttributes checks that a merge reports missing contents of .gitattributes files.
func TestMissingAttributes(t *testing.T) {
	t.Parallel()
	_, bare := attributed(t)
	id := gittest.Must(t, bare, "rev-parse", "ours:d/.gitattributes")
	if err := os.Remove(filepath.Join(bare, "objects", id[:2], id[2:])); err != nil {
		t.Fatal(err)
	}
	m, err := Commits(gitcmd.Repo{Dir: bare, Base: gittest.Env()}.Runner(t.Context()), "ours", "theirs")
	if !errors.Is(err, ErrAttributes) || m.Result.IsZero() {
		t.Errorf("merge without an attributes file: got %+v, %v, want the result and ErrAttributes", m, err)
	}
}
