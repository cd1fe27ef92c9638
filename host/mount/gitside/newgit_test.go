package gitside

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitdir"
)

// Files are converted by the attributes that a git directory gets, also before it is there, and by its own ones after.
func TestAttributesOfANewGitDirectory(t *testing.T) {
	home, want := t.TempDir(), "* eol=crlf\n"
	g := &control.NewGit{Exclude: []byte("dist\n"), Attributes: []byte(want)}
	if err := KeepNew(home, g); err != nil {
		t.Fatal(err)
	}
	env := []string{"GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_CONFIG_SYSTEM=" + os.DevNull, "PATH=" + os.Getenv("PATH"),
		"HOME=" + home}
	own := []gitdir.Setting{{Name: "core.autocrlf", Value: "input"}}
	check := func(what string) {
		t.Helper()
		c := ReadCheckout(t.Context(), home, env, own)
		if got := c.Settings(env).AutoCRLF; string(c.Own) != want || got != "input" {
			t.Errorf("%s: got the attributes %q and core.autocrlf %q, want %q and input", what, c.Own, got, want)
		}
	}
	check("before the git directory is there")
	var o gitdir.Options
	addNew(&o, g)
	if got := string(o.Files["info/exclude"]) + string(o.Files["info/attributes"]); got != "dist\n"+want {
		t.Errorf("files of the git directory: got %q", got)
	}
	want = "* -text\n"
	for name, text := range map[string]string{"HEAD": "ref: refs/heads/main\n", "info/attributes": want} {
		path := filepath.Join(home, "git", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	check("after that")
}
