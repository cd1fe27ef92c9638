package capture

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// FuzzIgnore checks that both ways to ask whether a path is ignored have the same result, and that all paths in an
// ignored directory are ignored.
func FuzzIgnore(f *testing.F) {
	f.Add([]byte("*.o\n!keep.o\nbuild/\n/a/**\n"), "a/build/x.o")
	f.Add([]byte("\xef\xbb\xbf\\!x \\ \r\n[a-]\n**/x/**\n"), "x/y")
	f.Fuzz(func(t *testing.T, text []byte, path string) {
		for part := range strings.SplitSeq(path, "/") {
			if part == "" {
				return
			}
		}
		g := parseIgnore(text, false)
		x := ignores{of: func(dir string) globs {
			if dir == "" {
				return g
			}
			return nil
		}, cached: map[string]bool{}}
		if dir := parent(path); dir != "" && x.dir(dir) && !x.file(path) {
			t.Errorf("rules %q ignore directory %q but not %q", text, dir, path)
		}
		if first := x.file(path); first != x.file(path) {
			t.Errorf("rules %q have different results for %q", text, path)
		}
		if g.covers(path, false) {
			for dir := parent(path); dir != ""; dir = parent(dir) {
				if !g.below(dir) && !g.covers(dir, true) {
					t.Errorf("rules %q cover %q, but nothing below %q", text, path, dir)
				}
			}
		}
	})
}

func FuzzStashLog(f *testing.F) {
	id := strings.Repeat("1", 40)
	f.Add([]byte(id + " " + id + " a <a> 1 +0000\tWIP on main\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, s := range parseStashLog(object.SHA1, text) {
			if s.Commit.IsZero() || strings.Contains(s.Message, "\n") {
				t.Errorf("reflog %q has the invalid stash %+v", text, s)
			}
		}
	})
}

func FuzzKeptConfig(f *testing.F) {
	f.Add([]byte("[branch \"main\"]\n\tremote = origin\n\tmerge = refs/heads/main\n[user]\n\tname = a\n[core]\n\tsshCommand = evil\n"))
	f.Add([]byte("[remote \"o\"]\n\turl = https://a:b@c\n[branch \"x\"]\n\tremote = https://a:b@c\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		kept := portableConfig(text)
		if again := portableConfig(kept); !bytes.Equal(again, kept) {
			t.Errorf("configuration %q was reduced to %q, then to %q", text, kept, again)
		}
	})
}

func FuzzParseStaged(f *testing.F) {
	f.Add([]byte("100644 " + strings.Repeat("1", 40) + " 0\ta b\x00"))
	f.Fuzz(func(t *testing.T, out []byte) {
		ids, err := parseStaged(object.SHA1, out)
		for path, id := range ids {
			if err == nil && id.IsZero() {
				t.Errorf("output %q has no id for %q", out, path)
			}
		}
	})
}

// FuzzRecall checks that the file with a memory is used only if it belongs to the requested checkpoint.
func FuzzRecall(f *testing.F) {
	checkpoint := object.MustID(strings.Repeat("1", 40))
	f.Add([]byte(`{"version":1,"point":"` + checkpoint.String() + `","token":"t","tree":"` + checkpoint.String() +
		`","left":{"a/":{"path":"a/","why":"ignored"}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		name := filepath.Join(t.TempDir(), "memory")
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
		m := recall(name, checkpoint)
		if m.tree.IsZero() != (m.Checkpoint == "") || m.Checkpoint != "" && m.Checkpoint != checkpoint.String() {
			t.Errorf("memory file %q was read as %+v", text, m)
		}
		m.Index.tracking()
	})
}
