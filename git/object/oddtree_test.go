package object

import (
	"slices"
	"strings"
	"testing"
)

// TestReadOddTree checks that ReadTree reads trees that ParseTree refuses, and returns the names of the entries that no
// directory can show.
func TestReadOddTree(t *testing.T) {
	long := strings.Repeat("n", MaxNameLen+1)
	for name, c := range map[string]struct {
		entries []string
		names   string // names of the read entries
		hidden  string // names of the hidden entries
	}{
		"plain":        {[]string{"100644 a", "40000 b"}, "a b", ""},
		"order":        {[]string{"100644 z", "100644 a", "40000 m"}, "a m z", ""},
		"duplicate":    {[]string{"100644 a", "100644 b", "100644 a"}, "a b", "a"},
		"file and dir": {[]string{"100644 a", "100644 a.b", "40000 a"}, "a.b a", "a"},
		"two dirs":     {[]string{"40000 a", "40000 a"}, "a", "a"},
		"long":         {[]string{"100644 a", "100644 " + long}, "a " + long, long},
		"git":          {[]string{"40000 .GIT", "100644 git~1", "100644 n"}, ".GIT git~1 n", ".GIT git~1"},
		"HFS":          {[]string{"100644 .g\u200cit", "100644 n"}, ".g\u200cit n", ""},
		"dots":         {[]string{"100644 .", "40000 ..", "100644 n"}, "n", ". .."},
		"slash":        {[]string{"100644 a/b", "100644 n"}, "n", "a/b"},
		"modes":        {[]string{"0 a", "104755 b", "0000100644 c"}, "a b c", ""},
	} {
		for _, f := range formats {
			entries, odd, err := ReadTree(f, raw(f, c.entries...))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			var names, hidden []string
			for _, e := range entries {
				names = append(names, e.Name)
			}
			for _, e := range odd {
				if e.Hidden() {
					hidden = append(hidden, e.Name)
				}
			}
			if got := strings.Join(names, " "); got != c.names {
				t.Errorf("%s: got entries %q, want %q", name, got, c.names)
			}
			if got := strings.Join(hidden, " "); got != c.hidden {
				t.Errorf("%s: got hidden %q, want %q", name, got, c.hidden)
			}
		}
	}
	if _, _, err := ReadTree(SHA1, []byte("100644 cut off")); err == nil {
		t.Error("a truncated tree was read")
	}
}

// FuzzReadTree checks that the returned entries are sorted and unique, and for a tree that git could have written the
// same as those of ParseTree.
func FuzzReadTree(f *testing.F) {
	for _, j := range judged {
		f.Add(raw(SHA1, j.entries...))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		entries, odd, err := ReadTree(SHA1, content)
		if strict, strictErr := ParseTree(SHA1, content); strictErr == nil &&
			(err != nil || len(odd) > 0 || !slices.Equal(entries, strict)) {
			t.Errorf("got %v, %v, %v, want %v", entries, odd, err, strict)
		}
		seen := map[string]bool{}
		for i, e := range entries {
			if seen[e.Name] || i > 0 && CompareEntries(entries[i-1], e) >= 0 {
				t.Errorf("entry %q is repeated or out of order", e.Name)
			}
			seen[e.Name] = true
		}
	})
}
