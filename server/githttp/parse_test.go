package githttp

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/pktline"
	"github.com/artifactfs/artifactfs/server/meter"
)

func TestParsePath(t *testing.T) {
	for path, want := range map[string]target{
		"/git/ns/r.git/info/refs":                            {"ns", "r", "info/refs"},
		"/git/ns/r/git-upload-pack":                          {"ns", "r", "git-upload-pack"},
		"/git/N-1/a.b_c.git.git/info/lfs/objects/batch":      {"N-1", "a.b_c.git", "info/lfs/objects/batch"},
		"/git/ns/r.git":                                      {},
		"/git/ns/r.git/":                                     {},
		"/git/ns/.git/info/refs":                             {},
		"/git//r.git/info/refs":                              {},
		"/git/ns/../r.git/info/refs":                         {},
		"/git/ns/r.git/../x":                                 {},
		"/git/ns/r.git/info//refs":                           {},
		"/git/ns/r%2egit/info/refs":                          {},
		"/git/ns/r.git/info%2frefs":                          {},
		"/git/ns/" + strings.Repeat("r", 513) + "/info/refs": {},
		"/other/ns/r.git/info/refs":                          {},
		"":                                                   {},
	} {
		if got, ok := parsePath(path); got != want || ok != (want != target{}) {
			t.Errorf("path %q: got %+v, %t, want %+v", path, got, ok, want)
		}
	}
}

func FuzzParsePath(f *testing.F) {
	f.Add("/git/ns/r.git/info/refs")
	f.Add("/git/ns/r/git-upload-pack")
	f.Add("/git/../%2e/x")
	f.Fuzz(func(t *testing.T, path string) {
		at, ok := parsePath(path)
		if !ok {
			return
		}
		for part := range strings.SplitSeq(at.namespace+"/"+at.repo+"/"+at.rest, "/") {
			if part == "" || part[0] == '.' || strings.ContainsAny(part, "%\\\x00 ") {
				t.Errorf("path %q has component %q", path, part)
			}
		}
		if again, ok := parsePath(Prefix + at.namespace + "/" + at.repo + ".git/" + at.rest); !ok || again != at {
			t.Errorf("path %q: %+v, and with its usual form %+v", path, at, again)
		}
	})
}

func TestReadAsked(t *testing.T) {
	tip, other, dir := strings.Repeat("1", 40), strings.Repeat("2", 40), t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "packed-refs"), []byte("# pack-refs\n"+tip+" refs/heads/main\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		lines  string
		kind   string
		little bool // whether git searches for few deltas
	}{
		"clone":                         {"want " + tip, meter.Clone, false},
		"clone of version 0":            {"want " + tip + " ofs-delta agent=git/2.39.5", meter.Clone, false},
		"clone of one commit":           {"deepen 1,want " + tip, meter.Clone, true},
		"clone of ten commits":          {"deepen 10,want " + tip, meter.Clone, false},
		"clone without contents":        {"filter blob:none,want " + tip, meter.Clone, false},
		"wanted ref":                    {"want-ref refs/heads/main", meter.Clone, false},
		"fetch":                         {"want " + tip + ",have " + other, meter.Fetch, false},
		"fetch of one commit":           {"deepen 1,want " + tip + ",have " + other, meter.Fetch, false},
		"contents for a partial clone":  {"filter blob:none,want " + other + ",want " + tip, meter.Fetch, true},
		"contents for a working commit": {"filter blob:none,want " + other + ",have " + tip, meter.Fetch, false},
	} {
		var head []byte
		for line := range strings.SplitSeq(c.lines, ",") {
			head = pktline.AppendLine(head, line)
		}
		got := readAsked(pktline.AppendFlush(head), dir)
		if got.kind() != c.kind || (len(got.options()) > 0) != c.little {
			t.Errorf("%s: got %s with options %q, want %s with options: %t", name, got.kind(), got.options(), c.kind, c.little)
		}
	}
}

// TestThreads checks that a command that runs alone gets a thread for each processor, and that concurrent commands
// share the processors.
func TestThreads(t *testing.T) {
	for _, c := range []struct {
		processors, running int
		want                string
	}{{2, 1, "2"}, {2, 2, "1"}, {2, 20, "1"}, {64, 1, "4"}, {64, 20, "3"}, {1, 1, "1"}} {
		if got, want := threads(c.processors, c.running), []string{"-c", "pack.threads=" + c.want}; !slices.Equal(got, want) {
			t.Errorf("%d commands on %d processors: got %q, want %q", c.running, c.processors, got, want)
		}
	}
}
