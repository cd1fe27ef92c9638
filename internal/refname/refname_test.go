package refname

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/internal/gitcmd"
)

var names = []string{
	"refs/heads/a", "refs/heads/ä-b.c/d@e", "refs/stash", "refs/heads/a/b", "refs/", "refs//a", "refs/a/", "refs/.a", "refs/a.lock", "refs/a.lock/b",
	"refs/a..b", "refs/a.", "refs/a@{b", "refs/a b", "refs/a\x01", "refs/a\x7f", "refs/a*", "refs/a?", "refs/a[", "refs/a~1", "refs/a^", "refs/a:b", `refs/a\b`, "refs/a\nb",
}

func TestNamesAreThoseOfGit(t *testing.T) {
	for _, name := range names {
		if git := gitcmd.New(t.Context(), "check-ref-format", name).Run() == nil; Valid(name) != git {
			t.Errorf("%q is valid: got %t, git says %t", name, !git, git)
		}
	}
	for name, want := range map[string]bool{"HEAD": true, "heads/a": false, "": false, "FETCH_HEAD": false} {
		if got := Valid(name); got != want {
			t.Errorf("%q is valid: got %t, want %t", name, got, want)
		}
	}
}

func FuzzValid(f *testing.F) {
	for _, name := range names {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if Valid(name) && (!filepath.IsLocal(name) || strings.ContainsAny(name, "\x00\n")) {
			t.Errorf("%q is no safe name of a file", name)
		}
	})
}
