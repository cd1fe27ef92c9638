package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// nested creates and serves outer.git, which has lib.git as a submodule at vendor/lib by a relative URL, and lib.git
// has inner.git at in/inner by an absolute one. outer.git also has one at gone, whose repository does not exist.
func nested(t *testing.T) (w *world, server served) {
	w = newWorld(t)
	inner, lib, outer := w.repo("inner.git", object.SHA1), w.repo("lib.git", object.SHA1), w.repo("outer.git", object.SHA1)
	server = w.serve(gittest.ServerOptions{})
	innerTip := w.commit(inner, map[string]gittest.File{"inner.txt": {Data: []byte("inner\n")}})
	libTip := w.commit(lib, map[string]gittest.File{
		"lib.txt":     {Data: []byte("lib\n")},
		"in/inner":    {Data: []byte(innerTip.String()), Mode: "160000"},
		".gitmodules": {Data: []byte("[submodule \"inner\"]\n\tpath = in/inner\n\turl = " + server.URL("inner.git") + "\n")},
	})
	// a later commit than the one that outer.git refers to
	w.commit(lib, map[string]gittest.File{"lib.txt": {Data: []byte("later\n")}})
	w.commit(outer, map[string]gittest.File{
		"outer.txt":  {Data: []byte("outer\n")},
		"vendor/lib": {Data: []byte(libTip.String()), Mode: "160000"},
		"gone":       {Data: []byte(libTip.String()), Mode: "160000"},
		".gitmodules": {Data: []byte("[submodule \"the lib\"]\n\tpath = vendor/lib\n\turl = ../lib.git\n" +
			"[submodule \"gone\"]\n\tpath = gone\n\turl = ../gone.git\n")},
	})
	return w, server
}

func (w *world) allStatus() []control.MountStatus {
	w.Helper()
	var s control.Status
	if err := json.Unmarshal([]byte(w.ok("status", "--json")), &s); err != nil {
		w.Fatal(err)
	}
	return s.Mounts
}

func TestSubmodulesAreMounted(t *testing.T) {
	w, server := nested(t)
	m := w.bare(server.URL("outer.git"), "--recurse-submodules")
	lib, inner := m.path("vendor/lib"), m.path("vendor/lib/in/inner")
	w.wantFile(filepath.Join(lib, "lib.txt"), "lib\n")
	w.wantFile(filepath.Join(inner, "inner.txt"), "inner\n")
	var around []string
	for _, s := range w.allStatus() {
		around = append(around, s.Dir+" in "+s.SubmoduleOf)
	}
	slices.Sort(around)
	if want := []string{m.Dir + " in ", lib + " in " + m.Dir, inner + " in " + lib}; !slices.Equal(around, want) {
		t.Errorf("mounts and submodules in the status: got %q", around)
	}
	if notes := m.status().Notes; !slices.ContainsFunc(notes,
		func(n string) bool { return strings.HasPrefix(n, "submodule gone is not mounted: ") }) {
		t.Errorf("notes in the status: got %q", notes)
	}

	// A process in the innermost submodule prevents the unmount of all mounts.
	hold, err := os.Open(filepath.Join(inner, "inner.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if r := w.afs("unmount", m.Dir); r.code != 1 {
		t.Errorf("unmount of a busy submodule: %s", r)
	}
	w.wantFile(filepath.Join(lib, "lib.txt"), "lib\n")
	hold.Close()

	// So does a process in the outer mount only; the submodules are mounted again.
	if hold, err = os.Open(m.path("outer.txt")); err != nil {
		t.Fatal(err)
	}
	w.check(os.WriteFile(filepath.Join(inner, "inner.txt"), []byte("changed\n"), 0o644))
	if r := w.afs("unmount", m.Dir, "--discard", "--yes"); r.code != 1 {
		t.Errorf("unmount of a busy mount: %s", r)
	}
	w.wantFile(filepath.Join(inner, "inner.txt"), "changed\n")
	hold.Close()

	// Changes inside of submodules are kept, and unmount reports them.
	r := w.afs("unmount", m.Dir)
	if r.code != 0 || !strings.Contains(r.stderr, "kept 1 changed path of submodule "+inner) {
		t.Errorf("unmount with changes in submodules: %s", r)
	}
	w.ok("mount", server.URL("outer.git"), m.Dir, "--recurse-submodules", "--history", "none", "--prefetch", "none")
	w.wantFile(filepath.Join(inner, "inner.txt"), "changed\n")
	r = w.afs("unmount", m.Dir, "--discard", "--yes")
	if left := w.allStatus(); r.code != 0 || len(left) != 0 {
		t.Errorf("sessions after unmount --discard: %+v, after %s", left, r)
	}
	if r := w.paste(restoring(r.stderr)); r.code != 0 {
		t.Errorf("command that unmount --discard prints: got %s", r)
	}
	w.wantFile(filepath.Join(inner, "inner.txt"), "changed\n")
	w.ok("unmount", m.Dir, "--discard", "--yes")
}

func TestSubmodulesOutliveAKill(t *testing.T) {
	w, server := nested(t)
	m := w.bare(server.URL("outer.git"), "--recurse-submodules")
	inner := m.path("vendor/lib/in/inner/inner.txt")
	w.check(os.WriteFile(inner, []byte("changed\n"), 0o644))
	w.killDaemon()
	w.ok("mount", server.URL("outer.git"), m.Dir, "--recurse-submodules", "--history", "none", "--prefetch", "none")
	w.wantFile(inner, "changed\n")
}

// TestSubmodulesLeadNowhere: the .gitmodules of a repository must not cause access to repositories of the host, or
// mounts elsewhere.
func TestSubmodulesLeadNowhere(t *testing.T) {
	w := newWorld(t)
	secret, outer := w.repo("secret.git", object.SHA1), w.repo("outer.git", object.SHA1)
	tip := w.commit(secret, map[string]gittest.File{"secret": {Data: []byte("secret\n")}})
	link := []byte(tip.String())
	w.commit(outer, map[string]gittest.File{
		"local": {Data: link, Mode: "160000"},
		"file":  {Data: link, Mode: "160000"},
		"text":  {Data: []byte("a file\n")},
		".gitmodules": {Data: []byte(fmt.Sprintf("[submodule \"local\"]\n\tpath = local\n\turl = %s\n[submodule \"file\"]\n\tpath = file\n\turl = file://%s\n"+
			"[submodule \"up\"]\n\tpath = ../up\n\turl = ../secret.git\n[submodule \"text\"]\n\tpath = text\n\turl = ../secret.git\n", secret.Path, secret.Path))},
	})
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("outer.git"), "--recurse-submodules")
	if all := w.allStatus(); len(all) != 1 {
		t.Errorf("mounts: got %+v, want one", all)
	}
	if notes := m.status().Notes; len(notes) != 3 {
		t.Errorf("notes in the status: got %q", notes)
	}
}

// submoduleWork is a script of usual submodule commands, whose output is the same in a mount and in a clone.
const submoduleWork = `
export GIT_AUTHOR_DATE="1710000000 +0000" GIT_COMMITTER_DATE="1710000000 +0000" GIT_CONFIG_COUNT=2 GIT_CONFIG_KEY_1=protocol.file.allow GIT_CONFIG_VALUE_1=always
git submodule --quiet update --init --recursive vendor/lib
git submodule status --recursive | cut -d' ' -f1-3
git status --porcelain=v2
cat vendor/lib/in/inner/inner.txt
echo more >>vendor/lib/in/inner/inner.txt
git status --porcelain=v2
git diff --submodule=diff
git -C vendor/lib/in/inner commit -qam 'Inner work'
git -C vendor/lib commit -qam 'Pin inner'
git status --porcelain=v2
git diff --submodule=log
git add vendor/lib && git commit -qm 'Pin lib'
git rev-parse HEAD HEAD:vendor/lib
git submodule foreach --quiet --recursive 'git status --porcelain; git rev-parse HEAD'
git reset -q --hard HEAD~1
git submodule status --recursive | cut -d' ' -f1-3
git submodule --quiet update --recursive vendor/lib
git submodule status --recursive | cut -d' ' -f1-3
git status --porcelain=v2
`

// does runs a script in a directory and returns its output.
func (w *world) does(dir, script string) string {
	w.Helper()
	cmd := exec.Command("sh", "-e", "-c", script)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), w.env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.Errorf("run %s in %s: %v: %s", script, dir, err, out)
	}
	return string(out)
}

func TestSubmodulesAreUsedAsInAClone(t *testing.T) {
	t.Parallel()
	w, server := nested(t)
	for name, remote := range map[string]string{"http": server.URL("outer.git"),
		"file": "file://" + filepath.Join(w.repos, "outer.git")} {
		t.Run(name, func(t *testing.T) {
			want := w.does(w.clone(remote), submoduleWork)
			if !strings.Contains(want, "Inner work") && !strings.Contains(want, "inner") {
				t.Fatalf("submodule script in a clone: %s", want)
			}
			m := w.mount(remote, "--wait", "git")
			if got := w.does(m.Dir, submoduleWork); got != want {
				t.Errorf("updated in the mount:\n%s\nin a clone:\n%s", got, want)
			}
			w.ok("unmount", "--discard", "--yes", m.Dir)
			lazy := w.mount(remote, "--recurse-submodules", "--wait", "git")
			if got := w.does(lazy.Dir, submoduleWork); got != want {
				t.Errorf("mounted submodules:\n%s\nin a clone:\n%s", got, want)
			}
			w.ok("unmount", "--discard", "--yes", lazy.Dir)
		})
	}
}
