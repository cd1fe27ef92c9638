package diff

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

func TestParseHunk(t *testing.T) {
	for line, want := range map[string]Hunk{
		"@@ -1,7 +1,8 @@ func f":   {1, 7, 1, 8},
		"@@ -1 +1,2 @@":            {1, 1, 1, 2},
		"@@ -9,0 +11 @@\n":         {9, 0, 11, 1},
		"@@ -9,0 +11":              {},
		"@@ -9,-1 +11 @@":          {},
		"@@ -99999999999 +11 @@":   {},
		"+@@ -1 +1 @@":             {},
		"@@ -1,1 -1,1 @@":          {},
		"@@ -0,0 +1,4294967296 @@": {},
	} {
		if got, ok := ParseHunk([]byte(line)); ok != (want != Hunk{}) || ok && got != want {
			t.Errorf("%q: got %+v, %v, want %+v", line, got, ok, want)
		}
	}
}

// TestOutputOfGit checks that the output of git is parsed: hunks, and the numbers of lines of changed, binary, removed
// and renamed files.
func TestOutputOfGit(t *testing.T) {
	dir := t.TempDir()
	gittest.Must(t, dir, "init", "-q")
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	long := strings.Repeat("a line\n", 40)
	for name, text := range map[string]string{"changed": "1\n2\n3\n", "binary": "\x00", "gone": "1\n", "old\tname": long} {
		write(name, text)
	}
	gittest.Must(t, dir, "add", "-A")
	gittest.Must(t, dir, "commit", "-qm", "one")
	if err := os.Remove(filepath.Join(dir, "gone")); err != nil {
		t.Fatal(err)
	}
	write("changed", "0\n1\n3\n")
	write("binary", "\x00\x01")
	gittest.Must(t, dir, "mv", "old\tname", "new\nname")
	write("new\nname", long+"more\n")
	gittest.Must(t, dir, "add", "-A")
	gittest.Must(t, dir, "commit", "-qm", "two")

	got := Counts([]byte(gittest.Must(t, dir, "diff-tree", "-r", "-z", "--numstat", "--find-renames", "HEAD^", "HEAD")))
	want := []Count{{"binary", "", -1, -1}, {"changed", "", 1, 1}, {"gone", "", 0, 1}, {"new\nname", "old\tname", 1, 0}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("counts: got %+v, want %+v", got, want)
	}
	hunks, text := Hunks([]byte(gittest.Must(t, dir, "diff", "-U0", "HEAD^", "HEAD", "--", "changed")))
	if want := []Hunk{{0, 0, 1, 1}, {2, 1, 2, 0}}; !text || !reflect.DeepEqual(hunks, want) {
		t.Errorf("hunks: got %+v, %v, want %+v", hunks, text, want)
	}
	if hunks, text := Hunks([]byte(gittest.Must(t, dir, "diff", "-U0", "HEAD^", "HEAD", "--", "binary"))); text ||
		len(hunks) > 0 {
		t.Errorf("hunks of a binary file: got %+v, %v", hunks, text)
	}
}

func FuzzHunks(f *testing.F) {
	f.Add([]byte("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1,2 @@ f\n-a\n+b\n@@ -9,0 +11 @@\n+c\n"))
	f.Fuzz(func(t *testing.T, out []byte) {
		hunks, _ := Hunks(out)
		for _, h := range hunks {
			if h.From < 0 || h.Removed < 0 || h.To < 0 || h.Added < 0 {
				t.Errorf("hunk %+v of %q", h, out)
			}
		}
		Counts(out)
	})
}
