package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
)

// newServing is an app whose own mounts are f's.
func newServing(t *testing.T, f *fakeDaemon) (*app, *os.File) {
	t.Helper()
	dir := t.TempDir()
	out, err := os.Create(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	return &app{
		stdout: out, stderr: out, state: filepath.Join(dir, "state"), logFormat: "console",
		newHost: func(string, *zap.Logger) (host, error) { return f, nil },
	}, out
}

func foregroundRequest() control.MountRequest {
	return control.MountRequest{Remote: "/r", Dir: "/m", History: control.HistoryNone, Prefetch: control.PrefetchNone, Wait: control.WaitTree}
}

// awaitMount waits until the daemon at socket tells of a mount.
func awaitMount(t *testing.T, socket string) *control.Client {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		c, err := control.Dial(t.Context(), socket)
		if err != nil {
			continue
		}
		if s, err := c.Status(t.Context()); err == nil && len(s.Mounts) == 1 {
			return c
		}
	}
	t.Fatal("no mount after 30 s")
	return nil
}

func TestForegroundEndsWithItsMount(t *testing.T) {
	for _, how := range []string{"unmount", "signal"} {
		t.Run(how, func(t *testing.T) {
			f := newFakeDaemon()
			a, out := newServing(t, f)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- a.serveMount(ctx, foregroundRequest()) }()
			client := awaitMount(t, control.MountSocket(a.state, os.Getpid()))
			if how == "signal" {
				cancel()
			} else if _, err := client.Unmount(t.Context(), control.UnmountRequest{Dir: "/m"}); err != nil {
				t.Errorf("the answer to the unmount was lost: %v", err)
			}
			if err := await(t, ended); err != nil {
				t.Error(err)
			}
			printed, _ := os.ReadFile(out.Name())
			if !f.closed || !strings.HasPrefix(string(printed), "mounted /r at /m (main, ") {
				t.Errorf("closed %v, printed %q", f.closed, printed)
			}
			if left, _ := filepath.Glob(filepath.Join(a.state, "run", "*")); len(left) > 0 {
				t.Errorf("left %v", left)
			}
		})
	}
}

func TestForegroundMountThatFailsLeavesNothing(t *testing.T) {
	f := newFakeDaemon()
	f.mount = func(context.Context, control.MountRequest, func(control.Progress)) (control.MountReply, error) {
		return control.MountReply{}, errors.New("no luck")
	}
	a, _ := newServing(t, f)
	err := a.serveMount(t.Context(), foregroundRequest())
	if e := control.AsError(err); e.Error() != "mount /m: no luck" || !f.closed {
		t.Errorf("%v, closed %v", err, f.closed)
	}
}

func TestDaemonEndsWhenIdle(t *testing.T) {
	f := newFakeDaemon()
	a, _ := newServing(t, f)
	ended := make(chan error, 1)
	go func() { ended <- a.serveAll(t.Context(), 200*time.Millisecond) }()
	var client *control.Client
	for deadline := time.Now().Add(20 * time.Second); client == nil && time.Now().Before(deadline); {
		client, _ = control.Dial(t.Context(), a.daemonSocket())
	}
	if _, err := client.Mount(t.Context(), foregroundRequest(), nil); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
		t.Fatal("ended with a mount")
	case <-time.After(600 * time.Millisecond): // thrice its patience
	}
	if _, err := client.Unmount(t.Context(), control.UnmountRequest{Dir: "/m"}); err != nil {
		t.Fatal(err)
	}
	if err := await(t, ended); err != nil || !f.closed {
		t.Errorf("%v, closed %v", err, f.closed)
	}
}

func TestSecondDaemonIsRefused(t *testing.T) {
	f := newFakeDaemon()
	a, _ := newServing(t, f)
	serve(t, a.daemonSocket(), newFakeDaemon())
	if err := a.serveAll(t.Context(), 0); !errors.Is(err, control.ErrInUse) || !f.closed {
		t.Errorf("%v, closed %v", err, f.closed)
	}
}

func TestRepositoryOfTheCallerIsForgotten(t *testing.T) {
	t.Setenv("GIT_DIR", "/elsewhere")
	t.Setenv("GIT_SSH_COMMAND", "ssh -v")
	forgetRepository()
	if _, set := os.LookupEnv("GIT_DIR"); set || os.Getenv("GIT_SSH_COMMAND") == "" {
		t.Error("wrong variables are forgotten")
	}
}

func TestSignalsOurParentIgnoresStayIgnored(t *testing.T) {
	for _, s := range deadlySignals() {
		if s == syscall.SIGTERM {
			return
		}
	}
	t.Error("SIGTERM does not end us")
}
