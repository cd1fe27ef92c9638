package notes

import (
	"strings"
	"testing"
)

func TestMergeNote(t *testing.T) {
	for _, c := range []struct{ what, base, ours, theirs, want string }{
		{"lines", "", "b\na\n", "a\nc\n", "a\nb\nc\n"},
		{"lines with a base", "a\n", "a\nb\n", "a\nc\n", "a\nb\nc\n"},
		{"members of two", "", `{"a":1}`, `{"b":2}`, `{"a":1,"b":2}` + "\n"},
		{"an old value of theirs", `{"a":9,"b":1}`, `{"a":10,"b":1}`, `{"a":9,"b":2}`, `{"a":10,"b":2}` + "\n"},
		{"an old value of ours", `{"a":9,"b":1}`, `{"a":9,"b":2}`, `{"a":10,"b":1}`, `{"a":10,"b":2}` + "\n"},
		{"both", `{"a":1}`, `{"a":2}`, `{"a":3}`, `{"a":2}` + "\n"},
		{"removed here", `{"a":1,"b":1}`, `{"b":2}`, `{"a":1,"b":1,"c":1}`, `{"b":2,"c":1}` + "\n"},
		{"an object and text", "", `{"a":1}`, "text", "text\n" + `{"a":1}` + "\n"},
		{"null", "", "null", `{"a":1}`, "null\n" + `{"a":1}` + "\n"},
	} {
		end := func(s string) []byte {
			if s != "" && !strings.HasSuffix(s, "\n") {
				s += "\n"
			}
			return []byte(s)
		}
		if got := string(mergeNote(end(c.base), end(c.ours), end(c.theirs))); got != c.want {
			t.Errorf("case %s: got %q, want %q", c.what, got, c.want)
		}
	}
}
