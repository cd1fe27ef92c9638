package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
)

// The flags and the file .worktreeinclude choose the carried files.
func TestForkChoosesIgnoredFiles(t *testing.T) {
	w, _, m := forkRepo(t)
	ignored := func(f mounted) string {
		w.Helper()
		list := w.sh(f.Dir, `ls -d .env id_rsa build node_modules src/a.o 2>/dev/null || true`)
		return strings.Join(strings.Fields(list), " ")
	}
	n := 0
	fork := func(args ...string) mounted {
		w.Helper()
		n++
		f := m.fork(fmt.Sprint("fork", n), args...)
		t.Cleanup(func() { w.ok("unmount", "--discard", "--yes", f.Dir) })
		return f
	}
	const all = ".env build id_rsa node_modules src/a.o"
	for _, test := range []struct {
		what, include string
		args          []string
		want          string
	}{
		{"without a file", "", nil, all},
		{"--without-ignored", "", []string{"--without-ignored"}, ""},
		{"--ignored none", "", []string{"--ignored", "none"}, ""},
		{"--ignored listed", "", []string{"--ignored", "listed"}, ""},
		{"--carry", "", []string{"--carry", "*.o", "--carry", "/build/"}, "build src/a.o"},
		{"--leave-out", "", []string{"--leave-out", "node_modules", "--leave-out", "id_*"}, ".env build src/a.o"},
		{"with a file", ".env\nnode_modules/pkg/hard\n", nil, ".env node_modules"},
		{"with a file and --ignored all", ".env\n", []string{"--ignored", "all"}, all},
		{"with a file and --carry", ".env\n", []string{"--carry", "id_rsa"}, ".env id_rsa"},
	} {
		if test.include == "" {
			w.sh(m.Dir, "rm -f .worktreeinclude")
		} else if err := os.WriteFile(filepath.Join(m.Dir, ".worktreeinclude"), []byte(test.include), 0o644); err != nil {
			t.Fatal(err)
		}
		f := fork(test.args...)
		if got := ignored(f); got != test.want {
			t.Errorf("%s: got %q, want %q", test.what, got, test.want)
		}
		if test.want == ".env node_modules" {
			got := w.sh(f.Dir, "find node_modules | sort | tr '\\n' ' '")
			if got != "node_modules node_modules/pkg node_modules/pkg/hard " {
				t.Errorf("%s: got %q in node_modules", test.what, got)
			}
		}
	}

	// An earlier checkpoint does not have the present files.
	p := m.checkpoint("--pin", "early")
	w.sh(m.Dir, "rm -f .worktreeinclude; echo later >src/new")
	var early control.MountReply
	w.json(&early, "session", "fork", "-C", m.Dir, p.ID, w.place("early"), "--session", "early")
	if got := ignored(mounted{early, w}); got != "" || early.Carried != nil {
		t.Errorf("fork of an earlier checkpoint: got %q, %+v", got, early.Carried)
	}
	w.ok("unmount", "--discard", "--yes", early.Dir)
	r := w.afs("session", "fork", "-C", m.Dir, p.ID, w.place("early2"), "--ignored", "all")
	if r.code == 0 || !strings.Contains(r.stderr, "do not belong to an earlier checkpoint") {
		t.Errorf("fork of an earlier checkpoint with all files: got %s", r)
	}

	// Of a session that is not mounted nothing is carried, and no fork is made if all was requested.
	m.checkpoint()
	w.unmount(m)
	r = w.afs("session", "fork", "-C", "work", w.place("none"), "--session", "none", "--ignored", "all")
	if r.code == 0 || !strings.Contains(r.stderr, "not mounted") {
		t.Errorf("fork of an unmounted session with all ignored files: got %s", r)
	}
	some := w.place("some")
	if r := w.afs("session", "fork", "-C", "work", some, "--session", "some"); r.code != 0 {
		t.Errorf("fork of an unmounted session: got %s", r)
	}
	w.ok("unmount", "--discard", "--yes", some)
	for _, args := range [][]string{{"--ignored", "some"}, {"--ignored", "all", "--carry", "x"}, {"--carry", "a//"}} {
		if r := w.afs(append([]string{"session", "fork", "-C", "work", w.place("bad")}, args...)...); r.code == 0 {
			t.Errorf("session fork %q: got %s, want an error", args, r)
		}
	}
}

// If the contents cannot be shared, a fork is made without the ignored files and says so, unless all were requested.
func TestForkWithoutShares(t *testing.T) {
	w, _, m := forkRepo(t)
	shares := filepath.Join(w.state, "shares")
	if err := os.WriteFile(shares, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fork := w.place("fork")
	r := w.afs("session", "fork", "-C", m.Dir, fork, "--session", "fork")
	if r.code != 0 || !strings.HasPrefix(r.stderr, "artifactfs: not carried: 1 secret (id_rsa), 4 ignored (") ||
		!strings.Contains(r.stderr, ": create share") || strings.Count(r.stderr, "\n") != 1 {
		t.Errorf("fork without shares: got %s", r)
	}
	if got := w.sh(fork, "ls -a"); strings.Contains(got, "node_modules") || strings.Contains(got, ".env") {
		t.Errorf("fork without shares: got the files %q", got)
	}
	r = w.afs("session", "fork", "-C", m.Dir, w.place("all"), "--session", "all", "--ignored", "all")
	if r.code == 0 || !strings.Contains(r.stderr, "cannot be carried") {
		t.Errorf("fork with all ignored files, without shares: got %s", r)
	}
	// The parent is as before.
	w.sh(m.Dir, "echo more >>node_modules/pkg/hard && cat .env build/program >/dev/null")
	if err := os.Remove(shares); err != nil {
		t.Fatal(err)
	}
	want := m.everythingIn()
	again := m.fork("again")
	again.wantCarried("fork after the failure", want)
	w.ok("unmount", "--discard", "--yes", fork, again.Dir)
}
