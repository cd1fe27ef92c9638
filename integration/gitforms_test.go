package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// overlayOver mounts an overlay over the directory lower, and returns its root and its upper layer.
func (w *world) overlayOver(lower string) (merged, upper string) {
	w.Helper()
	dir := must[string](w)(os.MkdirTemp("/dev/shm", "overlay"))
	merged, upper = filepath.Join(dir, "merged"), filepath.Join(dir, "upper")
	for _, d := range []string{merged, upper, filepath.Join(dir, "work")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			w.Fatal(err)
		}
	}
	options := "lowerdir=" + lower + ",upperdir=" + upper + ",workdir=" + filepath.Join(dir, "work")
	if err := syscall.Mount("overlay", merged, "overlay", 0, options); err != nil {
		os.RemoveAll(dir)
		w.Skipf("mount overlay: %v", err)
	}
	w.Cleanup(func() {
		if err := syscall.Unmount(merged, syscall.MNT_DETACH); err != nil {
			w.Error(err)
		}
		os.RemoveAll(dir)
	})
	return merged, upper
}

// sandboxed changes and discards files in a directory with git. Its output is that of git.
const sandboxed = `exec 2>&1; git status --short; git reset -q --hard; echo "reset $?"; git clean -qfd; cat a/f1; echo two >>a/f2
git -c user.name=s -c user.email=s@x commit -qam sandbox; git log --format=%s; git status --short; git stash list; git branch`

// git in an overlay over a mount works on the overlay, as in an overlay over a clone, and changes neither files nor
// refs nor the index of the mount.
func TestGitInOverlay(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, which mounts overlays")
	}
	w := newWorld(t)
	files := map[string]gittest.File{}
	for _, name := range []string{"a/f1", "a/f2", "a/f3", "b/f4"} {
		files[name] = gittest.File{Data: []byte(name + "\n")}
	}
	w.commit(w.repo("r.git", object.SHA1), files)
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	m := w.mount(url, "--wait", "git")
	const edit = `echo keep >>a/f3; echo staged >b/new; git add b/new; git rev-parse HEAD; git status --short`
	var first string
	for _, lower := range []string{w.clone(url), m.Dir} {
		before := w.shell(lower, "sh", "-ec", edit)
		merged, upper := w.overlayOver(lower)
		w.shell(merged, "sh", "-ec", `echo changed >>a/f1; rm a/f2; echo n >new; mv b c`)
		out := w.shell(merged, "sh", "-c", sandboxed)
		if first == "" {
			first = out
		} else if out != first {
			t.Errorf("git in the overlay: over the mount\n%s\nover a clone\n%s", out, first)
		}
		if after := w.shell(lower, "sh", "-ec", "git rev-parse HEAD; git status --short"); after != before {
			t.Errorf("git in %s, after git in the overlay: got\n%s\nwant\n%s", lower, after, before)
		}
		if lower != m.Dir {
			continue
		}
		if _, err := os.Lstat(filepath.Join(upper, ".git", "index")); err != nil {
			t.Errorf("index of the overlay: %v", err)
		}
		// A successor of the daemon answers for files that the overlay has found before, and git in the mount replaces some
		// of them.
		syscall.Kill(w.serving(), syscall.SIGKILL)
		w.shell(lower, "sh", "-ec", "git add -A; git -c user.name=s -c user.email=s@x commit -qm below; git pack-refs --all")
		if out := w.shell(merged, "sh", "-ec",
			"git log --format=%s -1; git fsck 2>&1 | grep -v dangling || true; git status --short"); out != "sandbox\n" {
			t.Errorf("git in the overlay after a commit below it: %q", out)
		}
	}
}

// Programs that look for a directory .git find one, and git itself finds the git directory without it.
func TestDotGitIsADirectoryForPrograms(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("forms"))
	m := w.mount(w.serve(gittest.ServerOptions{}).URL("r.git"), "--wait", "git")
	if info, err := os.Stat(m.path(".git")); err != nil || !info.IsDir() {
		t.Errorf(".git: %v, %v, want a directory", info, err)
	}
	if text, err := os.ReadFile(m.path(".git/HEAD")); err != nil || !strings.HasPrefix(string(text), "ref: ") {
		t.Errorf(".git/HEAD: %q, %v", text, err)
	}
	w.shell(m.Dir, "sh", "-ec",
		`test -L .git; find . -maxdepth 1 -name .git -type l | grep -q .; grep -r nowhere . && exit 1; rm -rf *; git checkout -q .
chown -h "$(id -u)" .git; git status --porcelain | grep . && exit 1; cp -al .git hard; test -L hard; rm hard; cd $(mktemp -d); tar cf - -C "$OLDPWD" .git | tar xf -; test -L .git`)
	if top := w.shell(m.Dir, "git", "rev-parse", "--show-toplevel", "--git-dir"); top != m.Dir+"\n"+m.gitDir()+"\n" {
		t.Errorf("git rev-parse: got %q", top)
	}
}

// git in a copy of a mount changes nothing in the mount.
func TestGitInCopy(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("copies"))
	m := w.mount(w.serve(gittest.ServerOptions{}).URL("r.git"), "--wait", "git")
	w.shell(m.Dir, "sh", "-ec", "echo edit >edited; git add edited")
	// The monitor knows nothing of the copy.
	w.shell(m.Dir, "sh", "-ec",
		`git status >/dev/null; cp -a . ../watched; cd ../watched; name=$(git --git-dir "$1" ls-files | head -1); echo more >>"$name"
git --git-dir "$1" --work-tree . status --short | grep -F "$name"`, "sh", m.gitDir())
	for name, script := range map[string]string{
		"copy": "cp -a . ../copied", "tar": "mkdir ../copied; tar cf - . | tar xf - -C ../copied",
	} {
		w.shell(m.Dir, "sh", "-ec", "rm -rf ../copied; "+script)
		cmd := exec.Command("sh", "-ec",
			"echo x >>edited; git add -A; git reset --hard; git -c user.name=s -c user.email=s@x commit --allow-empty -m copied")
		cmd.Dir = filepath.Join(filepath.Dir(m.Dir), "copied")
		out, err := cmd.CombinedOutput()
		if after := w.shell(m.Dir, "sh", "-ec",
			"git log --format=%s -1; git status --short; cat edited"); !strings.HasSuffix(after, "A  edited\nedit\n") {
			t.Errorf("%s: git in the copy: %v: %s\nthen in the mount: %s", name, err, out, after)
		}
	}
}
