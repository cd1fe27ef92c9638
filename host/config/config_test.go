package config

import (
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string
		err        string
	}{
		{"empty", "", nil, ""},
		{"paths", "# heavy\nredirect = [\"node_modules\", \"./web//node_modules/\", \"node_modules\"]\n",
			[]string{"node_modules", "web/node_modules"}, ""},
		{"any letters", "redirect = ['build ä']", []string{"build ä"}, ""},
		{"no TOML", "redirect = [\n\"a\"\nx", nil, "line 3"},
		{"another type", "redirect = 'a'", nil, "redirect"},
		{"another type in the list", "redirect = [1]", nil, ""},
		{"unknown key", "redirects = ['a']", nil, `unknown key "redirects"`},
		{"unknown table", "[mount]\nsize = 3", nil, "unknown key"},
		{"absolute", "redirect = ['/etc']", nil, "is absolute"},
		{"outside", "redirect = ['a/../../etc']", nil, "not inside the mount"},
		{"the root", "redirect = ['a/..']", nil, "not inside the mount"},
		{"nothing", "redirect = ['']", nil, "empty"},
		{"git's", "redirect = ['sub/.GIT/objects']", nil, "reserved for git"},
		{"one inside the other", "redirect = ['a/b', 'a']", nil, "inside the other"},
		{"control characters", `redirect = ["a\u001bb"]`, nil, "invalid path"},
		{"NUL", `redirect = ["a\u0000b"]`, nil, "invalid path"},
		{"long name", "redirect = ['" + strings.Repeat("n", 256) + "']", nil, "longer than 255"},
		{"long path", "redirect = ['" + strings.Repeat("n/", 600) + "']", nil, "invalid path"},
		{"long file", strings.Repeat("#", maxFile+1), nil, "limit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := Parse([]byte(c.text))
			bad := c.err != "" || c.name == "another type in the list"
			if bad != (err != nil) || err != nil && !strings.Contains(err.Error(), c.err) || !slices.Equal(f.Redirect, c.want) {
				t.Errorf("got %q, %v", f.Redirect, err)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("the error has lines: %q", err)
			}
		})
	}
}

func TestManyPathsAreRefused(t *testing.T) {
	var raw []string
	for i := range maxRedirects + 1 {
		raw = append(raw, string(rune('a'+i%26))+strings.Repeat("x", i/26))
	}
	if _, err := Paths(raw[:maxRedirects]); err != nil {
		t.Error(err)
	}
	if _, err := Paths(raw); err == nil {
		t.Error("accepted")
	}
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	name := UserFile()
	if want := filepath.Join(dir, "artifactfs", "config.toml"); name != want {
		t.Fatalf("user's file is %s", name)
	}
	if f, err := Read(name); err != nil || f.Redirect != nil {
		t.Errorf("without a file: %v, %v", f, err)
	}
	if err := os.Mkdir(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte("redirect = ['target']"), 0o644); err != nil {
		t.Fatal(err)
	}
	if f, err := Read(name); err != nil || !slices.Equal(f.Redirect, []string{"target"}) {
		t.Errorf("read the configuration: got %v, %v, want the redirect target", f, err)
	}
	if err := os.WriteFile(name, []byte("\nredirect = "), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(name); err == nil || !strings.Contains(err.Error(), name) ||
		!strings.Contains(err.Error(), "line 2") {
		t.Errorf("bad file: %v", err)
	}
	t.Setenv("XDG_CONFIG_HOME", "relative")
	t.Setenv("HOME", dir)
	if got := UserFile(); got != filepath.Join(dir, ".config", "artifactfs", "config.toml") {
		t.Errorf("without XDG_CONFIG_HOME: %s", got)
	}
}

// TestNestingIsCheap checks that a file with the maximum nesting depth is refused quickly, with at most some MiB of
// allocated memory.
func TestNestingIsCheap(t *testing.T) {
	for name, text := range map[string]string{
		"tables": "a=" + strings.Repeat("{a=", 1000) + "1" + strings.Repeat("}", 1000),
		"keys":   strings.Repeat("a.", 2000) + "a=1",
		"header": "[" + strings.Repeat("a.", 2000) + "a]",
		"arrays": "redirect=" + strings.Repeat("[", 2000) + strings.Repeat("]", 2000),
		"many":   strings.Repeat("[[a]]\n", 600),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Parse([]byte(text))
		runtime.ReadMemStats(&after)
		if n := (after.TotalAlloc - before.TotalAlloc) >> 20; err == nil || n > 256 || len(err.Error()) > 300 {
			t.Errorf("%s: %d MiB, %v", name, n, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", "redirect = ['a/b', \"c\"]", "redirect = [[[[", "[a.b]\nc = 1979-05-27",
		"redirect = ['../x']", "a = '''\n", "redirect = 1e400"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := Parse(text)
		if err != nil {
			return
		}
		for _, p := range file.Redirect {
			if p != path.Clean(p) || !filepath.IsLocal(p) || p == "." || strings.ContainsRune(p, 0) {
				t.Errorf("%q came through", p)
			}
		}
		if again, err := Paths(file.Redirect); err != nil || !slices.Equal(again, file.Redirect) {
			t.Errorf("%q is not clean: %q, %v", file.Redirect, again, err)
		}
	})
}
