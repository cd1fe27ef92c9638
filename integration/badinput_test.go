package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

const nobody = 65534

// refused runs a mount that must fail with one line of error and leave nothing behind. The error must contain cause,
// and a hint if hint is not empty.
func (w *world) refused(code int, cause, hint string, args ...string) {
	w.Helper()
	w.refusal(w.afs(append([]string{"mount"}, args...)...), code, cause, hint)
}

func (w *world) refusal(r result, code int, cause, hint string) {
	w.Helper()
	if r.code != code || !strings.Contains(r.stderr, cause) || !strings.Contains(r.stderr, hint) ||
		hint != "" && !strings.Contains(r.stderr, "\nhint: ") {
		w.Errorf("%s\nwant code %d, %q, hint %q", r, code, cause, hint)
	}
	if strings.Contains(r.stdout+r.stderr, password) {
		w.Errorf("the password is shown: %s", r)
	}
	w.oneLineAndHint(r)
}

func TestBadRemote(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("bad remote"))
	s := w.serve(gittest.ServerOptions{})
	l := must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	closed := l.Addr().String()
	l.Close()
	good := s.URL("r.git")
	dir := w.place("m")
	for _, c := range []struct{ name, remote, cause, hint string }{
		{"unknown host", withSecret("http://host.invalid/r.git"), "host.invalid", ""},
		{"refused connection", withSecret("http://" + closed + "/r.git"), "connection refused", ""},
		{"no such repository", withSecret(s.URL("other.git")), "no such repository", "check the spelling"},
		{"no such path", filepath.Join(w.repos, "other.git"), "no such repository", "check the spelling"},
		{"a path that is no repository", w.repos, "", ""},
		{"unknown host of ssh", "user@host.invalid:r.git", "host.invalid", ""},
		{"refused git://", "git://" + closed + "/r.git", "connection refused", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &world{TB: t, root: w.root, state: w.state, repos: w.repos}
			w.refused(control.ExitRemote, c.cause, c.hint, c.remote, dir)
			w.nothingLeft(dir)
		})
	}
	t.Run("no such ref", func(t *testing.T) {
		w := &world{TB: t, root: w.root, state: w.state}
		w.refused(control.ExitRemote, "mian", "hint", withSecret(good), dir, "--ref", "mian")
		w.refused(control.ExitRemote, strings.Repeat("1", 40), "", withSecret(good), dir, "--ref", strings.Repeat("1", 40))
		w.nothingLeft(dir)
	})
	t.Run("wrong token", func(t *testing.T) {
		w := &world{TB: t, root: w.root, state: w.state}
		defer s.Inject(gittest.Fault{Kind: gittest.RequireAuth, User: "user", Pass: "right"}).Remove()
		w.refused(control.ExitRemote, "authentication failed", "ARTIFACTFS_TOKEN", withSecret(good), dir)
		w.refused(control.ExitRemote, "authentication failed", "ARTIFACTFS_TOKEN", good, dir)
		file := w.place("token")
		if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		w.refused(control.ExitRemote, "authentication failed", "ARTIFACTFS_TOKEN", good, dir, "--token-file", file)
		w.env = []string{"ARTIFACTFS_TOKEN=" + password}
		w.refused(control.ExitRemote, "authentication failed", "ARTIFACTFS_TOKEN", good, dir)
		w.nothingLeft(dir)
		os.Remove(file)
	})
	t.Run("wrong arguments", func(t *testing.T) {
		w := &world{TB: t, root: w.root, state: w.state}
		w.refused(control.ExitUsage, "", "--help")
		w.refused(control.ExitUsage, "", "", "")
		w.refused(control.ExitUsage, "--wait", "--help", good, dir, "--wait", "never")
		w.refused(control.ExitUsage, "--timeout", "", good, dir, "--timeout", "-1s")
		w.refused(control.ExitUsage, "unknown scheme", "HOST:PATH", "ftp://user:"+password+"@host.invalid/r.git", dir)
		w.refused(control.ExitUsage, "needs a scheme", "HOST:PATH", "user:"+password+"@host.invalid:r.git", dir)
		w.refused(control.ExitUsage, "needs a scheme", "HOST:PATH", "user:"+password+"@host.invalid/team/r.git", dir)
		w.refused(control.ExitUsage, "unknown scheme", "HOST:PATH", good, dir, "--session-remote",
			"ftp://user:"+password+"@host.invalid/r.git")
		w.nothingLeft(dir)
	})
	w.noSecret()
}

func TestBadMountPoint(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), map[string]gittest.File{
		"file":   {Data: []byte("x\n")},
		"module": {Data: bytes.Repeat([]byte("1"), 40), Mode: "160000"},
	})
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	full := w.place("full")
	if err := os.MkdirAll(filepath.Join(full, "something"), 0o755); err != nil {
		t.Fatal(err)
	}
	w.refused(control.ExitFailed, "not empty", "empty directory", url, full)
	file := w.place("file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	w.refused(control.ExitFailed, "not a directory", "", url, file)
	w.refused(control.ExitFailed, "not a directory", "", url, filepath.Join(file, "below"))
	w.nothingLeft(w.place("none"))

	m := w.bare(url)
	w.refused(control.ExitFailed, "already", "artifactfs unmount "+m.Dir, url, m.Dir)
	w.refused(control.ExitFailed, "inside another mount at "+m.Dir, "another directory", url, m.path("module"))
	w.refused(control.ExitFailed, "inside another mount at "+m.Dir, "another directory", url, m.path("new/dir"))
	link := w.place("link")
	if err := os.Symlink(m.Dir, link); err != nil {
		t.Fatal(err)
	}
	w.refused(control.ExitFailed, "already", m.Dir, url, link)
	if got, err := os.ReadFile(m.path("file")); err != nil || string(got) != "x\n" {
		t.Errorf("read from the earlier mount: got %q, %v", got, err)
	}

	other := w.place("tmpfs")
	if err := errors.Join(os.Mkdir(other, 0o755), unix.Mount("tmpfs", other, "tmpfs", 0, "size=64k")); err != nil {
		t.Fatal(err)
	}
	w.refused(control.ExitFailed, "another file system is mounted at the directory", "another directory", url, other)
	if err := unix.Unmount(other, 0); err != nil {
		t.Error(err)
	}

	// Mount creates missing parent directories, and unmount removes them.
	parent := w.place("parent")
	w.ok("mount", url, filepath.Join(parent, "a", "b"))
	w.ok("unmount", filepath.Join(parent, "a", "b"))
	if exists(parent) {
		t.Error("directories that mount created still exist")
	}
	// A directory that existed before stays.
	stays := w.place("stays")
	if err := os.Mkdir(stays, 0o755); err != nil {
		t.Fatal(err)
	}
	w.ok("mount", url, filepath.Join(stays, "m"))
	w.ok("unmount", filepath.Join(stays, "m"))
	if entries, err := os.ReadDir(stays); err != nil || len(entries) > 0 {
		t.Errorf("entries of %s: got %v (%v), want none", stays, entries, err)
	}
}

// run runs another program that starts the binary with the world's state directory.
func (w *world) run(state string, name string, args ...string) result {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.Env = "/", &stdout, &stderr, append(os.Environ(), "ARTIFACTFS_STATE="+state)
	cmd.Run()
	return result{append([]string{name}, args...), stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

func TestNoFuse(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("no fuse"))
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	dir := w.place("m")
	for name, hide := range map[string]string{
		"absent": "mount -t tmpfs none /dev", "no device": "mount --bind /dev/null /dev/fuse",
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{TB: t, root: w.root, state: w.state}
			r := w.run(w.state, "unshare", "-m", "sh", "-c", hide+` && exec "$0" mount "$1" "$2" --foreground`, binary, url, dir)
			if strings.Contains(r.stderr, "unshare") {
				t.Skip(r)
			}
			w.refusal(r, control.ExitFailed, "/dev/fuse", "--device /dev/fuse")
			w.nothingLeft(dir)
		})
	}
}

func TestUnprivilegedUser(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("unprivileged"))
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	for dir := w.root; dir != "/"; dir = filepath.Dir(dir) { // all directories above the binary and the user's files
		if info, err := os.Stat(dir); err == nil && info.Mode()&0o001 == 0 {
			os.Chmod(dir, info.Mode()|0o011)
		}
	}
	own := w.place("own")
	if err := errors.Join(os.Mkdir(own, 0o755), os.Chown(own, nobody, nobody)); err != nil {
		t.Fatal(err)
	}
	as := func(state string, args ...string) result { return w.asNobody(own, state, binary, args...) }
	state := filepath.Join(own, "state")
	// A directory that the user may not write to.
	w.refusal(as(filepath.Join(w.root, "denied"), "mount", url, filepath.Join(own, "m")), control.ExitFailed,
		"permission denied", "")
	w.refusal(as(state, "mount", url, filepath.Join(w.root, "denied")), control.ExitFailed, "permission denied", "")
	// The state directory of another user's daemon.
	w.ok("mount", url, w.place("root"))
	w.refusal(as(w.state, "mount", url, filepath.Join(own, "m")), control.ExitFailed, "permission denied", "")
	// The user's own directories: either fusermount3 mounts, or the error states what is missing.
	dir := filepath.Join(own, "m")
	r := as(state, "mount", url, dir)
	if r.code != 0 {
		w.refusal(r, control.ExitFailed, "", "fusermount3")
		if exists(dir) {
			t.Errorf("directory %s still exists", dir)
		}
	} else if r := as(state, "unmount", dir); r.code != 0 {
		t.Error(r)
	}
	if r := as(state, "unmount", "--all"); r.code != 0 {
		t.Error(r)
	}
	w.until("the user's daemon has ended", func() bool {
		for _, pid := range daemonsBelow(w.root) {
			if args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); bytes.Contains(args, []byte(own)) {
				return false
			}
		}
		return true
	})
}

func TestBadStateDirectory(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("bad state"))
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	dir := w.place("m")
	file := w.place("file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	readOnly := t.TempDir()
	if err := errors.Join(unix.Mount("tmpfs", readOnly, "tmpfs", unix.MS_RDONLY, "size=64k")); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(readOnly, unix.MNT_DETACH)
	for _, foreground := range [][]string{nil, {"--foreground"}} {
		for state, cause := range map[string]string{filepath.Join(file, "state"): "not a directory",
			filepath.Join(readOnly, "state"): "read-only file system"} {
			r := w.run(state, binary, append([]string{"mount", url, dir}, foreground...)...)
			w.refusal(r, control.ExitFailed, cause, "")
			w.nothingLeft(dir)
		}
	}
}

// On a full disk, contents that were fetched before are read, and a read of others is correct or an error.
func TestFullDisk(t *testing.T) {
	small := t.TempDir()
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=5m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(small, unix.MNT_DETACH) })
	w := newWorld(t)
	w.state = small
	files := sample("full disk")
	w.commit(w.repo("r.git", object.SHA1), files)
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	m := w.bare(url, "--wait", "git")
	known := subtree(files, "known")
	if n := readAll(t, m.Dir, known); n > 0 {
		t.Fatalf("%d reads failed before the disk was full", n)
	}
	filler := filepath.Join(w.state, "filler")
	fill := func() {
		f := must[*os.File](t)(os.Create(filler))
		for chunk := make([]byte, 4096); ; {
			if _, err := f.Write(chunk); err != nil {
				break
			}
		}
		f.Close()
	}
	fill()
	failed := readAll(t, m.Dir, files, syscall.ENOSPC, syscall.EIO)
	if n := readAll(t, m.Dir, known); n > 0 {
		t.Errorf("%d reads of fetched contents failed on the full disk", n)
	}
	t.Logf("%d of %d reads failed", failed, len(files))
	other := w.place("m")
	w.refused(control.ExitFailed, "no space left", "free some space", url, other)
	if exists(other) {
		t.Errorf("directory %s still exists after the failed mount", other)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if n := readAll(t, m.Dir, files); n > 0 {
		t.Errorf("%d reads failed after space was freed", n)
	}
	m.await("it is healed", func(st control.MountStatus) bool { return st.State == control.StateMounted })
	w.ok("unmount", "--all")
	w.until("the daemon has ended", func() bool { return len(daemonsBelow(w.root)) == 0 })
	fill() // and a daemon that starts on a full disk
	os.WriteFile(filler+"2", make([]byte, 1<<20), 0o600)
	if r := w.afs("mount", url, other); r.code == 0 {
		readAll(t, other, files, syscall.ENOSPC, syscall.EIO)
		w.ok("unmount", other)
	} else {
		w.refusal(r, control.ExitFailed, "no space left", "free some space")
	}
	os.Remove(filler)
	os.Remove(filler + "2")
}

// No place that other users can read contains a secret: command lines of the daemon and its children, mount tables,
// logs.
func TestSecretsStaySecret(t *testing.T) {
	w := newWorld(t)
	files := sample("secrets")
	repo := w.repo("r.git", object.SHA1)
	w.commit(repo, files)
	must[[]object.ID](t)(repo.History(3))
	s := w.serve(gittest.ServerOptions{})
	s.Inject(gittest.Fault{Kind: gittest.RequireAuth, User: "user", Pass: password})
	watch := w.watchCommandLines()
	m := w.mount(withSecret(s.URL("r.git")), "--wait", "all", "--prefetch", "all", "--history", "full")
	// A server without protocol v2 is fetched from by stock git, a child process.
	old := w.serve(gittest.ServerOptions{})
	old.Inject(gittest.Fault{Kind: gittest.RequireAuth, User: "user", Pass: password})
	old.Inject(gittest.Fault{Kind: gittest.NoV2})
	w.mount(withSecret(old.URL("r.git")), "--wait", "all", "--history", "full")
	w.env = []string{"ARTIFACTFS_TOKEN=" + password}
	w.bare(strings.Replace(s.URL("r.git"), "://", "://user@", 1))
	w.env = nil
	shown := w.ok("status", m.Dir) + w.ok("status", "--json") + w.ok("list") + w.ok("list", "--json") + watch()
	for _, path := range []string{"/proc/mounts", filepath.Join(m.gitDir(), "config")} {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		shown += string(b)
	}
	if i := strings.Index(shown, password); i >= 0 {
		t.Errorf("the password is shown: ...%.300s", shown[max(0, i-200):])
	}
	w.noSecret()
}

// watchCommandLines collects the command lines of all processes, and the environments of git processes, until the
// returned function is called.
func (w *world) watchCommandLines() (stop func() string) {
	seen := map[string]bool{}
	quit, done := make(chan struct{}), make(chan struct{})
	look := func() {
		all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, path := range all {
			if args, err := os.ReadFile(path); err == nil {
				seen[strings.ReplaceAll(string(args), "\x00", " ")] = true
				if env, err := os.ReadFile(filepath.Join(filepath.Dir(path), "environ")); err == nil &&
					strings.HasPrefix(string(args), "git") {
					seen[strings.ReplaceAll(string(env), "\x00", " ")] = true
				}
			}
		}
	}
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			default:
				look()
			}
		}
	}()
	return func() string {
		close(quit)
		<-done
		var all strings.Builder
		for args := range seen {
			// The mount command itself has the URL in its command line, because the user typed it there. Its children must not
			// have it.
			if !strings.HasPrefix(args, binary+" ") || !strings.Contains(args, " mount ") {
				fmt.Fprintln(&all, args)
			}
		}
		return all.String()
	}
}
