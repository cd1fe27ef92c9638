package refname

import (
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/gitcmd"
)

var names = []string{
	"refs/heads/a", "refs/heads/ä-b.c/d@e", "refs/stash", "refs/heads/a/b", "refs/", "refs//a", "refs/a/", "refs/.a",
	"refs/a.lock", "refs/a.lock/b",
	"refs/a..b", "refs/a.", "refs/a@{b", "refs/a b", "refs/a\x01", "refs/a\x7f", "refs/a*", "refs/a?", "refs/a[",
	"refs/a~1", "refs/a^", "refs/a:b", `refs/a\b`, "refs/a\nb",
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

var globs = []struct {
	glob, name string
	want       bool
}{
	{"refs/heads/main", "refs/heads/main", true},
	{"refs/heads/*", "refs/heads/main", true},
	{"refs/heads/*", "refs/heads/a/b", false},
	{"refs/heads/**", "refs/heads/a/b", true},
	{"refs/heads/**", "refs/heads/a", true},
	{"refs/heads/**", "refs/heads", false},
	{"refs/heads/**", "refs/headsx/a", false},
	{"refs/*/s/**", "refs/afs/s/x/y", true},
	{"refs/*/s/**", "refs/afs/s", false},
	{"refs/*/s/**", "refs/afs/t/x", false},
	{"**", "refs/tags/v1", true},
	{"refs/heads/re[lm]-?", "refs/heads/rel-1", true},
	{"refs/heads/a**", "refs/heads/ab", false},
	{"refs/**/x", "refs/a/b/x", false},
	{"[", "refs/heads/a", false},
	{"[/**", "refs/heads/a", false},
}

func TestMatch(t *testing.T) {
	for _, c := range globs {
		if got := Match(c.glob, c.name); got != c.want {
			t.Errorf("glob %q matches %q: got %t, want %t", c.glob, c.name, got, c.want)
		}
	}
}

func FuzzMatch(f *testing.F) {
	for _, c := range globs {
		f.Add(c.glob, c.name)
	}
	f.Fuzz(func(t *testing.T, glob, name string) {
		got := Match(glob, name)
		if got && CheckGlob(glob) != nil && glob != "" && len(glob) <= 1024 {
			t.Errorf("invalid glob %q matches %q", glob, name)
		}
		if want, err := path.Match(glob, name); err == nil && !strings.Contains(glob, "**") && got != want {
			t.Errorf("glob %q matches %q: got %t, path.Match says %t", glob, name, got, want)
		}
		if prefix, ok := strings.CutSuffix(glob, "/**"); ok && got && !strings.ContainsAny(prefix, `*?[\`) &&
			!strings.HasPrefix(name, prefix+"/") {
			t.Errorf("glob %q matches %q", glob, name)
		}
	})
}

func TestPlainComponent(t *testing.T) {
	for name, want := range map[string][2]bool{
		"a": {true, true}, "9.x_Y-": {true, true}, "HEAD": {true, true}, "a.lock.b": {true, true},
		"a..b": {true, false}, "a.": {true, false}, "a.lock": {true, false},
		"": {}, ".a": {}, "-a": {}, "_a": {}, "a/b": {}, "a b": {}, "ä": {}, "a\x00": {},
	} {
		if got := [2]bool{Plain(name), PlainComponent(name)}; got != want {
			t.Errorf("%q is plain, and a component: got %v, want %v", name, got, want)
		}
	}
}
