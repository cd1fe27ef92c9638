package convert

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// TestOutsideLikeGit compares attributes and macros from all files that git reads, inside and outside of the working
// tree, with those that git finds.
func TestOutsideLikeGit(t *testing.T) {
	rounds := uint64(30)
	if testing.Short() {
		rounds = 8
	}
	paths := []string{"a.c", "b.txt", "x", "d/a.c", "d/b.txt", "d/e/a.c", "d/e/g/a.c", "f/a.c", "A.c", "D/a.C", "f/B.TXT"}
	for seed := range rounds {
		r := rand.New(rand.NewPCG(seed, 77))
		repo := newRepo(t)
		tree := randomAttributes(r)
		if seed%3 == 0 {
			delete(tree, ".gitattributes")
		}
		file := func() []byte {
			var b strings.Builder
			for range r.IntN(5) {
				b.WriteString(randomLine(r, true))
			}
			return []byte(b.String())
		}
		user, gitDir := file(), file()
		s := Settings{IgnoreCase: seed%2 == 0}
		s.Outside = NewOutside(nil, user, gitDir, s.IgnoreCase)
		for path, content := range map[string][]byte{"user": user, ".git/info/attributes": gitDir} {
			if err := os.WriteFile(filepath.Join(repo.dir, path), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		repo.git(nil, "config", "core.attributesFile", filepath.Join(repo.dir, "user"))
		if s.IgnoreCase {
			repo.git(nil, "config", "core.ignoreCase", "true")
		}
		tree["keep"] = nil
		compareAttributes(t, repo, s, tree, paths)
		if t.Failed() {
			t.Fatalf("seed %d, user's:\n%s\ngit directory's:\n%s", seed, user, gitDir)
		}
	}
}

func TestNothingOutside(t *testing.T) {
	if o := NewOutside(nil, []byte("# nothing\n"), nil, false); o != nil {
		t.Errorf("attributes without a rule: got %+v, want nil", o)
	}
	if o := NewOutside([]byte("* text\n"), nil, nil, false); o == nil {
		t.Error("the attributes of the system's file are ignored")
	}
	s := Settings{Outside: NewOutside([]byte("*.c eol=lf\n"), []byte("*.c eol=crlf\n"), nil, false)}
	if got := Decide(s, nil, "x.c").Apply(object.ID{}, []byte("a\n")); !bytes.Equal(got, []byte("a\r\n")) {
		t.Errorf("the system's file has priority over the user's: got %q", got)
	}
}
