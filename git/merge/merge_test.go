package merge

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// mergeOutput returns the output of git 2.39 for a merge with one conflict.
func mergeOutput(tree, a, b string) string {
	return strings.Join([]string{tree, "100644 " + a + " 2\tfile", "100644 " + b + " 3\tfile", "",
		"1", "file", "Auto-merging", "Auto-merging file\n",
		"1", "file", "CONFLICT (contents)", "CONFLICT (content): Merge conflict in file\n", ""}, "\x00")
}

func TestParse(t *testing.T) {
	tree, a, b := object.MustID(strings.Repeat("1", 40)), object.MustID(strings.Repeat("2", 40)),
		object.MustID(strings.Repeat("3", 40))
	m, err := parse([]byte(mergeOutput(tree.String(), a.String(), b.String())))
	if err != nil {
		t.Fatal(err)
	}
	if m.Result != tree || len(m.Conflicts) != 2 || m.Conflicts[0].ID != a || m.Conflicts[0].Stage != 2 ||
		m.Conflicts[1].Stage != 3 {
		t.Errorf("merge with a conflict: got tree %s and conflicts %+v", m.Result, m.Conflicts)
	}
	if got := m.Conflicted(); !slices.Equal(got, []string{"file"}) {
		t.Errorf("conflicted paths: got %q, want each path once", got)
	}
	if len(m.Messages) != 2 || !strings.HasPrefix(m.Messages[1], "CONFLICT (content)") {
		t.Errorf("messages of a merge with a conflict: got %q", m.Messages)
	}
	for _, bad := range []string{"", "no id", tree.String() + "\x00100644 no-id 2\tfile", tree.String() + "\x00no tab"} {
		if _, err := parse([]byte(bad)); err == nil {
			t.Errorf("parse accepts %q", bad)
		}
	}
}

func FuzzParse(f *testing.F) {
	hex := strings.Repeat("1", 40)
	f.Add([]byte(mergeOutput(hex, hex, hex)))
	f.Add([]byte(hex + "\x00"))
	f.Fuzz(func(t *testing.T, out []byte) {
		m, err := parse(out)
		if err == nil && len(m.Conflicted()) > len(m.Conflicts) {
			t.Errorf("got %d conflicted paths of %d conflicts", len(m.Conflicted()), len(m.Conflicts))
		}
	})
}

// TestAncestorsAndMerges tests the ancestors and merges of a history with two sides, which are also merged into each
// other, and of a commit without a common history.
func TestAncestorsAndMerges(t *testing.T) {
	dir := t.TempDir()
	run := func(args ...string) ([]byte, error) {
		cmd := exec.CommandContext(context.Background(), "git", append([]string{"-C", dir}, args...)...)
		cmd.Env = gittest.Env()
		return gitcmd.Output(cmd)
	}
	script := exec.Command("sh", "-euc", `git init -q -b main; printf '1\n2\n3\n' >f; git add f; git commit -qm base
git checkout -q -b ours; printf 'one\n2\n3\n' >f; git commit -qam ours; git checkout -q -b theirs main; printf '1\n2\nthree\n' >f; git commit -qam theirs
git checkout -q -b clash main; printf 'eins\n2\n3\n' >f; git commit -qam clash
git checkout -q -b x ours; git merge -q -m x theirs; git checkout -q -b y theirs; git merge -q -m y ours
git checkout -q --orphan alone; git commit -qm alone`)
	script.Dir, script.Env = dir, gittest.Env()
	if out, err := script.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	id := func(name string) object.ID { return object.MustID(gittest.Must(t, dir, "rev-parse", name)) }

	for _, c := range []struct {
		a, b string
		want []string
	}{{"ours", "theirs", []string{"main"}}, {"main", "ours", []string{"main"}}, {"x", "y", []string{"ours", "theirs"}},
		{"ours", "alone", nil}} {
		var want []object.ID
		for _, name := range c.want {
			want = append(want, id(name))
		}
		got, err := Bases(run, c.a, c.b)
		slices.SortFunc(got, object.ID.Compare)
		slices.SortFunc(want, object.ID.Compare)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("bases of %s and %s: got %v, %v, want %v", c.a, c.b, got, err, want)
		}
	}
	if got, err := Base(run, "x", "theirs", "clash"); err != nil || got != id("main") {
		t.Errorf("base of three commits: got %v, %v, want %v", got, err, id("main"))
	}
	if got, err := Base(run, "ours", "alone"); err != nil || !got.IsZero() {
		t.Errorf("base without a common history: got %v, %v", got, err)
	}
	missing := strings.Repeat("1", 40)
	if _, err := Bases(run, "ours", missing); !gitcmd.Exited(err, 128) {
		t.Errorf("bases of a missing commit: got %v, want exit status 128", err)
	}
	for _, c := range []struct {
		a, b string
		want bool
	}{{"main", "x", true}, {"x", "x", true}, {"x", "main", false}, {"alone", "x", false}} {
		if got, err := IsAncestor(run, c.a, c.b); err != nil || got != c.want {
			t.Errorf("%s is an ancestor of %s: got %v, %v, want %v", c.a, c.b, got, err, c.want)
		}
	}
	if _, err := IsAncestor(run, missing, "x"); !gitcmd.Exited(err, 128) {
		t.Errorf("whether a missing commit is an ancestor: got %v, want exit status 128", err)
	}
	if m, err := Commits(run, "ours", "theirs", Renames(true)); err != nil || len(m.Conflicts) > 0 ||
		m.Result != id("x^{tree}") {
		t.Errorf("merge: got %+v, %v, want tree %v", m, err, id("x^{tree}"))
	}
	if m, err := Commits(run, "ours", "clash"); err != nil || !slices.Equal(m.Conflicted(), []string{"f"}) ||
		len(m.Messages) == 0 {
		t.Errorf("merge with a conflict: got %+v, %v", m, err)
	}
	if _, err := Commits(run, "ours", missing); err == nil {
		t.Error("merge of a missing commit: got no error")
	}
}
