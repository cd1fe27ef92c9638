package review

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestMessages(t *testing.T) {
	commits := []Commit{{Message: "last\n\nbody\n"}, {Message: "Merge x", Merge: true}, {Message: "\nfirst\n"},
		{Message: "fixup! other"}}
	for what, c := range map[string]struct{ got, want string }{
		"title":                  {Title(commits), "first"},
		"title of a correction":  {Title(commits[3:]), "fixup! other"},
		"title of nothing":       {Title(nil), ""},
		"squash of one commit":   {SquashMessage(commits[:1]), "last\n\nbody\n"},
		"squash of several":      {SquashMessage(commits), "first\n\n* fixup! other\n* first\n* Merge x\n* last\n"},
		"merge":                  {MergeMessage("work", "main", commits[:1]), "Merge session work into main\n\n* last\n"},
		"merge without a commit": {MergeMessage("work", "main", nil), "Merge session work into main\n"},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %q, want %q", what, c.got, c.want)
		}
	}
	var many []Commit
	for i := range maxListed + 2 {
		many = append(many, Commit{Message: fmt.Sprint(i)})
	}
	if got := MergeMessage("work", "main", many); !strings.HasSuffix(got, "* 2\n... and 2 more commits\n") ||
		strings.Contains(got, "* 1\n") {
		t.Errorf("message with many commits: got %q", got)
	}
	if got := MergeMessage("work", "main", many[1:]); !strings.HasSuffix(got, "* 2\n... and 1 more commits\n") {
		t.Errorf("message with one commit too many: got %q", got)
	}
}

func TestShorten(t *testing.T) {
	for n := 3; n < 15; n++ {
		if got := Shorten("aäöü€", n); len(got) > n || !utf8.ValidString(got) {
			t.Errorf("text cut to %d bytes: got %q", n, got)
		}
	}
}
