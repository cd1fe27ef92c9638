package capture_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/git/convert"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
)

// TestEnvironmentOfAnotherUser checks that the environment in the options, and not that of this process, decides about
// filters and ignored files.
func TestEnvironmentOfAnotherUser(t *testing.T) {
	const attributes = "*.word filter=hide\n*.txt text=auto\n"
	w := newWorld(t, object.SHA1, map[string]gittest.File{".gitattributes": text(attributes)})
	settings := convert.Settings{AutoCRLF: "true",
		Drivers: map[string]convert.Driver{"hide": {Name: "hide", Clean: true, Required: true}}}
	base := []*convert.File{settings.Parse([]byte(attributes), true)}
	w.o.Converts = func(_ context.Context, path string) (bool, error) { return convert.Returns(settings, base, path), nil }
	home := func(name, config, ignore string) string {
		t.Helper()
		dir := filepath.Join(w.dir, name)
		must(t, os.MkdirAll(filepath.Join(dir, ".config", "git"), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, ".gitconfig"), []byte(config), 0o600))
		must(t, os.WriteFile(filepath.Join(dir, ".config", "git", "ignore"), []byte(ignore), 0o600))
		return dir
	}
	t.Setenv("HOME", home("daemon", "[core]\n\texcludesFile = "+filepath.Join(w.dir, "none")+"\n", ""))
	one := home("one", "[filter \"hide\"]\n\tclean = sed \"s/$WORD/hidden/\"\n\trequired\n", "*.one\n")
	two := home("two", "[filter \"hide\"]\n\tclean = sed \"s/$WORD/secret/\"\n\trequired\n"+
		"[core]\n\texcludesFile = ~/rules\n", "")
	must(t, os.WriteFile(filepath.Join(two, "rules"), []byte("*.two\n"), 0o600))
	environment := func(home string) []string {
		return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "WORD=plain", "GIT_CONFIG_NOSYSTEM=1", "GIT_DIR=/none",
			"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=core.autocrlf", "GIT_CONFIG_VALUE_0=true"}
	}
	for path, content := range map[string]string{"a.word": "plain\n", "a.txt": "text\r\n", "x.one": "1\n", "x.two": "2\n"} {
		w.write(path, content)
	}
	for _, test := range []struct{ home, word, files, left string }{
		{one, "hidden\n", ".gitattributes a.txt a.word x.two", "x.one ignored"},
		{two, "secret\n", ".gitattributes a.txt a.word x.one", "x.two ignored"},
	} {
		w.o.Environment = environment(test.home)
		w.restart() // the mount is mounted again by another user, and no file is changed
		p, r := w.checkpoint(session.Manual)
		if got := w.files(p); got != test.files || reasons(r.Left) != test.left {
			t.Errorf("user %s: files: got %s without %s, want %s without %s", test.home, got, reasons(r.Left), test.files,
				test.left)
		}
		for path, want := range map[string]string{"a.word": test.word, "a.txt": "text\n"} {
			if _, got := w.in(p.Tree, path); got != want {
				t.Errorf("user %s: %s: got %q, want %q", test.home, path, got, want)
			}
		}
	}
	must(t, os.WriteFile(filepath.Join(two, ".gitconfig"), nil, 0o600))
	if p, _ := w.checkpoint(session.Manual); w.files(p) != ".gitattributes a.txt a.word x.one x.two" {
		t.Errorf("files after a change of the user's configuration: got %s", w.files(p))
	}
}
