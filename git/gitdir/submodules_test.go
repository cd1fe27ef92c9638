package gitdir

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// TestResolveURLLikeGit compares the results of ResolveURL with those of git, for pairs of URLs.
func TestResolveURLLikeGit(t *testing.T) {
	remotes := []string{
		"https://git.example/a/b/c/", "https://user@git.example:8443/c", "git@git.example:a/b.git", "git.example:b",
		"/srv/a/b.git",
	}
	urls := []string{"../sub.git", "./sub/", "../../x/sub", ".././../../s", "git@other.example:s.git"}
	for _, remote := range remotes {
		dir := t.TempDir()
		git := func(args ...string) (string, error) {
			cmd := exec.Command("git", append([]string{"-C", dir}, args...)...)
			cmd.Env = gittest.Env()
			out, err := cmd.Output()
			return strings.TrimSpace(string(out)), err
		}
		var modules strings.Builder
		for i, url := range urls {
			modules.WriteString("[submodule \"" + string(rune('a'+i)) + "\"]\n\tpath = " + string(rune('a'+i)) +
				"\n\turl = " + url + "\n")
		}
		if _, err := git("init", "-q"); err != nil {
			t.Fatal(err)
		}
		if _, err := git("remote", "add", "origin", remote); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, ModulesFile), []byte(modules.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		for i := range urls {
			if _, err := git("update-index", "--add", "--cacheinfo",
				"160000,"+strings.Repeat("1", 40)+","+string(rune('a'+i))); err != nil {
				t.Fatal(err)
			}
		}
		parsed, refused, err := ParseModules([]byte(modules.String()))
		if err != nil || len(refused) > 0 || len(parsed) != len(urls) {
			t.Fatalf("got %d modules, refused %q, %v", len(parsed), refused, err)
		}
		for i, m := range parsed {
			_, gitErr := git("submodule", "--quiet", "init", m.Path)
			want, _ := git("config", "submodule."+m.Name+".url")
			got, err := ResolveURL(remote, m.URL)
			if (err != nil) != (gitErr != nil) || err == nil && got != want {
				t.Errorf("%s at %s: got %q, %v; git has %q, %v", urls[i], remote, got, err, want, gitErr)
			}
		}
	}
}

func TestModulesThatGitRefuses(t *testing.T) {
	text := `[submodule "good"]
	path = dir/good
	url = ../good.git
[submodule "../up"]
	path = a
	url = ../a
[submodule "b"]
	path = ../b
	url = ../b
[submodule "c"]
	path = c
	url = --upload-pack=touch
[submodule "d"]
	path = -d
	url = ../d
[submodule "later"]
	path = later
	url = ../later
	update = none
[submodule "no-url"]
	path = e
`
	modules, refused, err := ParseModules([]byte(text))
	if err != nil || len(refused) != 5 {
		t.Errorf("refused submodules: got %q, %v", refused, err)
	}
	if want := []Submodule{{"good", "dir/good", "../good.git"}}; !slices.Equal(modules, want) {
		t.Errorf("submodules: got %+v", modules)
	}
}

func TestAddSubmodulesKeepsWhatIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "git")
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(path, "config")
	if err := os.WriteFile(name, []byte("[core]\n\tbare = false\n[submodule \"mine\"]\n\turl = /own\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	d := &Dir{path: path, git: commands{path: path}}
	for range 2 {
		if err := d.AddSubmodules([]Submodule{{"mine", "mine", "https://git.example/mine"},
			{"lib/x", "x", "https://git.example/x"}}); err != nil {
			t.Fatal(err)
		}
	}
	for key, want := range map[string]string{"submodule.mine.url": "/own", "submodule.lib/x.url": "https://git.example/x",
		"submodule.lib/x.active": "true", "core.bare": "false"} {
		if out, err := gittest.Git(t.Context(), "", "config", "-f", name, "--get-all", key); err != nil || out != want {
			t.Errorf("setting %s: got %q, %v", key, out, err)
		}
	}
}

func FuzzParseModules(f *testing.F) {
	f.Add([]byte("[submodule \"a\"]\n\tpath = a\n\turl = ../a.git\n"))
	f.Add([]byte("[submodule \"a/../b\"]\n\tpath = .git\n\turl = -x\n[core]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		modules, _, _ := ParseModules(text)
		for _, m := range modules {
			if !filepath.IsLocal(m.Path) || m.URL[0] == '-' {
				t.Errorf("invalid submodule was accepted: %+v", m)
			}
			ResolveURL("https://git.example/a", m.URL)
		}
	})
}
