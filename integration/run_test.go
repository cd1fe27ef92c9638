package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// script runs a script in a session of its own, with the binary and contrib/container in its PATH.
func (w *world) script(script string, args ...string) result {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	contrib := readableContrib(w)
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", script, "sh"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Dir, cmd.WaitDelay = w.root, 10*time.Second
	cmd.Env = append(append(os.Environ(), "ARTIFACTFS_STATE="+w.state, "PATH="+base+":"+contrib+":"+os.Getenv("PATH"),
		"TMPDIR="+w.root), w.env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.Fatalf("run the command: %v\n%s%s", err, &stdout, &stderr)
	}
	return result{args, stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// readableContrib returns a copy of contrib/container that other users can run: the checkout may be below a home
// directory of mode 0700.
func readableContrib(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(base, "contrib")
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	scratch := must[string](t)(os.MkdirTemp(base, "contrib-*"))
	check2(t, os.CopyFS(scratch, os.DirFS("../contrib/container")))
	check2(t, filepath.WalkDir(scratch, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chmod(path, 0o755))
	}))
	// another test may have created the directory at the same time
	if err := os.Rename(scratch, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	return dir
}

// runWorld serves a small repository. Temporary directories are created below the world's directory.
func runWorld(t *testing.T) (w *world, url string) {
	t.Helper()
	w = newWorld(t)
	w.env = append(w.env, "TMPDIR="+w.root)
	files := sample("run")
	files["tool"] = gittest.File{Data: []byte("#!/bin/sh\necho tool $1\n"), Mode: "100755"}
	files["README.md"] = gittest.File{Data: []byte("# run\n")}
	w.commit(w.repo("app.git", object.SHA1), files)
	return w, w.serve(gittest.ServerOptions{}).URL("app.git")
}

func TestRunPassesEverythingThrough(t *testing.T) {
	w, url := runWorld(t)
	for _, c := range []struct {
		args   []string
		code   int
		stdout string // regular expression of the output
		stderr string
	}{
		{[]string{url, "--", "pwd"}, 0, `^/.*/artifactfs-run-\d+/app\n$`, ``},
		{[]string{url, "--", "./tool", "x"}, 0, `^tool x\n$`, ``},
		{[]string{url, "--", "sh", "-c", "cat README.md; exit 7"}, 7, `^# run\n$`, ``},
		{[]string{url, "--", "sh", "-c", "kill -TERM $$"}, 143, `^$`, ``},
		{[]string{url, "--", "sh", "-c", "git status --porcelain; env | grep -c ARTIFACTFS_REF"}, 1, `^0\n$`, ``},
		{[]string{url, "--dir", filepath.Join(w.root, "here"), "--", "pwd"}, 0, `^` + w.root + `/here\n$`, ``},
		{[]string{url, "--", "no-such-program"}, 127, `^$`,
			`artifactfs: run no-such-program: executable file not found in \$PATH`},
		{[]string{url, "--", "./no-such-program"}, 127, `^$`, `artifactfs: run ./no-such-program: no such file`},
		{[]string{url, "--", "./README.md"}, 126, `^$`, `artifactfs: run ./README.md: permission denied`},
		{[]string{"http://127.0.0.1:1/x.git", "--", "true"}, 3, `^$`, `artifactfs: .*remote unreachable`},
		{[]string{url, "--session", "work", "--", "sh", "-c", "echo 1 >new"}, 0, `^$`,
			`kept 1 changed path in session work\nhint: artifactfs run .*--session work -- CMD resumes the session`},
		{[]string{url, "--session", "work", "--discard", "--", "cat", "new"}, 0, `^1\n$`, ``},
		{[]string{url, "--session", "work", "--", "cat", "new"}, 1, `^$`, `new: No such file`},
	} {
		w.env = append(w.env, "ARTIFACTFS_REF=main")
		r := w.afs(append([]string{"run"}, c.args...)...)
		if r.code != c.code || !regexp.MustCompile(c.stdout).MatchString(r.stdout) ||
			!regexp.MustCompile(c.stderr).MatchString(r.stderr) {
			t.Errorf("%s\nwant code %d, %s, %s", r, c.code, c.stdout, c.stderr)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(w.root, "artifactfs-run-*")); len(left) > 0 || len(mountsBelow(w.root)) > 0 {
		t.Errorf("files after the run: %q, mounts: %q, want none", left, mountsBelow(w.root))
	}
}

// run waits for processes that the command leaves running, then kills them. The changes are saved anyway.
func TestRunCutsOffWhatStays(t *testing.T) {
	w, url := runWorld(t)
	r := w.afs("run", url, "--session", "s", "--", "sh", "-c",
		"echo 1 >new; exec >/dev/null 2>&1; sleep 100 & echo $! >"+w.root+"/pid")
	pid := must[[]byte](w)(os.ReadFile(filepath.Join(w.root, "pid")))
	defer exec.Command("kill", strings.TrimSpace(string(pid))).Run()
	if r.code != 0 || !strings.Contains(r.stderr, "some processes lost access to the mount, which they still used: ") ||
		!strings.Contains(r.stderr, "kept 1 changed path in session s") {
		t.Error(r)
	}
	if !strings.Contains(r.stderr, "sleep") {
		t.Errorf("run does not name the process that is left: %s", r)
	}
	if mounts := mountsBelow(w.root); len(mounts) > 0 {
		t.Errorf("left mounted: %q", mounts)
	}
}

func TestRunForwardsSignals(t *testing.T) {
	w, url := runWorld(t)
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1} {
		cmd := w.command(ctx, "run", url, "--discard", "--", "sh", "-c",
			`trap 'echo got; exit 9' TERM INT HUP USR1; echo up; while :; do sleep 0.05; done`)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no terminal
		var out lockedBuffer
		cmd.Stdout, cmd.Stderr = &out, &out
		w.check(cmd.Start())
		w.until("the command runs", func() bool { return strings.Contains(out.String(), "up") })
		cmd.Process.Signal(signal)
		cmd.Wait()
		if cmd.ProcessState.ExitCode() != 9 || strings.Count(out.String(), "got") != 1 {
			t.Errorf("after signal %v: got %v with output %q, want exit code 9 and \"got\" once", signal,
				cmd.ProcessState, out.String())
		}
	}
}

// In a shell with a terminal, run behaves like any program: Ctrl-C and Ctrl-Z signal CMD, and fg continues it.
func TestRunHasTheTerminal(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("needs bash")
	}
	w, url := runWorld(t)
	tty := w.terminal("bash", "--norc", "--noediting", "-i")
	run := binary + " --state " + w.state + " run " + url + " --discard -- "
	tty.say("PS1='out> '")
	tty.expect("out> $")
	tty.say(run + "cat")
	tty.expect("cat\r\n")
	w.until("the directory is mounted", func() bool { return len(mountsBelow(w.root)) == 1 })
	w.until("cat runs", func() bool { return len(childrenOf("cat", w.root)) == 1 })
	tty.write("\x1a")
	tty.expect("Stopped(?s:.*)out> $") // the line of a stopped job ends like that of a continued one
	tty.say("fg")
	tty.expect("-- cat\r\n")
	tty.say("hello")
	tty.expect("hello\r\nhello\r\n")
	tty.write("\x03")
	tty.expect("out> $")
	tty.say("echo code $?")
	tty.expect("code 130")

	tty.say(run + "bash --norc --noediting -i")
	w.until("it is mounted", func() bool { return len(mountsBelow(w.root)) == 1 })
	tty.say("PS1='in> '")
	tty.expect("in> $")
	tty.say("suspend") // a signal that only the command itself gets
	tty.expect("Stopped(?s:.*)out> $")
	tty.say("fg")
	tty.expect("-- bash .*-i\r\n")
	tty.say("echo ba''ck")
	tty.expect("back\r\n")
	tty.say("exit 9")
	tty.expect("out> $")
	tty.say("echo code $?")
	tty.expect("code 9")
	tty.say("exit")
	tty.wait()
}

// childrenOf lists the processes of that name whose working directory is below dir.
func childrenOf(name, dir string) (pids []string) {
	found, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range found {
		comm, _ := os.ReadFile(p + "/comm")
		cwd, _ := os.Readlink(p + "/cwd")
		if strings.TrimSpace(string(comm)) == name && strings.HasPrefix(cwd, dir+"/") {
			pids = append(pids, filepath.Base(p))
		}
	}
	return pids
}

// terminal is a pseudo terminal and the program that runs in it.
type terminal struct {
	w    *world
	cmd  *exec.Cmd
	file *os.File
	seen lockedBuffer
	at   int // end of the output that was expected so far
}

func (w *world) terminal(name string, args ...string) *terminal {
	w.Helper()
	file := must[*os.File](w)(os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0))
	w.check(unix.IoctlSetPointerInt(int(file.Fd()), unix.TIOCSPTLCK, 0))
	n := must[uint32](w)(unix.IoctlGetUint32(int(file.Fd()), unix.TIOCGPTN))
	other := must[*os.File](w)(os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0))
	defer other.Close()
	t := &terminal{w: w, file: file, cmd: exec.Command(name, args...)}
	t.cmd.Dir, t.cmd.Env = w.root, append(append(os.Environ(), "TERM=dumb", "HISTFILE="), w.env...)
	t.cmd.Stdin, t.cmd.Stdout, t.cmd.Stderr = other, other, other
	t.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	w.check(t.cmd.Start())
	go func() {
		buf := make([]byte, 4096)
		for {
			k, err := file.Read(buf)
			t.seen.Write(buf[:k])
			if err != nil {
				return
			}
		}
	}()
	w.Cleanup(func() {
		t.cmd.Process.Kill()
		file.Close()
	})
	return t
}

func (t *terminal) write(text string) {
	t.w.Helper()
	_, err := t.file.WriteString(text)
	t.w.check(err)
}

func (t *terminal) say(line string) {
	t.w.Helper()
	t.write(line + "\n")
}

func (t *terminal) expect(expression string) {
	t.w.Helper()
	wanted := regexp.MustCompile(expression)
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		text := t.seen.String()
		if found := wanted.FindStringIndex(text[t.at:]); found != nil {
			t.at += found[1]
			return
		}
		if time.Now().After(deadline) {
			t.w.Fatalf("terminal output does not match %q: %q", expression, text)
		}
	}
}

func (t *terminal) wait() { t.cmd.Wait() }

// lockedBuffer may be read while a process writes to it.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// A daemon in another mount namespace would mount where CMD cannot see the mount, so run fails.
func TestRunDoesNotRunBesideTheMount(t *testing.T) {
	w, url := runWorld(t)
	w.mount(url)
	r :=
		w.script(`exec unshare --mount --propagation private artifactfs run "$1" --session beside -- sh -c 'echo it ran; ls'`,
			url)
	if r.code != 1 || r.stdout != "" || !strings.Contains(r.stderr, "in the daemon's mount namespace") {
		t.Error(r)
	}
	if out := w.ok("list"); strings.Contains(out, "beside") {
		t.Errorf("the directory is still mounted:\n%s", out)
	}
}
