package events

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/records"
)

// confined runs git commands as a server does.
var confined = gitcmd.Confined{Env: append(gitcmd.IsolatedEnviron(), "GIT_NO_REPLACE_OBJECTS=1"), Memory: 512 << 20}

func TestAPushListsItsCommits(t *testing.T) {
	dir := t.TempDir()
	gittest.Must(t, dir, "init", "-q", "-b", "main", ".")
	commit := func(message string) string {
		t.Helper()
		file := filepath.Join(t.TempDir(), "message")
		if err := os.WriteFile(file, []byte(message), 0o600); err != nil {
			t.Fatal(err)
		}
		gittest.Must(t, dir, "commit", "-q", "--allow-empty", "--cleanup=verbatim", "-F", file)
		return gittest.Must(t, dir, "rev-parse", "HEAD")
	}
	first := commit("first\n\nbody\n")
	gittest.Must(t, dir, "checkout", "-q", "-b", "side")
	side := commit("side")
	gittest.Must(t, dir, "checkout", "-q", "main")
	second := commit("second")
	gittest.Must(t, dir, "merge", "-q", "--no-ff", "-m", "merge", "side")
	merge := gittest.Must(t, dir, "rev-parse", "HEAD")
	long := commit(strings.Repeat("é", maxMessage+1))
	huge := commit(strings.Repeat("x", 1<<20))
	gittest.Must(t, dir, "branch", "short")
	for i := range 15 {
		commit(fmt.Sprint("n", i))
	}
	twenty := gittest.Must(t, dir, "rev-parse", "HEAD")
	last := commit("last")
	gitdir := filepath.Join(dir, ".git")
	none := strings.Repeat("0", 40)
	all, err := Walk(t.Context(), confined, gitdir, []records.RefUpdate{
		{Name: "refs/heads/new", Old: none, New: second},
		{Name: "refs/heads/part", Old: second, New: huge},
		{Name: "refs/heads/twenty", Old: none, New: twenty},
		{Name: "refs/heads/many", Old: none, New: last},
		{Name: "refs/heads/same", Old: last, New: side},
		{Name: "refs/heads/gone", Old: last, New: none},
		{Name: "refs/notes/n", Old: none, New: first},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 5 {
		t.Errorf("commits of %d refs, want those of 5 branches: %v", len(all), all)
	}
	ids := func(c Commits) (text string) {
		for _, c := range c.List {
			text += c.ID + " "
		}
		return strings.TrimSpace(text)
	}
	if c := all["refs/heads/new"]; ids(c) != second+" "+first || c.Total != 2 || c.Truncated {
		t.Errorf("new branch: got %+v", c)
	} else if f := c.List[1]; f.Message != "first\n\nbody" || f.MessageTruncated || f.Author.Name == "" ||
		len(f.Parents) != 0 || len(f.Timestamp) != 24 {
		t.Errorf("first commit: got %+v", f)
	}
	c := all["refs/heads/part"]
	if ids(c) != huge+" "+long+" "+merge || c.Total != 3 || len(c.List[2].Parents) != 2 {
		t.Fatalf("branch with a merge: got %s", ids(c))
	}
	if h := c.List[0]; h.Message != strings.Repeat("x", maxMessage) || !h.MessageTruncated {
		t.Errorf("message of 1 MiB has %d bytes, truncated %v", len(h.Message), h.MessageTruncated)
	}
	if l := c.List[1]; l.Message != strings.Repeat("é", maxMessage) || !l.MessageTruncated {
		t.Errorf("message of %d characters has %d bytes, truncated %v", maxMessage+1, len(l.Message), l.MessageTruncated)
	}
	if c := all["refs/heads/twenty"]; len(c.List) != 20 || c.Total != 20 || c.Truncated {
		t.Errorf("20 commits: %d listed, %d counted, truncated %v", len(c.List), c.Total, c.Truncated)
	}
	if c := all["refs/heads/many"]; len(c.List) != 20 || c.Total != 21 || !c.Truncated {
		t.Errorf("21 commits: %d listed, %d counted, truncated %v", len(c.List), c.Total, c.Truncated)
	}
	if c := all["refs/heads/same"]; ids(c) != "" && ids(c) != side {
		t.Errorf("branch moved back: got %s", ids(c))
	}
}

func TestABranchThatCannotBeReadIsMarked(t *testing.T) {
	dir := t.TempDir()
	gittest.Must(t, dir, "init", "-q", "--bare", ".")
	all, err := Walk(context.Background(), confined, dir,
		[]records.RefUpdate{{Name: "refs/heads/x", Old: strings.Repeat("0", 40), New: strings.Repeat("1", 40)}})
	if c := all["refs/heads/x"]; err == nil || !c.Truncated || len(c.List) != 0 {
		t.Errorf("got %+v and error %v, want an error and a truncated list", c, err)
	}
	var many []records.RefUpdate
	for i := range maxBranches + 3 {
		many = append(many, records.RefUpdate{Name: fmt.Sprint("refs/heads/", i), Old: strings.Repeat("0", 40),
			New: strings.Repeat("1", 40)})
	}
	if all, _ := Walk(t.Context(), confined, dir, many); len(all) != len(many) {
		t.Errorf("%d of %d branches have an entry", len(all), len(many))
	}
}

// FuzzParseLog checks that the size of the result is limited for any output of git.
func FuzzParseLog(f *testing.F) {
	f.Add("")
	f.Add("a\x00\x001\x00n\x00e\x00n\x00e\x00m\n\x00")
	f.Add("a\x00b c\x00-1\x00\xff\x00e\x00n\x00e\x00" + strings.Repeat("é", 5000) + "\x00")
	f.Add("a\x00b\x0099999999999999999\x00n\x00e\x00n\x00e\x00m\x00")
	f.Add("a\x00b")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseLog(strings.NewReader(text))
		if err != nil {
			return
		}
		if len(c.List) > maxCommits || c.Total > maxCommits+1 || c.Total < len(c.List) ||
			c.Truncated != (c.Total > maxCommits) {
			t.Errorf("%d listed, %d counted, truncated %v", len(c.List), c.Total, c.Truncated)
		}
		for _, c := range c.List {
			if len([]rune(c.Message)) > maxMessage || len(c.Timestamp) != 24 {
				t.Errorf("message of %d bytes, timestamp %q", len(c.Message), c.Timestamp)
			}
		}
	})
}

// TestPersonsAreCut checks that names and addresses, of which an event has many, do not make it large.
func TestPersonsAreCut(t *testing.T) {
	long := strings.Repeat("é&", 4000)
	fields := []string{"1", "", "1", long, long, "short", "s@h", "message"}
	c, err := parseLog(strings.NewReader(strings.Join(fields, "\x00") + "\x00"))
	if err != nil || len(c.List) != 1 {
		t.Fatalf("got %+v, %v", c, err)
	}
	want := strings.Repeat("é&", maxPerson/2)
	if got := c.List[0]; got.Author != (Person{want, want}) || got.Committer != (Person{"short", "s@h"}) {
		t.Errorf("author with a long name: got %+v, %+v", got.Author, got.Committer)
	}
}
