package gitdir

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/git/convert"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestDriversFromConfiguration(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "gitconfig")
	t.Setenv("GIT_CONFIG_GLOBAL", config)
	t.Setenv("GIT_CONFIG_SYSTEM", os.DevNull)
	t.Setenv("GIT_LFS_SKIP_SMUDGE", "1")
	write(t, config, `
[filter "lfs"]
	smudge = git-lfs smudge -- %f
	process = git-lfs filter-process
	clean = git-lfs clean -- %f
	required
[filter "a.b c"]
	smudge = "first"
	smudge = "sh -c 'x;y'"
	required = no
[filter "quiet"]
	smudge = cat
	process =
	required = 1
[filter "again"]
	process =
	process = p
[filter "other"]
	color = red
[core]
	autocrlf
	ignorecase = yes
`)
	s := ReadCheckout(context.Background(), dir, nil).Settings(nil)
	want := map[string]convert.Driver{
		"lfs": {Name: "lfs", Smudge: "git-lfs smudge -- %f", Process: "git-lfs filter-process", Clean: true,
			Required: true},
		"a.b c": {Name: "a.b c", Smudge: "sh -c 'x;y'"},
		"quiet": {Name: "quiet", Clean: true, Required: true}, "again": {Name: "again", Process: "p"},
		"other": {Name: "other"},
	}
	if !maps.Equal(s.Drivers, want) || s.AutoCRLF != "true" || !s.IgnoreCase {
		t.Errorf("settings: got %+v", s)
	}
}

func TestAttributesOutside(t *testing.T) {
	dir := t.TempDir()
	config, gitDir := filepath.Join(dir, "gitconfig"), filepath.Join(dir, "git")
	t.Setenv("GIT_CONFIG_GLOBAL", config)
	t.Setenv("GIT_CONFIG_SYSTEM", os.DevNull)
	t.Setenv("GIT_ATTR_NOSYSTEM", "1")
	t.Setenv("HOME", dir)
	t.Setenv("XDG_CONFIG_HOME", "")
	crlf := func() bool {
		t.Helper()
		return convert.Decide(ReadCheckout(context.Background(), gitDir, nil).Settings(nil), nil, "a.txt") != convert.Rule{}
	}
	if crlf() {
		t.Error("got attributes without an attributes file")
	}
	write(t, filepath.Join(dir, ".config", "git", "attributes"), "*.txt eol=crlf\n")
	if !crlf() {
		t.Error("the attributes file at the first default path is not read")
	}
	write(t, config, "[core]\n\tattributesFile = ~/mine\n")
	if crlf() {
		t.Error("a default attributes file is read although core.attributesFile is set")
	}
	write(t, filepath.Join(dir, "mine"), "*.txt eol=crlf\n")
	if !crlf() {
		t.Error("core.attributesFile is not read")
	}
	write(t, filepath.Join(gitDir, "info", "attributes"), "*.txt -text\n")
	if crlf() {
		t.Error("info/attributes is not read")
	}
}

// TestSettingsOfFilters checks that results of git-lfs are shared only with settings that leave no pointers; other
// drivers make the digest depend on the environment.
// The settings of a session replace those of the user.
func TestSettingsOfASession(t *testing.T) {
	env := []string{"GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_CONFIG_SYSTEM=" + os.DevNull, "PATH=" + os.Getenv("PATH"),
		"HOME=" + t.TempDir(), "GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=core.eol", "GIT_CONFIG_VALUE_0=crlf",
		"GIT_CONFIG_KEY_1=core.autocrlf", "GIT_CONFIG_VALUE_1=true"}
	c := ReadCheckout(t.Context(), t.TempDir(), env, Setting{"core.autocrlf", "input"},
		Setting{"clone.defaultremotename", "clone"}, Setting{"filter.upper.smudge", "tr a-z A-Z"})
	s := c.Settings(env)
	if s.EOL != "crlf" || s.AutoCRLF != "input" || s.Drivers["upper"].Smudge != "tr a-z A-Z" || c.RemoteName() != "clone" {
		t.Errorf("settings: got %+v and the remote %q", s, c.RemoteName())
	}
}

func TestSettingsOfFilters(t *testing.T) {
	dir := t.TempDir()
	config, program := filepath.Join(dir, "gitconfig"), filepath.Join(dir, "bin", "git-lfs")
	write(t, program, "#!/bin/sh\n")
	if err := os.Chmod(program, 0o755); err != nil {
		t.Fatal(err)
	}
	env := []string{"GIT_CONFIG_GLOBAL=" + config, "GIT_CONFIG_SYSTEM=" + os.DevNull,
		"PATH=" + filepath.Dir(program) + ":" + os.Getenv("PATH"), "HOME=" + dir}
	const lfs = "[filter \"lfs\"]\n\tprocess = git-lfs filter-process\n\trequired\n"
	for _, c := range []struct {
		what, config, local string
		env                 []string
		shared              bool
	}{
		{"git-lfs", lfs, "", nil, true},
		{"a URL", lfs + "[lfs]\n\turl = https://example.com\n", "[extensions]\n\tobjectFormat = sha256\n", nil, true},
		{"skip 0", lfs, "", []string{"GIT_LFS_SKIP_SMUDGE=0"}, true},
		{"skip 1", lfs, "", []string{"GIT_LFS_SKIP_SMUDGE=1"}, false},
		{"excluded files", lfs + "[lfs]\n\tfetchexclude = *\n", "", nil, false},
		{"files excluded in the git directory", lfs, "[lfs]\n\tfetchExclude = *\n", nil, false},
		{"--skip", "[filter \"lfs\"]\n\tprocess = git-lfs filter-process --skip\n", "", nil, false},
		{"another program", "[filter \"lfs\"]\n\tsmudge = cat\n", "", nil, false},
		{"no program", lfs, "", []string{"PATH=/nowhere"}, false},
	} {
		write(t, config, c.config)
		write(t, filepath.Join(dir, "git", "config"), c.local)
		full := append(append([]string{}, env...), c.env...)
		checkout := ReadCheckout(context.Background(), filepath.Join(dir, "git"), full)
		if got := checkout.Settings(full).Drivers["lfs"].Shared != ""; got != c.shared {
			t.Errorf("%s: shared: got %v, want %v", c.what, got, c.shared)
		}
		other := append(append([]string{}, full...), "COLOR=red")
		if same := checkout.Digest(full) == checkout.Digest(other); same != c.shared {
			t.Errorf("%s: another variable keeps the digest: got %v, want %v", c.what, same, c.shared)
		}
	}
}
