package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// active returns, by redirect, whether it is active.
func (m mounted) active() map[string]bool {
	m.w.Helper()
	all := map[string]bool{}
	for _, r := range m.status().Redirects {
		all[r.Path] = r.Active
	}
	return all
}

func (m mounted) wantActive(want map[string]bool) {
	m.w.Helper()
	if got := m.active(); fmt.Sprint(got) != fmt.Sprint(want) {
		m.w.Errorf("redirects %v, want %v", got, want)
	}
}

// device returns the device number of the file system of a path.
func device(t testing.TB, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Error(err)
	}
	return st.Dev
}

// redirectedFiles lists the files of all redirects of a mount, in the directories outside of the mount that store them.
func (m mounted) redirectedFiles() []string {
	m.w.Helper()
	found, err := filepath.Glob(filepath.Join(m.w.state, "mounts", m.ID, "redirect", "*", "*"))
	m.w.check(err)
	return found
}

func TestRedirect(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("redirect"))
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	m := w.bare(url, "--redirect", "node_modules,d0/target,web/dist")
	m.wantActive(map[string]bool{"node_modules": false, "d0/target": false, "web/dist": false})
	if exists(m.path("node_modules")) {
		t.Error("the target of a redirect exists, although no process created it")
	}
	check(t, os.Mkdir(m.path("node_modules"), 0o750))
	check(t, os.WriteFile(m.path("node_modules/a"), []byte("a\n"), 0o644))
	check(t, os.MkdirAll(m.path("web/dist/js"), 0o755))
	check(t, os.Mkdir(m.path("d0/target"), 0o755))
	// the lookup waits until the directory is redirected
	for _, name := range []string{"node_modules", "web/dist", "d0/target"} {
		if device(t, m.path(name)) != device(t, w.state) {
			t.Errorf("%s is on the file system of the mount, want the redirect", name)
		}
	}
	m.wantActive(map[string]bool{"node_modules": true, "d0/target": true, "web/dist": true})
	if info, err := os.Stat(m.path("node_modules")); err != nil || info.Mode() != os.ModeDir|0o750 {
		t.Errorf("stat of the redirected directory: got mode %v, %v", info.Mode(), err)
	}
	if files := m.redirectedFiles(); len(files) != 2 {
		t.Errorf("redirected files: got %q", files)
	}
	if st := m.status(); st.Overlay.Changed != 1 { // web
		t.Errorf("changed paths in the status: got %d", st.Overlay.Changed)
	}
	// While a process uses a redirect, unmount fails and all redirects stay.
	f := must[*os.File](t)(os.Open(m.path("web/dist/js")))
	w.refusal(w.afs("unmount", m.Dir), control.ExitFailed, "in use by", "holds web/dist/js")
	w.wantFile(m.path("node_modules/a"), "a\n")
	m.wantActive(map[string]bool{"node_modules": true, "d0/target": true, "web/dist": true})
	f.Close()
	// While a process uses another directory of the mount, unmount fails and mounts the redirects again.
	f = must[*os.File](t)(os.Open(m.path("known/a")))
	w.refusal(w.afs("unmount", m.Dir), control.ExitFailed, "in use by", "holds known/a")
	w.wantFile(m.path("node_modules/a"), "a\n")
	m.wantActive(map[string]bool{"node_modules": true, "d0/target": true, "web/dist": true})
	f.Close()
	// A redirect is moved with its parent directory.
	check(t, os.Rename(m.path("web"), m.path("site")))
	check(t, os.RemoveAll(m.path("node_modules/a")))
	if err := os.Remove(m.path("node_modules")); err == nil {
		t.Error("the directory below the bind mount was removed")
	}
	r := w.afs("unmount", m.Dir)
	// site, and dist in it, which is a plain directory now
	if r.code != 0 || !strings.Contains(r.stderr, "kept 2 changed paths") {
		t.Error(r)
	}
	again, _ := w.mountAt(url, m.Dir, "--redirect", "")
	if exists(again.path("node_modules")) || len(again.redirectedFiles()) > 0 {
		t.Errorf("files of redirects after the unmount: %q", again.redirectedFiles())
	}
	check(t, os.RemoveAll(again.path("site")))
	w.ok("unmount", "--discard", "--yes", m.Dir) // the checkpoint of the first unmount still has the changes
	w.nothingLeft(m.Dir)
}

// A process that creates the directory, and one that looks it up at the same time, see the redirect and not the
// directory below it.
func TestRedirectIsThereAtOnce(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("redirect at once"))
	var names, paths []string
	for i := range 20 {
		names = append(names, fmt.Sprintf("r%d", i))
	}
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("r.git"), "--redirect", strings.Join(names, ","))
	var all sync.WaitGroup
	for i, name := range names {
		paths = append(paths, m.path(name))
		for j := range 4 {
			all.Go(func() {
				err := os.Mkdir(paths[i], 0o755)
				if err != nil && !os.IsExist(err) {
					t.Error(err)
				}
				if err := os.WriteFile(filepath.Join(paths[i], fmt.Sprint(j)), nil, 0o644); err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	if files := m.redirectedFiles(); len(files) != 80 {
		t.Errorf("redirected files: got %d, want 80", len(files))
	}
	if st := m.status(); st.Overlay.Changed != 0 {
		t.Errorf("changed paths in the status: got %d", st.Overlay.Changed)
	}
	w.unmount(m)
	w.nothingLeft(m.Dir)
}

func TestRedirectThatCannotBe(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("no redirect"))
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	dir := w.place("m")
	for path, cause := range map[string]string{
		"known": "has files at this path", "known/a": "has files at this path", "known/a/below": "known/a is not a directory",
		"link/x": "link is not a directory",
		"../x":   "not inside the mount", "/etc": "is absolute", ".git/x": "reserved for git", "a,a/b": "inside the other",
	} {
		w.refused(control.ExitUsage, cause, "", url, dir, "--redirect", path)
		w.nothingLeft(dir)
	}
	w.refused(control.ExitUsage, "--read-only", "", url, dir, "--redirect", "x", "--read-only")
	// Changes at the path of a redirect stay where they are.
	m, _ := w.mountAt(url, dir)
	check(t, os.Mkdir(m.path("target"), 0o755))
	check(t, os.WriteFile(m.path("target/mine"), []byte("mine\n"), 0o644))
	w.unmount(m)
	m, said := w.mountAt(url, dir, "--redirect", "target")
	if !strings.Contains(said, "target is not redirected") || m.active()["target"] {
		t.Errorf("redirect of a path with changes: got %s with redirects %v, want \"target is not redirected\" and none",
			said, m.active())
	}
	w.wantFile(m.path("target/mine"), "mine\n")
	w.unmount(m)
	m, _ = w.mountAt(url, dir)
	w.wantFile(m.path("target/mine"), "mine\n")
	w.ok("unmount", dir, "--discard", "--yes")
	w.nothingLeft(dir)
}

// After a kill, the next mount has the files of the redirects.
func TestRedirectAfterAKill(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("redirect and kill"))
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	m := w.bare(url, "--redirect", "one,two")
	check(t, os.Mkdir(m.path("one"), 0o755))
	check(t, os.WriteFile(m.path("one/a"), []byte("a\n"), 0o644))
	check(t, os.Mkdir(m.path("two"), 0o755))
	check(t, os.WriteFile(m.path("two/b"), nil, 0o644))
	w.killed()
	again, _ := w.mountAt(url, m.Dir, "--redirect", "one,three")
	w.wantFile(again.path("one/a"), "a\n")
	again.wantActive(map[string]bool{"one": true, "three": false})
	if exists(again.path("two")) {
		t.Error("directory two exists, although the next mount does not redirect it")
	}
	if at := mountsBelow(w.root); len(at) != 2 {
		t.Errorf("mounts after the kill: got %q, want 2", at)
	}
	syscall.Kill(w.daemon(), syscall.SIGTERM)
	w.until("the daemon has ended", func() bool { return len(daemonsBelow(w.root)) == 0 })
	if at := mountsBelow(w.root); len(at) != 0 {
		t.Errorf("still mounted: %q", at)
	}
	if homes := w.homes(); len(homes) != 0 {
		t.Errorf("directories below mounts/: %q", homes)
	}
	os.Remove(m.Dir) // the new daemon does not know whether the killed one created the directory
}

// The redirects of the repository's file and of the user's file are combined, unless the flag is given. An invalid
// redirect in the repository's file causes a note, and the mount succeeds.
func TestRedirectByConfiguration(t *testing.T) {
	w := newWorld(t)
	files := sample("redirect configuration")
	files[".artifactfs.toml"] = gittest.File{Data: []byte("redirect = ['node_modules', 'known']\n")}
	repo := w.repo("r.git", object.SHA1)
	w.commit(repo, files)
	s := w.serve(gittest.ServerOptions{})
	home := w.place("config")
	check(t, os.MkdirAll(filepath.Join(home, "artifactfs"), 0o755))
	check(t, os.WriteFile(filepath.Join(home, "artifactfs", "config.toml"), []byte("redirect = ['target']"), 0o644))
	w.env = []string{"XDG_CONFIG_HOME=" + home}
	m, said := w.mountAt(s.URL("r.git"), w.place("m"))
	m.wantActive(map[string]bool{"target": false, "node_modules": false})
	if !strings.Contains(said, "known is not redirected: repository has files at this path") ||
		!strings.Contains(strings.Join(m.status().Notes, "\n"), "known is not redirected") {
		t.Errorf("mount printed %s, status has the notes %q", said, m.status().Notes)
	}
	check(t, os.WriteFile(m.path("new"), nil, 0o644))
	w.unmount(m)
	s.Down() // the configuration file of the base tree has been fetched
	m, _ = w.mountAt(m.Remote, m.Dir)
	m.wantActive(map[string]bool{"target": false, "node_modules": false})
	w.unmount(m)
	m, _ = w.mountAt(m.Remote, m.Dir, "--redirect", "other")
	m.wantActive(map[string]bool{"other": false})
	w.unmount(m)
	m, _ = w.mountAt(m.Remote, m.Dir, "--redirect", "")
	m.wantActive(map[string]bool{})
	w.ok("unmount", m.Dir, "--discard", "--yes")
	s.up()
	bad := w.repo("bad.git", object.SHA1)
	w.commit(bad, map[string]gittest.File{".artifactfs.toml": {Data: []byte("redirect = ['../x']\n")}})
	m, said = w.mountAt(s.URL("bad.git"), w.place("m"))
	m.wantActive(map[string]bool{"target": false})
	if !strings.Contains(said, ".artifactfs.toml is ignored") {
		t.Errorf("mount printed %s", said)
	}
	w.unmount(m)
	w.nothingLeft(m.Dir)
}

// For a user who may not bind mount, a redirect is a symbolic link, which does not count as a change.
func TestRedirectOfAUser(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("redirect of a user"))
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	u := w.user()
	dir := filepath.Join(u.home, "m")
	if r := u.afs("mount", url, dir, "--redirect", "target,d0/out,none/out"); r.code != 0 ||
		!strings.Contains(r.stderr, "none/out is not redirected") {
		t.Error(r)
	}
	u.sh("cd " + dir + " && mkdir -p target/a && echo x > target/a/b && echo y > d0/out/c && test -L target && ls " +
		u.state + "/mounts/*/redirect/*/a/b")
	if r := u.afs("status", dir, "--json"); !strings.Contains(r.stdout, `"changed":0`) ||
		strings.Count(r.stdout, `"active":true`) != 2 {
		t.Error(r)
	}
	if r := u.afs("unmount", dir); r.code != 0 || r.stderr != "" {
		t.Error(r)
	}
	if left, _ := os.ReadDir(filepath.Join(u.state, "mounts")); len(left) > 0 || exists(dir) {
		t.Errorf("after the unmount %v still exists", left)
	}
	u.end()
}
