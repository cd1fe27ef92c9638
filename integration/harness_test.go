// Package integration tests the program from outside: the real binary, real mounts, real git servers on loopback.
// It counts the requests to the servers and compares the files of a mount with a checkout by git.
//
// Terms: a world is a state directory with the daemon that serves it, and the repositories and servers of one test.
//
// Tests that take long and judge neither time nor memory call t.Parallel: while one waits, another works. The others
// run one after the other. A program that a test writes and then starts is written by writeProgram.
package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/internal/proc"
)

const (
	commandTime = 2 * time.Minute // longest run of one command; generous, machines are busy
	patience    = 2 * time.Minute // longest wait for a condition
)

var (
	base   string // directory of this run; every world is below it. Its path is short, because socket paths are limited
	binary string
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(reaps); dir != "" {
		reap(dir)
		return
	}
	os.Exit(run(m))
}

// run builds the program, runs the tests, and fails if they leave a mount or a process behind.
func run(m *testing.M) int {
	for name, missing := range map[string]bool{"root": os.Geteuid() != 0, "/dev/fuse": !exists("/dev/fuse")} {
		if missing {
			fmt.Fprintf(os.Stderr, "integration: skipped: needs %s\n", name)
			return 0
		}
	}
	var err error
	if base, err = os.MkdirTemp("", "afs-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	done, err := reaper()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer done()
	defer os.RemoveAll(base)
	binary = filepath.Join(base, "artifactfs")
	for _, build := range [][]string{
		{"-tags", "noserver", "-o", binary, "../cmd/artifactfs"}, {"-o", binary + "-server", "../cmd/artifactfs"},
		{"-o", base, "../cmd/artifactfs-fsmonitor", "./harness/gittest/rot13filter"},
	} {
		if await.Race {
			build = slices.Insert(build, 0, "-race")
		}
		if out, err := exec.Command("go", slices.Insert(build, 0, "build")...).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
			return 1
		}
	}
	if err := keepGo(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	undo, err := seeConnections()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer undo()
	if await.Race {
		os.Setenv("GORACE", "log_path="+filepath.Join(base, "race"))
	}
	code := m.Run()
	code = max(code, printRaces(base))
	for _, dir := range mountsBelow(base) {
		fmt.Fprintf(os.Stderr, "left mounted: %s\n", dir)
		unix.Unmount(dir, unix.MNT_DETACH)
		code = 1
	}
	for _, pid := range daemonsBelow(base) {
		fmt.Fprintf(os.Stderr, "left running: process %d\n", pid)
		syscall.Kill(pid, syscall.SIGKILL)
		code = 1
	}
	return code
}

// printRaces prints the data races that processes of this run have reported below dir. It returns the exit code for
// them: 0 if there are none.
func printRaces(dir string) (code int) {
	reports, _ := filepath.Glob(filepath.Join(dir, "race.*"))
	for _, name := range reports {
		report, err := os.ReadFile(name)
		fmt.Fprintf(os.Stderr, "data race in process %s (%v):\n%s", strings.TrimPrefix(filepath.Ext(name), "."), err, report)
		code = 1
	}
	return code
}

// keepGo clears the environment but for where Go has what it has built and downloaded, and with which flags: tests build
// the program again, and would do all of that anew in another home.
func keepGo() error {
	names := []string{"GOCACHE", "GOMODCACHE", "GOFLAGS", "CGO_ENABLED"}
	out, err := exec.Command("go", append([]string{"env"}, names...)...).Output()
	if err != nil {
		return fmt.Errorf("go env: %w", err)
	}
	clearEnvironment()
	for i, dir := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		os.Setenv(names[i], dir)
	}
	return nil
}

const connections = "/sys/fs/fuse/connections"

// seeConnections makes the kernel's list of FUSE connections readable: not every machine mounts fusectl at boot.
func seeConnections() (undo func(), err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(connections, &st); err != nil {
		return nil, fmt.Errorf("find FUSE connections: %w", err)
	}
	if st.Type == fusectlMagic {
		return func() {}, nil
	}
	if err := unix.Mount("fusectl", connections, "fusectl", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return nil, fmt.Errorf("mount fusectl: %w", err)
	}
	return func() { unix.Unmount(connections, unix.MNT_DETACH) }, nil
}

// fusectlMagic is FUSE_CTL_SUPER_MAGIC of linux/fs/fuse/control.c.
const fusectlMagic = 0x65735543

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// clearEnvironment removes variables that change the behaviour of git, for the tests and all processes that they start,
// and resets the signals that the parent process ignores.
func clearEnvironment() {
	path := os.Getenv("PATH")
	env := gittest.Env()
	os.Clearenv()
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		os.Setenv(name, value)
	}
	os.Setenv("PATH", path)
	os.Setenv("HOME", filepath.Join(base, "home"))
	// Child processes inherit ignored signals, for example from nohup, but no handlers. A handler here makes them start
	// with the default.
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	for _, name := range []string{"ARTIFACTFS_TOKEN", "ARTIFACTFS_STATE", "XDG_STATE_HOME", "SSH_AUTH_SOCK"} {
		os.Unsetenv(name)
	}
	os.MkdirAll(filepath.Join(base, "home"), 0o755)
	unix.Umask(0o022)
}

// world is the environment of one test. Its methods end the test when they fail.
type world struct {
	testing.TB
	root  string   // directory of all files of the world
	state string   // of the daemon
	repos string   // repositories that the servers serve
	env   []string // for the commands, and with the first mount for the daemon

	places int
}

func newWorld(t testing.TB) *world {
	t.Helper()
	root, err := os.MkdirTemp(base, "w")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{TB: t, root: root, state: filepath.Join(root, "state"), repos: filepath.Join(root, "repos")}
	if err := os.Mkdir(w.repos, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.end)
	return w
}

// end unmounts everything and waits for the daemon's end. If it has to kill or unmount by force, the test fails.
func (w *world) end() {
	unmounted := w.afs("unmount", "--all")
	if unmounted.code != 0 {
		w.Errorf("unmount --all: %s", unmounted)
	}
	deadline := time.Now().Add(patience)
	for len(daemonsBelow(w.root)) > 0 && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	for _, pid := range daemonsBelow(w.root) {
		args, _ := proc.Of(pid).Args()
		sockets, _ := filepath.Glob(filepath.Join(w.state, "run", "*"))
		w.Errorf("process %d (%q) did not exit; files of the state directory: %q; %s", pid, args, sockets, unmounted)
		syscall.Kill(pid, syscall.SIGKILL)
	}
	for _, dir := range mountsBelow(w.root) {
		w.Errorf("%s is still mounted", dir)
		unix.Unmount(dir, unix.MNT_DETACH)
	}
	if w.Failed() {
		if log, err := os.ReadFile(w.logFile()); err == nil {
			w.Logf("the daemon's log:\n%s", log[max(0, len(log)-16<<10):])
		}
	}
	if err := os.RemoveAll(w.root); err != nil {
		w.Errorf("clean up: %v", err)
	}
}

func (w *world) logFile() string { return filepath.Join(w.state, "log", "daemon.log") }

// place returns a new path below the world's directory.
func (w *world) place(name string) string {
	w.places++
	return filepath.Join(w.root, fmt.Sprintf("%s%d", name, w.places))
}

// result is the result of a command.
type result struct {
	args           []string
	stdout, stderr string
	code           int // -1: killed
}

func (r result) String() string {
	return fmt.Sprintf("artifactfs %s: exit code %d\n%s%s", strings.Join(r.args, " "), r.code, r.stdout, r.stderr)
}

// command prepares a run of the binary with the world's state.
func (w *world) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, binary, append([]string{"--state", w.state}, args...)...)
	cmd.Dir, cmd.Env = w.root, append(os.Environ(), w.env...)
	cmd.WaitDelay = 10 * time.Second // a busy machine may be slow to copy the output
	return cmd
}

// afs runs the binary to its end.
func (w *world) afs(args ...string) result {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	cmd := w.command(ctx, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.Fatalf("artifactfs %s: %v", strings.Join(args, " "), err)
	}
	return result{args, stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// ok runs the binary, which must succeed, and returns its output.
func (w *world) ok(args ...string) string {
	w.Helper()
	r := w.afs(args...)
	if r.code != 0 {
		w.Fatal(r)
	}
	return r.stdout
}

// mounted is a mount and the reply of the mount command.
type mounted struct {
	control.MountReply
	w *world
}

// path returns the path of a file in the mount.
func (m mounted) path(name string) string { return filepath.Join(m.Dir, name) }

// gitDir returns the path of the mount's own git directory.
func (m mounted) gitDir() string { return filepath.Join(m.w.state, "mounts", m.ID, "git") }

// mount mounts a remote at a fresh directory; the world unmounts it at its end.
func (w *world) mount(remote string, args ...string) mounted {
	w.Helper()
	m := mounted{w: w}
	out := w.ok(append([]string{"mount", remote, w.place("m"), "--json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &m.MountReply); err != nil {
		w.Fatalf("mount printed %q: %v", out, err)
	}
	return m
}

// bare mounts without background fetches.
func (w *world) bare(remote string, args ...string) mounted {
	w.Helper()
	return w.mount(remote, append([]string{"--history", "none", "--prefetch", "none"}, args...)...)
}

func (w *world) unmount(m mounted) {
	w.Helper()
	w.ok("unmount", m.Dir)
}

// storeGit returns the git directory of the only store of the world.
func (w *world) storeGit() string {
	w.Helper()
	found, err := filepath.Glob(filepath.Join(w.state, "stores", "*", "git"))
	if err != nil || len(found) != 1 {
		w.Fatalf("stores of the world: got %q, %v, want one", found, err)
	}
	return found[0]
}

// repo makes an empty repository to be served.
func (w *world) repo(name string, f object.Format) *gittest.Repo {
	w.Helper()
	r, err := gittest.New(filepath.Join(w.repos, name), gittest.RepoOptions{Format: f})
	if err != nil {
		w.Fatal(err)
	}
	return r
}

// commit commits to a repository's main.
func (w *world) commit(r *gittest.Repo, files map[string]gittest.File) object.ID {
	w.Helper()
	id, err := r.Commit("main", files, "Change")
	return must[object.ID](w)(id, err)
}

// must returns a function that returns its value and ends the test if the error is not nil.
func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// served is a server that counts its finished requests.
type served struct {
	*gittest.Server
	w    *world
	over *atomic.Int64
}

// serve serves the world's repositories over HTTP.
func (w *world) serve(o gittest.ServerOptions) served {
	w.Helper()
	over, each := new(atomic.Int64), o.Each
	o.Root = w.repos
	o.Each = func(r gittest.Request) {
		over.Add(1)
		if each != nil {
			each(r)
		}
	}
	s := must[*gittest.Server](w)(gittest.Serve(o))
	w.Cleanup(func() { s.Close() })
	return served{s, w, over}
}

// forget waits until no request is in flight, then empties the log.
func (s served) forget() {
	s.w.Helper()
	s.quiet()
	s.Log().Reset()
	s.over.Store(0)
}

// git runs stock git, in a directory that need not be a repository.
func (w *world) git(dir string, args ...string) string {
	w.Helper()
	return must[string](w)(gittest.Git(context.Background(), dir, args...))
}

// clone returns the directory of a clone of a remote by stock git.
func (w *world) clone(remote string, args ...string) string {
	w.Helper()
	dir := w.place("c")
	w.git(w.root, append(append([]string{"clone", "--quiet"}, args...), remote, dir)...)
	return dir
}

// dropCaches makes the kernel forget pages, entries and inodes that are not in use.
func (w *world) dropCaches() {
	w.Helper()
	unix.Sync()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
		w.Fatal(err)
	}
}
