package cachevalue

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session/cacheentry"
)

type sessions interface{ control.Sessions }

// fake is a daemon with at most one cache entry.
type fake struct {
	control.Handler
	sessions // a daemon with cache entries has sessions
	control.CacheEntries

	mu     sync.Mutex
	value  string // the entry, or the beginning of it if getErr is set
	getErr error
	putErr error
	stored []string
}

func (f *fake) CacheGet(_ context.Context, r control.CacheGetRequest) (control.CacheGetReply, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := os.WriteFile(r.Output, []byte(f.value), 0o600); err != nil {
		return control.CacheGetReply{}, err
	}
	return control.CacheGetReply{}, f.getErr
}

func (f *fake) CachePut(_ context.Context, r control.CachePutRequest) (control.CacheChangeReply, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	text, err := os.ReadFile(r.File)
	if err == nil {
		f.stored, err = append(f.stored, string(text)), f.putErr
	}
	return control.CacheChangeReply{}, err
}

// start serves the fake, and returns an App with the function that returns its output.
func start(t *testing.T, f *fake) (*cli.App, *control.Client, func() (stdout, stderr string)) {
	t.Helper()
	dir := t.TempDir()
	server, err := control.Listen(t.Context(), filepath.Join(dir, "s"), f, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	var daemon sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	daemon.Go(func() { server.Serve(ctx) })
	t.Cleanup(func() { stop(); daemon.Wait() })
	client, err := control.Dial(ctx, filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	a := &cli.App{State: filepath.Join(dir, "state")}
	if err := os.Mkdir(a.State, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, file := range []**os.File{&a.Stdout, &a.Stderr} {
		if *file, err = os.CreateTemp(dir, "out"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { (*file).Close() })
	}
	read := func(file *os.File) string {
		text, err := os.ReadFile(file.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	return a, client, func() (string, string) { return read(a.Stdout), read(a.Stderr) }
}

// Run prints the value of the entry, or the output of the command. It stores exactly the output, and only that of a
// command that has succeeded. A cache that does not work never keeps the command from running.
func TestRun(t *testing.T) {
	none := &control.Error{Code: control.ExitFailed, Kind: control.CodeNotFound, Cause: "no entry"}
	broken := &control.Error{Code: control.ExitRemote, Cause: "no connection"}
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	sh := func(text string) []string { return []string{"sh", "-c", text} }
	for _, c := range []struct {
		name           string
		fake           *fake
		command        []string
		code           int    // exit code
		stdout, stderr string // stderr: a part
		stored         string
	}{
		{"an entry", &fake{value: "old"}, sh("echo ran"), 0, "old", "", ""},
		{"no entry", &fake{getErr: none}, sh("printf new; echo note >&2"), 0, "new", "note", "new"},
		{"no output", &fake{getErr: none}, sh(":"), 0, "", "", ""},
		{"a command that fails", &fake{getErr: none}, sh("printf half; exit 3"), 3, "half", "", ""},
		{"a command that is killed", &fake{getErr: none}, sh("kill -TERM $$"), 143, "", "", ""},
		{"no such command", &fake{getErr: none}, []string{"no-such-command"}, 127, "", "", ""},
		{"no such file", &fake{getErr: none}, []string{"/no/such/file"}, 127, "", "", ""},
		{"a file that is no program", &fake{getErr: none}, []string{script}, 126, "", "", ""},
		{"an entry that breaks off", &fake{value: "a long beginning", getErr: broken}, sh("printf new"), 0, "new",
			"artifactfs: warning: no connection\n", "new"},
		{"an entry that cannot be stored", &fake{getErr: none, putErr: broken}, sh("printf new"), 0, "new",
			"artifactfs: warning: no connection\n", "new"},
	} {
		a, client, output := start(t, c.fake)
		err := Run(t.Context(), a, client, control.CachePutRequest{Of: "/srv/app", Key: "k"}, c.command)
		code := 0
		var exit cli.ExitCode
		if errors.As(err, &exit) {
			code = int(exit)
		} else if err != nil {
			code = control.AsError(err).Code
		}
		stdout, stderr := output()
		if code != c.code || stdout != c.stdout || !strings.Contains(stderr, c.stderr) || c.stderr == "" && stderr != "" {
			t.Errorf("%s: got exit code %d (%v), stdout %q, stderr %q, want %d, %q, %q", c.name, code, err, stdout, stderr,
				c.code, c.stdout, c.stderr)
		}
		want := 0
		if c.code == 0 && c.name != "an entry" {
			want = 1
		}
		if len(c.fake.stored) != want || strings.Join(c.fake.stored, "") != c.stored {
			t.Errorf("%s: stored %q, want %q", c.name, c.fake.stored, c.stored)
		}
		if left, err := os.ReadDir(a.State); err != nil || len(left) != 0 {
			t.Errorf("%s: files that are left: %v, %v", c.name, left, err)
		}
	}
}

// A command that was interrupted while it looked for the entry does not run the other command.
func TestRunInterrupted(t *testing.T) {
	f := &fake{}
	a, client, output := start(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := Run(ctx, a, client, control.CachePutRequest{Of: "/srv/app", Key: "k"}, []string{"echo", "ran"})
	if stdout, _ := output(); stdout != "" || control.AsError(err).ErrorCode() != control.CodeInterrupted {
		t.Errorf("run after an interrupt: got %v and the output %q, want %s", err, stdout, control.CodeInterrupted)
	}
}

// Output that is too large for an entry is not stored, but the command continues.
func TestOutputThatIsTooLarge(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	c := &copied{file: file, size: cacheentry.MaxValue - 4}
	for _, text := range []string{"full", "more", "rest"} {
		if n, err := c.Write([]byte(text)); n != 4 || err != nil {
			t.Errorf("write %q: got %d, %v, want that the command continues", text, n, err)
		}
		if got := errors.Is(c.err, cacheentry.ErrTooLarge); got != (text != "full") {
			t.Errorf("after %q: got error %v", text, c.err)
		}
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(file); err != nil || string(text) != "full" {
		t.Errorf("output in the file: got %q, %v", text, err)
	}
}
