package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap"
)

func TestSocketIsPrivate(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "run", "d.sock")
	serve(t, socket, newFake())
	for path, want := range map[string]os.FileMode{socket: 0o600, filepath.Dir(socket): 0o700} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, %v", path, info.Mode(), err)
		}
	}
	open := filepath.Join(t.TempDir(), "open")
	if err := errors.Join(os.Mkdir(open, 0o777), os.Chmod(open, 0o777)); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(t.Context(), filepath.Join(open, "d.sock"), newFake(), zap.NewNop()); !errors.Is(err, os.ErrPermission) {
		t.Errorf("listening where everybody may write: %v", err)
	}
}

func TestOneServerPerSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "d.sock")
	// A dead server's socket is in the way, and the left-over of one that died before it was born.
	for _, name := range []string{socket, socket + ".new"} {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		l.Close()
	}
	var mu sync.Mutex
	var won []*Server
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			s, err := Listen(t.Context(), socket, newFake(), zap.NewNop())
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won = append(won, s)
			} else if !errors.Is(err, ErrInUse) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("%d servers on one socket", len(won))
	}
	ended := make(chan struct{})
	go func() { won[0].Serve(t.Context()); close(ended) }()
	if _, err := (&Client{socket}).Status(t.Context()); err != nil {
		t.Error(err)
	}
	won[0].Close()
	await(t, ended)
	if left, _ := os.ReadDir(filepath.Dir(socket)); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := (&Client{socket}).Status(t.Context()); !errors.Is(err, ErrNoServer) {
		t.Errorf("after the end: %v", err)
	}
}

func TestSocketsListsTheLivingAndRemovesTheDead(t *testing.T) {
	state := filepath.Join(t.TempDir(), "a [strange] *dir")
	daemon, mount, dead := DaemonSocket(state), MountSocket(state, 7), MountSocket(state, 8)
	serve(t, mount, newFake())
	serve(t, daemon, newFake())
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	got, err := Sockets(t.Context(), state)
	if err != nil || !slices.Equal(got, []string{daemon, mount}) {
		t.Errorf("sockets %v, %v", got, err)
	}
	if _, err := os.Stat(dead); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the dead one is still there: %v", err)
	}
	if got, err := Sockets(t.Context(), filepath.Join(state, "none")); err != nil || len(got) != 0 {
		t.Errorf("without a state directory: %v, %v", got, err)
	}
}

func TestLongPathsWork(t *testing.T) {
	socket := filepath.Join(t.TempDir(), strings.Repeat("long/", 40), "d.sock")
	serve(t, socket, newFake())
	if _, err := (&Client{socket}).Status(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := (&Client{socket + "x"}).Status(t.Context()); !errors.Is(err, ErrNoServer) {
		t.Error(err)
	}
}

func TestStateDir(t *testing.T) {
	t.Setenv("ARTIFACTFS_STATE", "")
	t.Setenv("XDG_STATE_HOME", "/x")
	want := "/x/artifactfs"
	if os.Geteuid() == 0 {
		want = "/var/lib/artifactfs"
	}
	if got, err := StateDir(""); got != want || err != nil {
		t.Errorf("default: %q, %v", got, err)
	}
	t.Setenv("ARTIFACTFS_STATE", "/env")
	if got, _ := StateDir(""); got != "/env" {
		t.Errorf("environment: %q", got)
	}
	wd, _ := os.Getwd()
	if got, _ := StateDir("flag"); got != filepath.Join(wd, "flag") {
		t.Errorf("flag: %q", got)
	}
}

func TestShutdownEndsServe(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "d.sock")
	_, ended := serve(t, socket, newFake())
	if err := (&Client{socket}).Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, ended)
}

func TestCloseAnswersWhatHasArrived(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "d.sock")
	f := newFake()
	arrived, goOn := make(chan struct{}), make(chan struct{})
	f.mount = func(ctx context.Context, r MountRequest, progress func(Progress)) (MountReply, error) {
		close(arrived)
		<-goOn
		return MountReply{ID: "late"}, ctx.Err()
	}
	s, ended := serve(t, socket, f)
	answer := make(chan string, 1)
	go func() {
		r, err := (&Client{socket}).Mount(t.Context(), mountRequest("/m"), nil)
		answer <- fmt.Sprint(r.ID, err)
	}()
	await(t, arrived)
	if s.CloseIdle(func() bool { return true }) {
		t.Error("closed as idle with a request being worked on")
	}
	s.Close()
	if _, err := (&Client{socket}).Status(t.Context()); !errors.Is(err, ErrNoServer) {
		t.Errorf("a closed server took a request: %v", err)
	}
	close(goOn)
	if got := await(t, answer); got != "late<nil>" {
		t.Errorf("answer %q", got)
	}
	await(t, ended)
}

func TestCloseIdleLosesNoRequest(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "d.sock")
	f := newFake()
	s, ended := serve(t, socket, f)
	if s.CloseIdle(func() bool { return false }) {
		t.Fatal("closed against the will of idle")
	}
	var wg sync.WaitGroup
	var mounted, refused int
	var mu sync.Mutex
	for i := range 50 {
		wg.Go(func() {
			_, err := (&Client{socket}).Mount(t.Context(), mountRequest(fmt.Sprint("/m", i)), nil)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				mounted++
			case errors.Is(err, ErrNoServer):
				refused++
			default:
				t.Error(err)
			}
		})
	}
	idle := func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.mounted) == 0
	}
	closed := s.CloseIdle(idle)
	wg.Wait()
	if closed != (mounted == 0) || mounted+refused != 50 {
		t.Errorf("closed %v, %d mounted, %d refused", closed, mounted, refused)
	}
	s.Close()
	await(t, ended)
}
