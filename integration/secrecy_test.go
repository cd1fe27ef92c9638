package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// dialChild connects to a socket of the daemon, and fails if it gets no answer.
func dialChild(path string) error {
	c, err := net.Dial("unix", path)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	fmt.Fprintf(c, "GET /metrics HTTP/1.0\r\n\r\n")
	b, err := io.ReadAll(c)
	if len(b) == 0 {
		return fmt.Errorf("no answer: %v", err)
	}
	return nil
}

// startDaemon starts a daemon explicitly and waits until it answers.
func (w *world) startDaemon(args ...string) {
	w.Helper()
	cmd := w.command(context.Background(), append([]string{"daemon"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	log := filepath.Join(w.root, "daemon.log")
	f := must[*os.File](w)(os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600))
	defer f.Close()
	cmd.Stderr = f
	check2(w, cmd.Start())
	go cmd.Wait()
	w.until("the daemon answers", func() bool { return w.daemonStatus().PID != 0 })
}

// runAsNobody runs a command with the unprivileged user ID 65534, and returns its output. The default of cmd.Dir is the
// root directory.
func runAsNobody(cmd *exec.Cmd) (string, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody, NoSetGroups: false}}
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// letIn makes a directory and all its parents searchable by all users.
func letIn(t testing.TB, dir string) {
	t.Helper()
	for ; dir != "/"; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, info.Mode()|0o011); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOtherUsersAreShutOut(t *testing.T) {
	w := newWorld(t)
	letIn(t, w.root)
	files := sample("shut out")
	w.commit(w.repo("r.git", object.SHA1), files)
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	metrics := filepath.Join(w.root, "metrics.sock")
	w.startDaemon("--metrics", "unix:"+metrics)
	m := w.bare(url)
	look := func(what string) {
		t.Helper()
		for _, args := range [][]string{{"list"}, {"status", "--json"}, {"status", m.Dir}, {"prefetch", m.Dir, "known"},
			{"unmount", m.Dir}, {"unmount", "--all"},
			{"mount", url, filepath.Join(w.root, "theirs")}, {"daemon", "--upgrade"}, {"trace", m.Dir}} {
			for _, where := range [][]string{{"--state", w.state},
				{"--state", filepath.Join(w.root, "none"), "--socket", control.DaemonSocket(w.state)}} {
				ctx, cancel := context.WithTimeout(t.Context(), commandTime)
				out, err := runAsNobody(exec.CommandContext(ctx, binary, append(where, args...)...))
				cancel()
				if err == nil || strings.Contains(out, url) {
					t.Errorf("%s: artifactfs %q as another user: %v\n%s", what, append(where, args...), err, out)
				}
			}
		}
		for _, socket := range []string{control.DaemonSocket(w.state), metrics, filepath.Join(m.gitDir(), "fsmonitor.sock")} {
			if out, err := runAsNobody(child("dial", socket)); err == nil {
				t.Errorf("%s: another user got an answer at %s: %s", what, socket, out)
			}
		}
	}
	if out, err := child("dial", metrics).CombinedOutput(); err != nil {
		t.Errorf("root gets no answer at %s: %s", metrics, out)
	}
	look("as made")
	// the sockets themselves have restrictive modes as well
	for _, dir := range []string{w.state, filepath.Join(w.state, "run")} {
		info := must[os.FileInfo](t)(os.Stat(dir))
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("directory %s has mode %v", dir, info.Mode())
		}
		check(t, os.Chmod(dir, 0o755))
	}
	look("with open directories")
	for _, pid := range []int{w.serving(), w.daemon()} {
		for _, line := range []string{"kill -9 %d", "cat /proc/%d/environ", "ls /proc/%d/fd/", "cat /proc/%d/maps | grep .",
			"ls /proc/%d/cwd/", "head -c1 /proc/%d/mem"} {
			if out, err := runAsNobody(exec.Command("sh", "-c", fmt.Sprintf(line, pid))); err == nil {
				t.Errorf("another user could "+line+": %s", pid, out)
			}
		}
	}
	for _, line := range []string{"ls %s", "cat %s/known/a", "cd %s", "stat %s/known", "touch %s/new"} {
		if out, err := runAsNobody(exec.Command("sh", "-c", fmt.Sprintf(line, m.Dir))); err == nil {
			t.Errorf("another user could "+line+": %s", m.Dir, out)
		}
	}
	if n := readAll(t, m.Dir, files); n > 0 {
		t.Errorf("%d reads by the owner failed", n)
	}
	allowed := w.bare(url, "--allow-other")
	if out, err := runAsNobody(exec.Command("cat", allowed.path("known/a"))); err != nil ||
		out != string(files["known/a"].Data) {
		t.Errorf("read by another user with --allow-other: %v", err)
	}
	syscall.Kill(w.serving(), syscall.SIGKILL) // access must be the same after a takeover
	if out, err := runAsNobody(exec.Command("cat", allowed.path("known/a"))); err != nil ||
		out != string(files["known/a"].Data) {
		t.Errorf("read by another user with --allow-other, after a takeover: %v", err)
	}
	if out, err := runAsNobody(exec.Command("cat", m.path("known/b"))); err == nil {
		t.Errorf("another user could read %d bytes after a takeover", len(out))
	}
	look("after a takeover")
}

// Secrets are passed on to each new worker, so that it can authenticate to the remote, and are visible in no file or
// log.
func TestSecretsOfATakeover(t *testing.T) {
	w := newWorld(t)
	files := sample("secrets of a takeover")
	repo := w.repo("r.git", object.SHA1)
	w.commit(repo, files)
	s := w.serve(gittest.ServerOptions{})
	s.Inject(gittest.Fault{Kind: gittest.RequireAuth, User: "user", Pass: password})
	// The daemon may write core files, and is sent a signal that causes one.
	var limit unix.Rlimit
	check(t, unix.Getrlimit(unix.RLIMIT_CORE, &limit))
	defer unix.Setrlimit(unix.RLIMIT_CORE, &limit)
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: unix.RLIM_INFINITY,
		Max: unix.RLIM_INFINITY}); err != nil {
		t.Log(err)
	}
	w.env = []string{"GOTRACEBACK=crash"}
	metrics := filepath.Join(w.root, "metrics.sock")
	w.startDaemon("--metrics", "unix:"+metrics)
	lazy := []string{"--prefetch", "none"}
	byURL := w.mount(withSecret(s.URL("r.git")), lazy...)
	w.env = []string{"ARTIFACTFS_TOKEN=" + password}
	byEnv := w.mount(strings.Replace(s.URL("r.git"), "://", "://user@", 1), lazy...)
	w.env = nil
	var shown strings.Builder
	look := func() {
		for _, p := range w.victim().Processes() {
			for _, name := range []string{"cmdline", "environ"} {
				b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.PID, name))
				shown.Write(b)
			}
		}
		shown.WriteString(w.ok("status", byURL.Dir) + w.ok("status", "--json") + w.ok("list", "--json"))
	}
	watch := w.watchCommandLines()
	look()
	for i, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGABRT, syscall.SIGSEGV, syscall.SIGQUIT} {
		old := w.serving()
		check(t, syscall.Kill(old, sig))
		for _, m := range []mounted{byURL, byEnv} { // contents that are missing: the remote requires the secret
			name := fmt.Sprintf("d%d/sub/f%d", i, i)
			if got, err := os.ReadFile(m.path(name)); err != nil || !bytes.Equal(got, files[name].Data) {
				t.Errorf("after %v: read %s: %v", sig, name, err)
			}
			if out, err := w.gitIn(m.Dir, "git fetch origin"); err != nil { // git asks the daemon for the secret
				t.Errorf("after %v: git fetch: %v, %s", sig, err, out)
			}
			s.SetRTT(0)
		}
		w.until("another worker serves", func() bool { pid := w.victim().Serving(); return pid != 0 && pid != old })
		look()
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", metrics)
		}}}
	for _, path := range []string{"/metrics", "/debug/pprof/goroutine?debug=2", "/debug/pprof/cmdline"} {
		var r *http.Response
		w.until("serving metrics", func() bool { // the metrics of the last worker
			var err error
			r, err = client.Get("http://artifactfs" + path)
			return err == nil
		})
		b := must[[]byte](t)(io.ReadAll(r.Body))
		r.Body.Close()
		shown.Write(b)
	}
	r := w.afs("doctor")
	shown.WriteString(r.stdout + r.stderr + watch())
	if i := strings.Index(shown.String(), password); i >= 0 {
		t.Errorf("the password is shown: ...%.300q", shown.String()[max(0, i-200):])
	}
	w.noSecret()
	filepath.WalkDir(w.root, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && (path == byURL.Dir || path == byEnv.Dir) {
			return filepath.SkipDir
		}
		if err == nil && d.Type().IsRegular() {
			if b, err := os.ReadFile(path); err == nil && bytes.Contains(b, []byte(password)) {
				t.Errorf("%s (%d bytes) holds the password", path, len(b))
			}
			if strings.HasPrefix(d.Name(), "core") {
				t.Errorf("core file %s exists", path)
			}
		}
		if strings.Contains(path, password) {
			t.Errorf("the name %s holds the password", path)
		}
		return nil
	})
	if _, err := os.Stat(byURL.path("known/a")); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// Child processes of a long-running command cannot read the secrets in its command line and environment.
func TestCommandsHideWhatTheyWereGiven(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("hidden"))
	s := w.serve(gittest.ServerOptions{})
	s.Inject(gittest.Fault{Kind: gittest.RequireAuth, User: "user", Pass: password})
	look := `cat /proc/$PPID/cmdline /proc/$PPID/environ`
	r := w.afs("run", withSecret(s.URL("r.git")), "--discard", "--", "sh", "-c", look)
	if r.code != 0 || !strings.Contains(r.stdout, "*@127.0.0.1") || strings.Contains(r.stdout, password) {
		t.Error(r)
	}
	w.env = []string{"ARTIFACTFS_TOKEN=" + password, "ARTIFACTFS_REMOTE=" + withSecret(s.URL("r.git"))}
	r = w.afs("run", "--discard", "--", "sh", "-c", look)
	if r.code != 0 || !strings.Contains(r.stdout, "ARTIFACTFS_TOKEN=*") || strings.Contains(r.stdout, password) {
		t.Error(r)
	}
	w.noSecret()
}
