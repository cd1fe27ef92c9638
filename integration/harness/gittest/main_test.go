package gittest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// served is a server of one repository with three commits, "a.git" below root.
type served struct {
	*Server
	root, dir string
	head      object.ID
}

func gitIn(t testing.TB, dir string, args ...string) string {
	t.Helper()
	out, err := Git(t.Context(), dir, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// makeRepo creates a repository with three commits of 40 files, and packs it. Versions of a file are similar, so that
// the pack contains deltas.
func makeRepo(t testing.TB, dir string, f object.Format) object.ID {
	t.Helper()
	gitIn(t, "", "init", "-q", "--bare", "-b", "main", "--object-format="+f.String(), dir)
	var s strings.Builder
	for n := range 3 {
		fmt.Fprintf(&s, "commit refs/heads/main\ncommitter a <a@b> %d +0000\ndata 1\nc\n", 1600000000+n)
		for i := range 40 {
			if i%3 > n {
				continue // some files are added by later commits
			}
			var text strings.Builder
			for line := range 200 + i {
				fmt.Fprintf(&text, "%x\n", line*7919*(i+1))
			}
			data := fmt.Sprintf("version %d of file %d\n%s", n, i, text.String())
			fmt.Fprintf(&s, "M 100644 inline dir%d/file%d\ndata %d\n%s\n", i%4, i, len(data), data)
		}
	}
	if _, err := run(t.Context(), dir, strings.NewReader(s.String()), nil, "fast-import", "--quiet"); err != nil {
		t.Fatal(err)
	}
	gitIn(t, dir, "repack", "-q", "-a", "-d", "-f")
	return object.MustID(gitIn(t, dir, "rev-parse", "main"))
}

func start(t testing.TB, o ServerOptions) *served { return startFormat(t, object.SHA1, o) }

func startFormat(t testing.TB, f object.Format, o ServerOptions) *served {
	t.Helper()
	sv := &served{root: t.TempDir()}
	sv.dir = filepath.Join(sv.root, "a.git")
	sv.head = makeRepo(t, sv.dir, f)
	o.Root = sv.root
	var err error
	if sv.Server, err = Serve(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sv.Close(); err != nil {
			t.Error(err)
		}
	})
	return sv
}

func (sv *served) url() string { return sv.URL("a.git") }

// blobsIn returns the blobs in the object directory of a repository.
func blobsIn(t testing.TB, dir string) map[object.ID]int {
	t.Helper()
	blobs := map[object.ID]int{}
	for line := range strings.Lines(gitIn(t, dir, "cat-file", "--batch-all-objects",
		"--batch-check=%(objecttype) %(objectname)")) {
		if id, ok := strings.CutPrefix(strings.TrimSpace(line), "blob "); ok {
			blobs[object.MustID(id)] = 1
		}
	}
	return blobs
}

// familyOf returns the running processes of a server, which are those whose variable HOME is the home directory of the
// server.
func familyOf(home string) []string {
	var found []string
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		env, err := os.ReadFile(filepath.Join(d, "environ"))
		if err == nil && strings.Contains("\x00"+string(env), "\x00HOME="+home+"\x00") {
			line, _ := os.ReadFile(filepath.Join(d, "cmdline"))
			found = append(found, filepath.Base(d)+" "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

// noise returns n bytes that cannot be compressed and are the same in every run.
func noise(n int) []byte {
	b := make([]byte, n)
	x := uint64(88172645463325252)
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return b
}
