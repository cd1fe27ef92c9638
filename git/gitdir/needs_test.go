package gitdir

import (
	"strings"
	"testing"
)

func TestNeedsHistory(t *testing.T) {
	for _, c := range []struct {
		argv string
		want bool
	}{
		{"git status --porcelain=v2 --branch", false},
		{"/usr/bin/git -C /somewhere -c a.b=c --no-pager status", false},
		{"git commit -m fix~it", true}, // a message that looks like a revision causes an unneeded wait, which is harmless
		{"git commit -am fix", false},
		{"git diff", false},
		{"git diff --stat -- a~b", true},
		{"git diff HEAD", false},
		{"git diff main", true},
		{"git diff HEAD~3", true},
		{"git show", false},
		{"git show HEAD:../a", false},
		{"git show v1.0", true},
		{"git log", true},
		{"git log -1 --format=%h", false},
		{"git blame a.c", true},
		{"git branch --show-current", false},
		{"git branch", true},
		{"git checkout -b new", false},
		{"git checkout -b new origin/old", true},
		{"git switch other", true},
		{"git checkout -- a.c", false},
		{"git reset --hard", false},
		{"git reset HEAD^", true},
		{"git rev-parse --show-toplevel", false},
		{"git rev-parse HEAD@{1}", true},
		{"git merge other", true},
		{"git an-alias", true},
		{"git --version", false},
		{"git", false},
		{"gitk", false},
		{"ls -la", false},
		{"", false},
	} {
		if got := NeedsHistory(strings.Fields(c.argv)); got != c.want {
			t.Errorf("NeedsHistory(%s) = %v", c.argv, got)
		}
	}
}
