package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// box runs a script in a container that has nothing but the system's programs and one directory, at /work: no network,
// no other process, nothing else of the file system.
const box = `
exec unshare --mount --pid --ipc --uts --net --fork --kill-child --propagation private sh -euc '
dir=$1 script=$2
root=$(mktemp -d)
mount -t tmpfs tmpfs $root
cp "$script" $root/script
cd $root
for d in usr bin sbin lib lib64; do
	if [ -L /$d ]; then cp -a /$d .; elif [ -d /$d ]; then mkdir $d; mount --rbind -o ro /$d $d; fi
done
mkdir -p proc dev tmp etc work old
mount -t proc proc proc
for n in null urandom zero; do touch dev/$n; mount --bind /dev/$n dev/$n; done
echo "root:x:0:0::/:/bin/sh" >etc/passwd
mount --rbind "$dir" work
pivot_root . old; umount -l /old; rmdir /old
cd /work
exec env -i PATH=/usr/bin:/bin:/usr/sbin:/sbin HOME=/tmp LC_ALL=C GIT_CONFIG_NOSYSTEM=1 \
	GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b GIT_AUTHOR_DATE="1700000000 +0000" GIT_COMMITTER_DATE="1700000000 +0000" \
	sh -c "exec 2>&1; . /script"
' sh "$@"`

func (w *world) inBox(dir, script string) result {
	w.Helper()
	file := filepath.Join(w.root, "boxed")
	w.check(os.WriteFile(file, []byte(script), 0o644))
	return w.script(box, dir, file)
}

// history makes a repository with commits to show and branches to merge.
func (w *world) history(name string) *gittest.Repo {
	w.Helper()
	r := w.repo(name, object.SHA1)
	files := sample(name)
	w.commit(r, files)
	for i := range 4 {
		files[fmt.Sprintf("d%d/sub/f1", i)] = gittest.File{Data: fmt.Appendf(nil, "one\ntwo %d\nthree\n", i)}
		w.commit(r, files)
	}
	return r
}

// Stock git has the same effects and the same output in a container that sees nothing but the mount as in one that sees
// a clone.
func TestGitInsideAContainer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.history("app.git")
	url := w.serve(gittest.ServerOptions{}).URL("app.git")
	m := w.mount(url, "--git-dir", "inside", "--prefetch", "none")
	clone := w.clone(url)
	for _, script := range []string{
		`git status; git log --oneline --stat; git branch -a`,
		`git log -p -2; git blame d2/sub/f1; git show HEAD~3:d0/sub/f0 | cksum; git diff HEAD~2`,
		`echo changed >>known/a; echo new >new; rm big/0; git status --short; git diff --stat`,
		`git add -A; git commit -m one; git status`,
		`cd d1/sub; echo more >>f1; git status -s; git commit -qam two; git log --oneline -3`,
		`git checkout -q -b side HEAD~3; echo side >d3/sub/f0; git commit -qam side; git merge -q -m merged main; git log --graph --oneline | head -5; git status -s`,
		`git stash list; echo x >>known/b; git stash -q; git status -s; git stash pop -q; git status -s; git checkout known/b`,
		`git gc -q; git status; git log --oneline | wc -l; git fsck --connectivity-only 2>&1 | grep -v dangling`,
		`git worktree add -q /tmp/other HEAD~2; git -C /tmp/other status -s; git -C /tmp/other log -1 -p --oneline; git worktree remove /tmp/other`,
		`cd /tmp; git --git-dir=/work/.git log -p -1 HEAD~4 | cksum; git --git-dir=/work/.git --work-tree=/work status -s`,
		`git rev-parse HEAD HEAD^{tree}; git ls-files -s; git config core.bare; git rev-parse --git-dir --show-toplevel`,
	} {
		got, want := w.inBox(m.Dir, script), w.inBox(clone, script)
		// A clone has all branches of its remote from the start, a mount after a moment.
		if got.code != want.code || got.stdout != want.stdout {
			t.Errorf("%s\n got (%d):\n%s\nwant (%d):\n%s\n%s", script, got.code, got.stdout, want.code, want.stdout, got.stderr)
		}
	}
	r := w.inBox(m.Dir, `touch .git/artifactfs/objects/x`)
	if r.code == 0 || !strings.Contains(r.stdout, "Read-only file system") {
		t.Errorf("a container could change the store that mounts share: %s", r)
	}
	out := w.git(m.Dir, "log", "--oneline")
	if want := w.git(clone, "log", "--oneline"); out != want {
		t.Errorf("git outside of the container printed\n%s\nwant\n%s", out, want)
	}
}

// The directory .git inside of the mount exists only while a mount has --git-dir inside; changes and inodes stay.
func TestGitInsideComesAndGoes(t *testing.T) {
	w := newWorld(t)
	w.history("app.git")
	url := w.serve(gittest.ServerOptions{}).URL("app.git")
	dir := w.place("m")
	mount := func(args ...string) mounted {
		m, _ := w.mountAt(url, dir, args...)
		return m
	}
	w.check(os.Chmod(base, 0o755))
	m := mount("--git-dir", "inside")
	w.git(dir, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "mine")
	head := w.git(dir, "rev-parse", "HEAD")
	check := func(what string, inside bool) {
		t.Helper()
		info := must[os.FileInfo](w)(os.Lstat(filepath.Join(dir, ".git")))
		if info.IsDir() != inside {
			t.Errorf("%s: .git has the mode %v", what, info.Mode())
		}
		if got := w.git(dir, "rev-parse", "HEAD"); got != head {
			t.Errorf("%s: HEAD is %s", what, got)
		}
		if got := w.git(dir, "status", "--porcelain"); got != "" {
			t.Errorf("%s: git status prints %q", what, got)
		}
	}
	check("new", true)
	for i := range 6 { // each successor finds the directory bound, and at last without the place of the monitor
		if i >= 3 {
			w.check(syscall.Unmount(filepath.Join(dir, ".git", "artifactfs", "artifactfs-fsmonitor-careful"), syscall.MNT_DETACH))
		}
		syscall.Kill(w.serving(), syscall.SIGKILL)
		check(fmt.Sprintf("killed %d", i), true)
		for end := time.Now().Add(patience); len(mountsBelow(dir)) < 4 && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(50 * time.Millisecond) // in which another thread could mount the place once more
		if mounts := mountsBelow(dir); len(mounts) != 4 {
			t.Errorf("mounts inside of the mount of successor %d: %q", i, mounts)
		}
	}
	// While a process uses the directory, unmount fails and the directory stays.
	in := must[*os.File](w)(os.Open(filepath.Join(dir, ".git", "artifactfs", "objects")))
	r := w.afs("unmount", dir)
	w.refusal(r, 1, "in use", "")
	in.Close()
	check("after an unmount that failed", true)
	w.unmount(m)
	m = mount()
	check("outside", false)
	w.unmount(m)
	m = mount("--git-dir=inside")
	check("inside again", true)
	if mounts := mountsBelow(dir); len(mounts) != 4 {
		t.Errorf("mounts inside of the mount: %q", mounts)
	}
	w.unmount(m)
	if mounts := mountsBelow(w.root); len(mounts) > 0 {
		t.Errorf("still mounted: %q", mounts)
	}
	home := w.place("nobody")
	w.check(os.Mkdir(home, 0o755))
	w.check(os.Chown(home, 65534, 65534))
	w.check(os.Chmod(w.root, 0o755))
	r =
		w.script(`export HOME=$1 ARTIFACTFS_STATE=$1/state; nobody="setpriv --reuid=65534 --regid=65534 --clear-groups artifactfs"
		code=0; $nobody mount "$2" "$1/m" --git-dir inside || code=$?; $nobody unmount --all; exit $code`, home, url)
	w.refusal(r, 1, "only root may create", "unshare --user --map-root-user --mount")
	// The user namespace has a daemon of its own, because the mounts of the host's daemon are not visible in it.
	r = w.script(`export ARTIFACTFS_STATE=$2.state; exec unshare --user --map-root-user --mount sh -euc '
		artifactfs mount "$1" "$2" --git-dir inside >&2; git -C "$2" log --oneline | wc -l; git -C "$2" status -s; artifactfs unmount --all >&2' sh "$@"`, url, w.place("m"))
	if r.code != 0 || strings.TrimSpace(r.stdout) != "5" {
		t.Errorf("run as root of a user namespace: %s", r)
	}
}

// The start-up hook, with each of the rights that contrib/container/README.md names.
func TestContainerHook(t *testing.T) {
	if _, err := exec.LookPath("setpriv"); err != nil && os.Getenv("CI") == "" {
		t.Skip("there is no setpriv")
	}
	w := newWorld(t)
	w.history("app.git")
	url := w.serve(gittest.ServerOptions{}).URL("app.git")
	w.check(os.Chmod(w.root, 0o755))
	w.check(os.Chmod(base, 0o755))
	const drop = `setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all --no-new-privs`
	// own makes the user the owner of a directory.
	const own = `mkdir -p $ARTIFACTFS_STATE $ARTIFACTFS_DIR; chown 65534:65534 $ARTIFACTFS_STATE $ARTIFACTFS_DIR; export HOME=$ARTIFACTFS_STATE TMPDIR=$ARTIFACTFS_STATE; `
	for name, c := range map[string]struct{ run, redirected string }{
		"root":                     {`exec artifactfs-hook "$@"`, "directory"},
		"root of a user namespace": {`exec unshare --user --map-root-user --mount --pid --fork --mount-proc artifactfs-hook "$@"`, "directory"},
		"user with fusermount3": {own + `exec unshare --mount --propagation private sh -c '
			mknod -m 666 $TMPDIR/fuse c 10 229; mount --bind $TMPDIR/fuse /dev/fuse # as udev makes it
			exec setpriv --reuid=65534 --regid=65534 --clear-groups artifactfs-hook "$@"' sh "$@"`, "symbolic link"},
		"descriptor handed in": {own + `code=0; with-fuse $ARTIFACTFS_DIR ` + drop +
			` artifactfs-hook "$@" || code=$?; umount $ARTIFACTFS_DIR; exit $code`,
			"symbolic link"},
		"descriptor handed in, below a volume": {own + `exec unshare --mount --propagation private sh -c '
			mkdir -p $TMPDIR/v; code=0
			with-fuse $ARTIFACTFS_DIR sh -c "mount --rbind ${ARTIFACTFS_DIR%/*} $TMPDIR/v && ARTIFACTFS_DIR=$TMPDIR/v/${ARTIFACTFS_DIR##*/} exec ` + drop + ` artifactfs-hook \"\$@\"" sh "$@" || code=$?
			exit $code' sh "$@"`, "symbolic link"},
	} {
		dir, state := w.place("work"), w.place("state")
		t.Run(name, func(t *testing.T) {
			w := w.in(t)
			defer func() { // the world's end does not stop a user's daemon
				w.script(`exec artifactfs --state "$1" unmount --all`, state)
				exec.Command("umount", "-l", dir).Run()
			}()
			w.env = append(w.env, "ARTIFACTFS_REMOTE="+url, "ARTIFACTFS_DIR="+dir, "ARTIFACTFS_STATE="+state,
				"ARTIFACTFS_TOKEN=hunter2", "ARTIFACTFS_DISCARD=1",
				"ARTIFACTFS_REDIRECT=out", "ARTIFACTFS_PREFETCH=none")
			r := w.script(c.run, "sh", "-c",
				`set -e; pwd; git log --oneline | wc -l; cat d0/sub/f1; echo x >new; [ -e out ] || mkdir out; stat -c %F out
				git status --porcelain new; env | grep ^ARTIFACTFS_ | sed s/=.*//; ls -l /proc/self/fd | grep -c /dev/fuse || :; read line; echo "$line"; exit 7`)
			want := "5\none\ntwo 0\nthree\n" + c.redirected + "\n?? new\nARTIFACTFS_STATE\n0\n"
			_, got, _ := strings.Cut(r.stdout, "\n")
			if r.code != 1 || got != want { // read fails at the end of the input, which ends the script
				t.Errorf("%s\nwant %q", r, want)
			}
			if strings.Contains(r.stdout+r.stderr, "hunter2") || strings.Contains(r.stderr, "kept") {
				t.Errorf("output of the hook: got %s, want neither the password nor a report of kept changes", r)
			}
		})
	}
}

func TestHookPassesSignalsAndStatus(t *testing.T) {
	w := newWorld(t)
	w.history("app.git")
	w.check(os.Chmod(w.root, 0o755))
	w.check(os.Chmod(base, 0o755))
	url, dir := w.serve(gittest.ServerOptions{}).URL("app.git"), w.place("work")
	w.check(os.Mkdir(dir, 0o755))
	w.env = append(w.env, "ARTIFACTFS_REMOTE="+url, "ARTIFACTFS_DIR="+dir)
	for name, how := range map[string]string{"run": `exec artifactfs-hook "$@"`,
		"descriptor": `exec with-fuse $ARTIFACTFS_DIR artifactfs-hook "$@"`} {
		for _, signal := range []string{"TERM", "INT"} {
			r := w.script(`(exec env --default-signal=INT sh -c '`+how+`' sh "$@") & hook=$!
				until [ -e $TMPDIR/up ]; do kill -0 $hook || exit 1; sleep 0.05; done
				rm $TMPDIR/up; kill -`+signal+` $hook; wait $hook`, "sh", "-c", `trap "echo got; exit 9" `+signal+`; touch $TMPDIR/up; while :; do sleep 0.05; done`)
			if r.code != 9 || r.stdout != "got\n" {
				t.Errorf("%s, after signal %s: got %s, want exit code 9 and the output \"got\"", name, signal, r)
			}
			exec.Command("umount", dir).Run()
		}
	}
	r := w.script(`exec artifactfs-hook true`)
	if r.code != 0 {
		t.Error(r)
	}
	w.env = append(w.env, "ARTIFACTFS_REMOTE=")
	if r := w.script(`exec artifactfs-hook true`); r.code == 0 || !strings.Contains(r.stderr, "ARTIFACTFS_REMOTE") {
		t.Error(r)
	}
}
