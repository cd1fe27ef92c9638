package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
)

// binary is the command as people run it.
var binary string

func TestMain(m *testing.M) {
	cli.Version = versionText()
	dir, err := os.MkdirTemp("", "artifactfs-cmd-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary = filepath.Join(dir, "artifactfs")
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", binary, ".").CombinedOutput()
	if err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// patience is the longest wait for a process or an event. It is long, because machines that run tests are busy.
const patience = 2 * time.Minute

// result is the output and exit code of a run of the command.
type result struct {
	code           int
	stdout, stderr string
}

// afs runs the command with a state directory and a working directory of the test.
type afs struct {
	t          *testing.T
	state, dir string
	env        []string
}

func newAfs(t *testing.T) *afs {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	a := &afs{t: t, state: filepath.Join(base, "state"), dir: filepath.Join(base, "work")}
	if err := os.Mkdir(a.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *afs) command(args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	a.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = a.dir
	cmd.Env = append(os.Environ(), "ARTIFACTFS_STATE="+a.state, "ARTIFACTFS_TOKEN=")
	cmd.Env = append(cmd.Env, a.env...)
	return cmd
}

func (a *afs) run(args ...string) result {
	a.t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := a.command(args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		a.t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// ok runs the command, which must succeed and print nothing on stderr.
func (a *afs) ok(args ...string) string {
	a.t.Helper()
	r := a.run(args...)
	if r.code != 0 || r.stderr != "" {
		a.t.Fatalf("artifactfs %s: exit %d\n%s%s", strings.Join(args, " "), r.code, r.stdout, r.stderr)
	}
	return r.stdout
}

// fakeSessions answers session requests. It is nil for a daemon that must receive none.
type fakeSessions interface {
	control.Sessions
	control.CacheEntries
	control.Locks
}

// fakeDaemon keeps a list of mounts without mounting anything.
type fakeDaemon struct {
	fakeSessions
	control.CredentialHolder

	mount    func(ctx context.Context, r control.MountRequest, progress func(control.Progress)) (control.MountReply, error)
	prefetch func(ctx context.Context, r control.PrefetchRequest,
		progress func(control.Progress)) (control.PrefetchReply, error)
	switchTo func(r control.SwitchRequest) (control.SwitchReply, error)
	trace    func(ctx context.Context, r control.TraceRequest, emit func(control.Trace) error) error
	busy     string                          // a directory whose unmount fails
	kept     map[string]control.UnmountReply // replies of unmount by directory
	refuse   func(control.UnmountRequest) error

	mu       sync.Mutex
	mounts   []control.MountStatus
	requests []control.MountRequest
	idle     chan struct{}
	closed   bool
}

func newFakeDaemon(mounts ...control.MountStatus) *fakeDaemon {
	f := &fakeDaemon{mounts: mounts, idle: make(chan struct{})}
	if len(mounts) == 0 {
		close(f.idle)
	}
	return f
}

// set changes the daemon while it serves.
func (f *fakeDaemon) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// get returns a field that the test has set.
func get[T any](f *fakeDaemon, field *T) T {
	f.mu.Lock()
	defer f.mu.Unlock()
	return *field
}

func (f *fakeDaemon) Mount(ctx context.Context, r control.MountRequest,
	progress func(control.Progress)) (control.MountReply, error) {
	if mount := get(f, &f.mount); mount != nil {
		return mount(ctx, r, progress)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	r.Environment = nil // it is this process's
	f.requests = append(f.requests, r)
	f.mounts = append(f.mounts, control.MountStatus{ID: "m1", Dir: r.Dir, Remote: r.Remote, State: control.StateMounted})
	if len(f.mounts) == 1 {
		f.idle = make(chan struct{})
	}
	return control.MountReply{
		ID: "m1", Dir: r.Dir, Remote: r.Remote, Ref: "main", Commit: "0123456789abcdef0123456789abcdef01234567", Files: 14103,
		Timings: control.Timings{Connect: 1, Tree: 2, Mounted: 3, Total: 4},
	}, nil
}

func (f *fakeDaemon) Unmount(ctx context.Context, r control.UnmountRequest) (control.UnmountReply, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.Dir == f.busy { // as if the kernel reported that the mount is busy
		return control.UnmountReply{}, &control.Error{Code: control.ExitFailed, Verb: "unmount", Object: r.Dir, Cause: "busy",
			Hint: "fuser"}
	}
	if f.refuse != nil {
		if err := f.refuse(r); err != nil {
			return control.UnmountReply{}, err
		}
	}
	for i, m := range f.mounts {
		if m.Dir == r.Dir {
			f.mounts = append(f.mounts[:i:i], f.mounts[i+1:]...)
			if len(f.mounts) == 0 {
				close(f.idle)
			}
			if reply, ok := f.kept[m.Dir]; ok {
				return reply, nil
			}
			return control.UnmountReply{ID: m.ID, Dir: m.Dir}, nil
		}
	}
	return control.UnmountReply{}, &control.Error{Code: control.ExitNotMounted, Verb: "unmount", Object: r.Dir,
		Cause: "not mounted"}
}

func (f *fakeDaemon) Refresh(context.Context, control.RefreshRequest,
	func(control.Progress)) (control.RefreshReply, error) {
	return control.RefreshReply{}, nil
}

// Mounts returns only the parts by which clients find a mount if r.Names is set, as a daemon does.
func (f *fakeDaemon) Mounts(ctx context.Context, r control.MountsRequest) (control.Status, error) {
	s, err := f.Status(ctx)
	for i, m := range s.Mounts {
		if r.Names {
			s.Mounts[i] = control.MountStatus{ID: m.ID, Dir: m.Dir, Remote: m.Remote, State: m.State, ReadOnly: m.ReadOnly,
				Since: m.Since, PID: m.PID, SubmoduleOf: m.SubmoduleOf,
				Session: control.SessionStatus{Name: m.Session.Name, SessionRemote: m.Session.SessionRemote}}
		}
	}
	return s, err
}

func (f *fakeDaemon) Status(ctx context.Context) (control.Status, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return control.Status{Mounts: append([]control.MountStatus{}, f.mounts...)}, nil
}

func (f *fakeDaemon) Prefetch(ctx context.Context, r control.PrefetchRequest,
	progress func(control.Progress)) (control.PrefetchReply, error) {
	return get(f, &f.prefetch)(ctx, r, progress)
}

func (f *fakeDaemon) Trace(ctx context.Context, r control.TraceRequest, emit func(control.Trace) error) error {
	return get(f, &f.trace)(ctx, r, emit)
}

func (f *fakeDaemon) Switch(_ context.Context, r control.SwitchRequest,
	_ func(control.Progress)) (control.SwitchReply, error) {
	return get(f, &f.switchTo)(r)
}

func (f *fakeDaemon) WriteMetrics(_ context.Context, out io.Writer) error {
	_, err := io.WriteString(out, "artifactfs_mounts 0\n")
	return err
}

func (f *fakeDaemon) Resumed(context.Context) error { return nil }
func (f *fakeDaemon) Remount(context.Context) error { return nil }
func (f *fakeDaemon) Alive(context.Context) error   { return nil }

func (f *fakeDaemon) Shutdown(ctx context.Context) error { return nil }

func (f *fakeDaemon) Idle() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.idle
}

func (f *fakeDaemon) Close(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return nil
}

// serve answers at the shared daemon's socket, or at the given one. ended is closed when it stops.
func serve(t *testing.T, socket string, f *fakeDaemon) (ended chan struct{}) {
	t.Helper()
	server, err := control.Listen(t.Context(), socket, f, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended = make(chan struct{})
	go func() { server.Serve(ctx); close(ended) }()
	t.Cleanup(func() { cancel(); await(t, ended) })
	return ended
}

func await[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("no event within %v", patience)
	}
	return v
}

func TestUsageErrors(t *testing.T) {
	a := newAfs(t)
	for line, want := range map[string]string{
		"frobnicate":                "artifactfs: unknown command \"frobnicate\"\nhint: artifactfs --help\n",
		"mout":                      "artifactfs: unknown command \"mout\"\nhint: did you mean mount?\n",
		"log":                       "artifactfs: unknown command \"log\"\nhint: did you mean session log?\n",
		"help sesion":               "artifactfs: unknown command \"sesion\"\nhint: did you mean session?\n",
		"list --all":                "artifactfs: list: --all is possible only with --help\nhint: artifactfs list --help\n",
		"mount":                     "artifactfs: mount: REMOTE is missing: want REMOTE [DIR], or set $ARTIFACTFS_REMOTE\nhint: artifactfs mount --help\n",
		"mount a b c":               "artifactfs: mount: want REMOTE [DIR], got 3 arguments\nhint: artifactfs mount --help\n",
		"mount a --history=some":    "artifactfs: mount: invalid argument \"some\" for \"--history\" flag: must be one of background|full|none\nhint: artifactfs mount --help\n",
		"mount a --cache-size=lots": "artifactfs: mount: invalid argument \"lots\" for \"--cache-size\" flag: invalid size; examples are 512M and 20G\nhint: artifactfs mount --help --all\n",
		"mount a --uid=-1":          "artifactfs: mount: invalid argument \"-1\" for \"--uid\" flag: not a number\nhint: artifactfs mount --help --all\n",
		"mount a --gid=99999999999": "artifactfs: mount: invalid argument \"99999999999\" for \"--gid\" flag: out of range\nhint: artifactfs mount --help --all\n",
		"mount a --timeout=5":       "artifactfs: mount: invalid argument \"5\" for \"--timeout\" flag: invalid duration; examples are 30s and 5m\nhint: artifactfs mount --help --all\n",
		"mount a --read-only=so":    "artifactfs: mount: invalid argument \"so\" for \"--read-only\" flag: must be true or false\nhint: artifactfs mount --help\n",
		"mount a --token-file=none": "artifactfs: mount --token-file none: no such file or directory\nhint: name a file whose only line is the token\n",
		"mount a --token-file=.":    "artifactfs: mount --token-file .: file is a directory\nhint: name a file whose only line is the token\n",
		"mount a --session=../x":    "artifactfs: mount: invalid session name \"../x\": want letters, digits, dots, dashes and underscores, with a letter or digit first\n",
		"mount a --session=x.lock":  "artifactfs: mount: invalid session name \"x.lock\": git allows neither \"..\" in the name of a ref, nor \".\" or \".lock\" at its end\n",
		"mount a --redirect=b,/etc": "artifactfs: mount: --redirect: path \"/etc\" is absolute, want one relative to the root of the mount\nhint: artifactfs mount --help\n",
		"mount a --redirect=b,b/c":  "artifactfs: mount: --redirect: redirects \"b\" and \"b/c\": one is inside the other\nhint: artifactfs mount --help\n",

		"mount a --redirect=b --read-only": "artifactfs: mount: --redirect and --read-only exclude each other\n",
		"unmount --all --discard":          "artifactfs: unmount: --discard and --all exclude each other: name what to discard\nhint: artifactfs unmount --help\n",
		"unmount --session=.x":             "artifactfs: unmount: invalid session name \".x\": want letters, digits, dots, dashes and underscores, with a letter or digit first\nhint: artifactfs unmount --help\n",

		"mount a --fuse-fd=0":     "artifactfs: mount: --fuse-fd needs --foreground, because the descriptor belongs to this process\nhint: artifactfs mount --help\n",
		"mount a --git-dir=up":    "artifactfs: mount: invalid argument \"up\" for \"--git-dir\" flag: must be one of outside|inside\nhint: artifactfs mount --help --all\n",
		"mount a --cash-size=1G":  "artifactfs: mount: unknown flag: --cash-size\nhint: artifactfs mount --help --all\n",
		"run a":                   "artifactfs: run: command is missing: want REMOTE -- CMD [ARG...]\nhint: artifactfs run --help\n",
		"run a --":                "artifactfs: run: command is missing: want REMOTE -- CMD [ARG...]\nhint: artifactfs run --help\n",
		"run a b -- c":            "artifactfs: run: want REMOTE -- CMD [ARG...], got 2 arguments before --\nhint: artifactfs run --help\n",
		"run -- true":             "artifactfs: run: REMOTE is missing: want REMOTE -- CMD [ARG...], or set $ARTIFACTFS_REMOTE\nhint: artifactfs run --help\n",
		"mount a --timeout=-1s":   "artifactfs: mount: --timeout must not be negative\n",
		"mount /":                 "artifactfs: mount: DIR is missing and cannot be derived from REMOTE\nhint: type artifactfs mount REMOTE DIR\n",
		"unmount":                 "artifactfs: unmount: want a directory, --session NAME, or --all\nhint: artifactfs unmount --help\n",
		"unmount --all a":         "artifactfs: unmount: want either directories and sessions, or --all\nhint: artifactfs unmount --help\n",
		"mount a --checkpoint=x":  "artifactfs: mount: invalid argument \"x\" for \"--checkpoint\" flag: must be one of off|idle|before-risk|interval=DURATION\nhint: artifactfs mount --help --all\n",
		"mount a --at=@":          "artifactfs: mount: --at needs --session, the session of the checkpoint\nhint: artifactfs mount --help\n",
		"session frob":            "artifactfs: session: unknown command \"frob\"\nhint: artifactfs session --help\n",
		"session lgo":             "artifactfs: session: unknown command \"lgo\"\nhint: did you mean session log?\n",
		"session restore":         "artifactfs: restore: want ID [PATH...], got 0 arguments\nhint: artifactfs session restore --help\n",
		"session undo 1 2":        "artifactfs: undo: want [TURN|CALL], got 2 arguments\nhint: artifactfs session undo --help\n",
		"session redo 1":          "artifactfs: redo: want no arguments, got 1 argument\nhint: artifactfs session redo --help\n",
		"session log -C a b":      "artifactfs: log: session is named twice: by an argument and by -C\nhint: artifactfs session log --help\n",
		"session pin a/b":         "artifactfs: pin: invalid name \"a/b\": want letters, digits, dots, dashes and underscores, with a letter or digit first\nhint: artifactfs session pin --help\n",
		"session fork a --ref=b":  "artifactfs: fork: --ref is not possible: the new session starts at the checkpoint ID\nhint: artifactfs session fork --help\n",
		"session fork @~1":        "artifactfs: fork: DIR is missing: want [ID] DIR, and @~1 is a checkpoint\nhint: artifactfs session fork --help\n",
		"session pin @":           "artifactfs: pin: NAME is missing: want [ID] NAME, and @ is a checkpoint\nhint: artifactfs session pin --help\n",
		"session note":            "artifactfs: note: JSON is missing: stdin was empty\nhint: artifactfs session note --help\n",
		"session log -n x":        "artifactfs: log: invalid argument \"x\" for \"--number\" flag: not a number\nhint: artifactfs session log --help\n",
		"session note HEAD a":     "artifactfs: note: argument \"a\" is neither - nor a JSON object\nhint: artifactfs session note --help\n",
		"checkpoint --pin=.":      "artifactfs: checkpoint: --pin: invalid name \".\": want letters, digits, dots, dashes and underscores, with a letter or digit first\nhint: artifactfs checkpoint --help\n",
		"sync --timeout=-1s":      "artifactfs: sync: --timeout must not be negative\nhint: artifactfs sync --help\n",
		"status a b":              "artifactfs: status: want [DIR], got 2 arguments\nhint: artifactfs status --help\n",
		"list a":                  "artifactfs: list: want no arguments, got 1 argument\nhint: artifactfs list --help\n",
		"prefetch":                "artifactfs: prefetch: want DIR [PATHSPEC...], got 0 arguments\nhint: artifactfs prefetch --help\n",
		"daemon --idle-exit=-1s":  "artifactfs: daemon: --idle-exit must not be negative\nhint: artifactfs daemon --help\n",
		"completion tcsh":         "artifactfs: completion: unknown shell \"tcsh\": want bash, zsh or fish\nhint: artifactfs completion --help\n",
		"status --log-level=loud": "artifactfs: status: invalid argument \"loud\" for \"--log-level\" flag: must be one of debug|info|warn|error\nhint: artifactfs status --help\n",
	} {
		r := a.run(strings.Fields(line)...)
		if r.code != control.ExitUsage || r.stdout != "" || r.stderr != want {
			t.Errorf("artifactfs %s: got exit %d, stdout %q, stderr:\n%swant:\n%s", line, r.code, r.stdout, r.stderr, want)
		}
	}
}

func TestUsageErrorAsJSON(t *testing.T) {
	a := newAfs(t)
	for line, want := range map[string]string{
		"run a --json -- true":       `{"error":{"code":"usage","message":"run: --json is not possible: the output is that of CMD","hint":"artifactfs run --help","retryable":false}}`,
		"mout --json":                `{"error":{"code":"usage","message":"unknown command \"mout\"","hint":"did you mean mount?","retryable":false}}`,
		"list --bogus --json":        `{"error":{"code":"usage","message":"list: unknown flag: --bogus","hint":"artifactfs list --help","retryable":false}}`,
		"run a --bogus -- b --json":  "",
		"list --log-level=x --state": "",
	} {
		if want != "" {
			want += "\n"
		}
		if r := a.run(strings.Fields(line)...); r.code != control.ExitUsage || r.stdout != want {
			t.Errorf("%s: got exit %d and stdout %q, want %d and %q", line, r.code, r.stdout, control.ExitUsage, want)
		}
	}
}

func TestVersion(t *testing.T) {
	a := newAfs(t)
	if got := a.ok("version"); !strings.HasPrefix(got, "artifactfs ") || !strings.Contains(got, "protocol 6)") {
		t.Errorf("version printed %q", got)
	}
	if got := a.ok("--version"); got != a.ok("version") {
		t.Errorf("--version: got %q, want what version prints", got)
	}
	var report versionReport
	if err := json.Unmarshal([]byte(a.ok("version", "--json")), &report); err != nil {
		t.Fatal(err)
	}
	if report.Protocol != 6 || report.Version == "" || report.Go != runtime.Version() ||
		report.Platform != runtime.GOOS+"/"+runtime.GOARCH {
		t.Errorf("version --json: got %+v", report)
	}
}

func TestCompletionScripts(t *testing.T) {
	a := newAfs(t)
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if got := a.ok("completion", shell); !strings.Contains(got, "artifactfs") {
			t.Errorf("completion %s printed %q", shell, got)
		}
	}
	script := filepath.Join(a.dir, "script")
	if err := os.WriteFile(script, []byte(a.ok("completion", "bash")), 0o600); err != nil {
		t.Fatal(err)
	}
	if bash, err := exec.LookPath("bash"); err == nil {
		if out, err := exec.Command(bash, "-n", script).CombinedOutput(); err != nil {
			t.Errorf("bash cannot read the completion script: %v\n%s", err, out)
		}
	}
}

// Each command that its parent's help lists has a page, and no hidden one has.
func TestManualPages(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	a := newAfs(t)
	dir := filepath.Join(a.dir, "man")
	a.ok("man", dir)
	for page, want := range map[string]string{"artifactfs.1": "artifactfs-mount(1)",
		"artifactfs-session-log.1": "Nov 2023"} {
		text, err := os.ReadFile(filepath.Join(dir, page))
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: got %v and %d bytes without %q", page, err, len(text), want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "artifactfs-worker.1")); err == nil {
		t.Error("the hidden command worker has a page")
	}
}
