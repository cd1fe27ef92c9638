package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/mounts"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch/readprofile"
)

func TestMountPrintsTheContract(t *testing.T) {
	a := newAfs(t)
	f := newFakeDaemon()
	serve(t, control.DaemonSocket(a.state), f)
	got := a.ok("mount", "https://127.0.0.1/team/app.git", "--json")
	want := `{"id":"m1","dir":"` + a.dir + `/app","remote":"https://127.0.0.1/team/app.git","ref":"main",` +
		`"commit":"0123456789abcdef0123456789abcdef01234567","session":"","resumed":false,"changed":0,"files":14103,` +
		`"timings_ms":{"connect":1,"tree":2,"trees":0,"mounted":3,"total":4}}` + "\n"
	if got != want {
		t.Errorf("got  %swant %s", got, want)
	}
	got = a.ok("mount", "host:x.git", "sub/../y")
	if line :=
		regexp.MustCompile(`^mounted host:x\.git at /.*/work/y \(main, 14,103 files, \d+\.\d\d s\)\n$`); !line.MatchString(got) {
		t.Errorf("mount printed %q", got)
	}
}

func TestMountAsksForWhatTheFlagsSay(t *testing.T) {
	a := newAfs(t)
	a.env = []string{"ARTIFACTFS_TOKEN=hunter2"}
	f := newFakeDaemon()
	serve(t, control.DaemonSocket(a.state), f)
	if err := os.Symlink(a.dir, filepath.Join(filepath.Dir(a.dir), "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(a.dir, "tok"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a.ok("mount", "../repo", "../link/m", "--ref=v1", "--session=s.1", "--redirect=x/./y,z", "--history=full",
		"--profile=build", "--share-profile", "--prefetch=none", "--prefetch-budget=3M", "--wait=git",
		"--allow-other", "--uid=7", "--gid=8", "--cache-size=2GiB", "--token-file=tok", "--timeout=90s", "--store-from=..")
	a.ok("mount", "repo")
	a.ok("mount", "repo", "--read-only", "--redirect=")
	umask := uint32(unix.Umask(0o022))
	unix.Umask(int(umask))
	fetch := control.MountFetch{History: "background", Prefetch: "auto", Wait: "tree"}
	access := control.MountAccess{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	login := control.MountLogin{Token: "hunter2"}
	want := []control.MountRequest{{
		Remote: filepath.Dir(a.dir) + "/repo", Dir: a.dir + "/m", Ref: "v1", Session: "s.1", Redirects: []string{"x/y", "z"},
		RedirectsOnly: true,
		MountFetch: control.MountFetch{History: "full", Prefetch: "none", PrefetchBudget: 3 << 20, Wait: "git",
			CacheSize: 2 << 30, StoreFrom: filepath.Dir(a.dir),
			Timeout: 90 * time.Second, Selection: readprofile.Selection{Profile: "build", ShareProfile: true}},
		MountAccess: control.MountAccess{AllowOther: true, UID: 7, GID: 8},
		MountLogin:  control.MountLogin{TokenFile: a.dir + "/tok", Token: "hunter2"},
	}, {
		Remote: a.dir + "/repo", Dir: a.dir + "/repo", MountFetch: fetch, MountAccess: access, MountLogin: login,
	}, {
		Remote: a.dir + "/repo", Dir: a.dir + "/repo", ReadOnly: true, RedirectsOnly: true, MountFetch: fetch,
		MountAccess: access, MountLogin: login,
	}}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, r := range f.requests {
		r.Nonce = "" // the nonce differs in each request
		if r.Umask == nil || *r.Umask != umask {
			t.Errorf("umask of request %d: got %v, want %#o", i, r.Umask, umask)
		}
		r.Umask = nil
		if !reflect.DeepEqual(r, want[i]) || r.Token != want[i].Token {
			t.Errorf("request %d\n got %+v\nwant %+v", i, r, want[i])
		}
	}
	if len(f.requests) != len(want) {
		t.Errorf("got %d mount requests", len(f.requests))
	}
}

func TestMountFailureHasCodeAndHint(t *testing.T) {
	a := newAfs(t)
	f := newFakeDaemon()
	serve(t, control.DaemonSocket(a.state), f)
	for _, c := range []struct {
		err    error
		code   int
		stderr string
	}{
		{&control.Error{Code: control.ExitRemote, Verb: "mount", Object: "https://127.0.0.1/x", Cause: "no such\nrepository",
			Hint: "check the spelling"}, 3,
			"artifactfs: mount https://127.0.0.1/x: no such repository\nhint: check the spelling\n"},
		{errors.New("out of luck"), 1, "artifactfs: mount " + a.dir + "/d: out of luck\n"},
	} {
		f.mu.Lock()
		f.mount = func(context.Context, control.MountRequest, func(control.Progress)) (control.MountReply, error) {
			return control.MountReply{}, c.err
		}
		f.mu.Unlock()
		if r := a.run("mount", "https://127.0.0.1/x", "d"); r.code != c.code || r.stdout != "" || r.stderr != c.stderr {
			t.Errorf("mount that fails with %v: got %+v", c.err, r)
		}
	}
}

func TestInterruptedMountIsUndoneBeforeThePromptReturns(t *testing.T) {
	a := newAfs(t)
	f := newFakeDaemon()
	arrived, undone := make(chan struct{}), make(chan struct{})
	f.set(func() {
		f.mount =
			func(ctx context.Context, r control.MountRequest, progress func(control.Progress)) (control.MountReply, error) {
				close(arrived)
				<-ctx.Done()
				close(undone)
				return control.MountReply{}, ctx.Err()
			}
	})
	serve(t, control.DaemonSocket(a.state), f)
	var stderr bytes.Buffer
	cmd := a.command("mount", "repo")
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, arrived)
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if got := stderr.String(); cmd.ProcessState.ExitCode() != 1 ||
		got != "artifactfs: mount "+a.dir+"/repo: interrupted\n" {
		t.Errorf("interrupted mount: got %v, stderr %q", cmd.ProcessState, got)
	}
	select {
	case <-undone:
	default:
		t.Error("the command ended before the daemon answered")
	}
}

func steps(ctx context.Context, r control.MountRequest, progress func(control.Progress)) (control.MountReply, error) {
	progress(control.Progress{Phase: "connect", Message: "the server knows no filters: fetching contents, too"})
	for i := range int64(6) { // long enough for a user to see it
		progress(control.Progress{Phase: "trees", Done: (i + 1) << 20, Total: 6 << 20, Unit: "bytes"})
		select {
		case <-time.After(80 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return control.MountReply{Dir: r.Dir, Files: -1}, nil
}

func TestProgressOnATerminalIsOneLineThatGoesAway(t *testing.T) {
	a := newAfs(t)
	f := newFakeDaemon()
	const step = " of 6.0 MiB ("
	shown := make(chan struct{})
	f.set(func() {
		f.mount = func(ctx context.Context, r control.MountRequest, show func(control.Progress)) (control.MountReply, error) {
			reply, err := steps(ctx, r, show)
			select {
			case <-shown:
			case <-time.After(patience):
			}
			return reply, err
		}
	})
	serve(t, control.DaemonSocket(a.state), f)
	terminal, slave := pty(t)
	cmd := a.command("mount", "repo", "--json")
	cmd.Env = append(cmd.Env, "TERM=xterm")
	var stdout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, slave
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	var text string
	seen := sync.OnceFunc(func() { close(shown) })
	for buf, err := make([]byte, 4096), error(nil); err == nil; { // ends with EIO when the command has ended
		var n int
		n, err = terminal.Read(buf)
		if text += string(buf[:n]); strings.Contains(text, step) {
			seen()
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text, "artifactfs: the server knows no filters: fetching contents, too\r\n") ||
		!strings.Contains(text, "\r\x1b[Ktrees  ") || !strings.Contains(text, step) {
		t.Errorf("progress on the terminal: got %q", text)
	}
	if strings.Count(text, "\n") != 1 || !strings.HasSuffix(text, "\r\x1b[K") {
		t.Errorf("the progress line was not erased: %q", text)
	}
	if !json.Valid(stdout.Bytes()) {
		t.Errorf("stdout of mount: got %q", stdout.String())
	}
}

func TestProgressElsewhereIsForTheVerbose(t *testing.T) {
	a := newAfs(t)
	f := newFakeDaemon()
	f.set(func() {
		f.mount = steps
	})
	serve(t, control.DaemonSocket(a.state), f)
	const message = "artifactfs: the server knows no filters: fetching contents, too\n"
	if r := a.run("mount", "repo"); r.stderr != message {
		t.Errorf("stderr of mount: got %q", r.stderr)
	}
	r := a.run("mount", "repo", "-v")
	if !strings.HasPrefix(r.stderr, message) || !strings.Contains(r.stderr, "trees  ") ||
		strings.Contains(r.stderr, "\x1b") {
		t.Errorf("stderr of mount -v: got %q", r.stderr)
	}
}

// pty opens a pseudo terminal: pty(7).
func pty(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { master.Close() })
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return master, slave
}

func TestRepositoryName(t *testing.T) {
	for remote, want := range map[string]string{
		"https://127.0.0.1/team/app.git": "app", "https://127.0.0.1:80/app/": "app", "https://127.0.0.1": "",
		"https://127.0.0.1/": "",
		"host:app.git":       "app", "user@host:~/a b.git/": "a b", "host:": "", "/srv/app/.git": "app",
		"/srv/app/.git/": "app", "/": "",
		"file:///srv/app.git": "app", "./a:b": "a:b", "https://127.0.0.1/..": "", "ssh://h/.git": "",
	} {
		if got := mounts.RepositoryName(remote); got != want {
			t.Errorf("directory for remote %s: got %q, want %q", remote, got, want)
		}
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{
		"1": 1, "512": 512, "3b": 3, "4k": 4 << 10, "1.5M": 3 << 19, "20G": 20 << 30, "2 GiB": 2 << 30, "7kB": 7 << 10,
		"1t": 1 << 40,
		"":   0, "0": 0, "-1": 0, "M": 0, "1e9": 0, "0x10": 0, "nan": 0, "inf": 0, "1P": 0, "9999999999T": 0, "1_0": 0,
		"0.2": 0, "1KK": 0,
	} {
		if got, err := cli.ParseSize(text); got != want || (err == nil) != (want > 0) {
			t.Errorf("size %q: got %d, %v; want %d", text, got, err, want)
		}
	}
	for n, want := range map[int64]string{
		0: "0 B", 999: "999 B", 1000: "1.0 KiB", 1 << 20: "1.0 MiB", 1023 << 10: "1.0 MiB", 150 << 20: "150 MiB",
		20 << 30: "20.0 GiB", 3 << 50: "3072 TiB",
	} {
		if got := cli.BytesOf(n); got != want {
			t.Errorf("format of %d: got %s, want %s", n, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567"} {
		if got := cli.Count(n); got != want {
			t.Errorf("format of %d: got %s, want %s", n, got, want)
		}
	}
}

func TestInheritedDevice(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for fd, want := range map[int]string{int(f.Fd()): "descriptor is not an open /dev/fuse",
		1 << 20: "bad file descriptor"} {
		_, err := mounts.InheritedDevice(fd)
		if e := control.AsError(err); e == nil || e.Code != control.ExitUsage || !strings.Contains(e.Cause, want) ||
			e.Hint == "" {
			t.Errorf("inherited descriptor %d: got %+v, want a usage error", fd, e)
		}
	}
}
