package readahead

import (
	"strings"
	"testing"
)

func TestSearch(t *testing.T) {
	for _, c := range []struct{ command, dir, path, scope string }{
		{"rg foo", "/mnt/app", "src/a/b.c", ""},
		{"/usr/bin/rg -c foo", "/mnt/app", "b.c", ""},
		{"rg foo", "/mnt/app/src", "src/a/b.c", "src"},
		{"rg foo", "/mnt/app/src/a", "src/a/b.c", "src/a"},
		{"rg foo src lib", "/mnt/app", "src/a/b.c", "src"},
		{"rg -e foo -j 4 src/", "/mnt/app", "src/a/b.c", "src"},
		{"rg foo /mnt/app/src/a", "/", "src/a/b.c", "src/a"},
		{"rg -n -- -foo .", "/mnt/app", "src/a/b.c", ""},
		{"rg foo src/a/b.c", "/mnt/app", "src/a/b.c", "no"},
		{"rg -g *.go foo", "/mnt/app", "src/a/b.c", "no"},
		{"rg -tgo foo", "/mnt/app", "src/a/b.c", "no"},
		{"rg --type=go foo", "/mnt/app", "src/a/b.c", "no"},
		{"rg -uu --glob !.git -c foo .", "/mnt/app", "src/a/b.c", ""},
		{"rg --hidden -g!.git --iglob=!*.lock --max-columns 500 -l foo src", "/mnt/app", "src/a/b.c", "src"},
		{"rg -g !.git -g *.go foo", "/mnt/app", "src/a/b.c", "no"},
		{"rg -ng=!.git -m 1 -Tgo -C3 foo", "/mnt/app/src", "src/a/b.c", "src"},
		{"rg -g", "/mnt/app", "src/a/b.c", "no"},
		{"rg -q foo", "/mnt/app", "src/a/b.c", "no"},
		{"rg --files", "/mnt/app", "src/a/b.c", "no"},
		{"grep -rn foo .", "/mnt/app", "src/a/b.c", ""},
		{"grep -rc --exclude-dir=.git foo .", "/mnt/app", "src/a/b.c", ""},
		{"grep --exclude-dir .git -R -A 3 foo", "/mnt/app/src", "src/a/b.c", "src"},
		{"grep --recursive -e foo -e bar src", "/mnt/app", "src/a/b.c", "src"},
		{"grep -rIlm 1 --binary-files=text foo src", "/mnt/app", "src/a/b.c", "src"},
		{"grep -r --include=*.c foo", "/mnt/app", "src/a/b.c", "no"},
		{"grep foo src/a/b.c", "/mnt/app", "src/a/b.c", "no"},
		{"grep -r -e= src", "/mnt/app", "src/a/b.c", "src"},
		{"grep -er foo src/a/b.c", "/mnt/app", "src/a/b.c", "no"},
		{"cat src/a/b.c", "/mnt/app", "src/a/b.c", "no"},
		{"", "/mnt/app", "src/a/b.c", "no"},
	} {
		scope, ok := Search(strings.Fields(c.command), c.dir, c.path)
		if !ok {
			scope = "no"
		}
		if scope != c.scope {
			t.Errorf("%s in %s reads %s: got %q, want %q", c.command, c.dir, c.path, scope, c.scope)
		}
	}
}
