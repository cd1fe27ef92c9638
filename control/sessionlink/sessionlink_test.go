package sessionlink

import (
	"testing"

	"github.com/artifactfs/artifactfs/control"
)

func TestSplit(t *testing.T) {
	for word, want := range map[string][2]string{
		"": {"", ""}, "@": {"", "@"}, "@~2": {"", "@~2"}, "01J9ZK": {"", "01J9ZK"}, "before-rename": {"", "before-rename"},
		"fix@01J9ZK": {"fix", "01J9ZK"}, "fix@pin": {"fix", "pin"}, "fix@": {"fix", "@"}, "fix@@": {"fix", "@"},
		"fix@~3":  {"fix", "@~3"},
		"fix@@~3": {"fix", "@~3"}, "@{1 hour ago}": {"", "@{1 hour ago}"}, "fix@{1 hour ago}": {"fix", "@{1 hour ago}"},
	} {
		if session, checkpoint := Split(word); session != want[0] || checkpoint != want[1] {
			t.Errorf("Split(%q): got %q and %q, want %q and %q", word, session, checkpoint, want[0], want[1])
		}
	}
}

func TestParse(t *testing.T) {
	for word, want := range map[string]Link{
		"https://git.example/work.git#session=fix":          {"https://git.example/work.git", "fix", ""},
		"https://git.example/work.git#session=fix@01J9ZK":   {"https://git.example/work.git", "fix", "01J9ZK"},
		"git@git.example:work.git#session=fix@before":       {"git@git.example:work.git", "fix", "before"},
		"/srv/odd#name.git#session=fix":                     {"/srv/odd#name.git", "fix", ""},
		"https://u:p@git.example/work.git#session=fix.1@@~": {"https://u:p@git.example/work.git", "fix.1", "@~"},
	} {
		l, ok, err := Parse(word)
		if !ok || err != nil || l != want {
			t.Errorf("Parse(%q): got %+v, %v, %v, want %+v", word, l, ok, err, want)
		}
		if again, _, err := Parse(l.String()); err != nil || again != l {
			t.Errorf("%+v printed and read again: got %+v, %v", l, again, err)
		}
	}
	if _, ok, err := Parse("https://git.example/work.git"); ok || err != nil {
		t.Errorf("a URL without a fragment: got %v, %v, want neither a link nor an error", ok, err)
	}
	for _, word := range []string{"https://git.example/work.git#", "https://git.example/work.git#main",
		"https://git.example/a#session=", "https://git.example/a#session=../x", "https://git.example/a#sessions=x",
		"#session=x"} {
		if _, ok, err := Parse(word); ok || err == nil || control.AsError(err).Code != control.ExitUsage {
			t.Errorf("Parse(%q): got %v, %v, want a refusal with exit code %d", word, ok, err, control.ExitUsage)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"https://git.example/work.git#session=fix@01J9ZK", "a#b#session=c", "#", "x#session=@"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, word string) {
		l, ok, err := Parse(word)
		if !ok || err != nil {
			return
		}
		if again, ok, err := Parse(l.String()); !ok || err != nil || again != l {
			t.Errorf("%q is %+v, which is read again as %+v, %v, %v", word, l, again, ok, err)
		}
	})
}
