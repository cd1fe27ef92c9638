package events

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/records"
)

// TestChainIsWhatGitPrints checks that the commits that are read without git are those that git log prints, and that
// unusual commits are left to git.
func TestChainIsWhatGitPrints(t *testing.T) {
	dir := t.TempDir()
	gittest.Must(t, dir, "init", "-q", "-b", "main", ".")
	commit := func(message string, flags ...string) string {
		t.Helper()
		file := filepath.Join(t.TempDir(), "message")
		if err := os.WriteFile(file, []byte(message), 0o600); err != nil {
			t.Fatal(err)
		}
		gittest.Must(t, dir, append(flags, "commit", "-q", "--allow-empty", "--allow-empty-message", "--cleanup=verbatim",
			"-F", file)...)
		return gittest.Must(t, dir, "rev-parse", "HEAD")
	}
	first := commit("first\n")
	gittest.Must(t, dir, "checkout", "-q", "-b", "side")
	side := commit("side\n")
	gittest.Must(t, dir, "checkout", "-q", "main")
	body := commit("\n\nsubject\n\nbody é\n\n")
	gittest.Must(t, dir, "merge", "-q", "--no-ff", "-m", "merge", "side")
	merge := gittest.Must(t, dir, "rev-parse", "HEAD")
	long := commit(strings.Repeat("é", maxMessage+1))
	empty := commit("")
	latin := commit("latin1 \xe9\n", "-c", "i18n.commitEncoding=ISO-8859-1")
	huge := commit(strings.Repeat("x", maxPlain))
	gittest.Must(t, dir, "repack", "-adq")
	gitdir := filepath.Join(dir, ".git")
	none := strings.Repeat("0", 40)
	for _, c := range []struct {
		name, old, new string
		read           bool
	}{
		{"one commit", first, body, true},
		{"merge", body, merge, true},
		{"several", first, long, true},
		{"no message", long, empty, true},
		{"another encoding", empty, latin, false},
		{"large commit", latin, huge, false},
		{"new branch", none, body, false},
		{"second parent", side, merge, false},
		{"same", first, first, true},
		{"missing", first, strings.Repeat("1", 40), false},
	} {
		u := records.RefUpdate{Name: "refs/heads/x", Old: c.old, New: c.new}
		got, ok := chain(gitdir, u)
		if ok != c.read {
			t.Errorf("%s: read without git: got %v, want %v", c.name, ok, c.read)
		}
		if !ok {
			continue
		}
		want, err := walk(t.Context(), confined, gitdir, u)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", c.name, got, want)
		}
	}
}
