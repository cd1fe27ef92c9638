package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

func TestSocketIsPrivate(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "run", "d.sock")
	serve(t, socket, newFake())
	for path, want := range map[string]os.FileMode{socket: 0o600, filepath.Dir(socket): 0o700} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("socket %s: got mode %v, %v", path, info.Mode(), err)
		}
	}
	open := filepath.Join(t.TempDir(), "open")
	if err := errors.Join(os.Mkdir(open, 0o777), os.Chmod(open, 0o777)); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(t.Context(), filepath.Join(open, "d.sock"), newFake(), zap.NewNop()); !errors.Is(err,
		os.ErrPermission) {
		t.Errorf("listen in a directory that all users may write to: got %v", err)
	}
}

func TestOneServerPerSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "d.sock")
	// The socket of a killed server exists, and the temporary file of one that was killed before it listened.
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
		t.Fatalf("got %d servers on one socket", len(won))
	}
	ended := make(chan struct{})
	go func() { won[0].Serve(t.Context()); close(ended) }()
	if _, err := (&Client{socket: socket}).Status(t.Context()); err != nil {
		t.Error(err)
	}
	won[0].Close()
	await(t, ended)
	if left, _ := os.ReadDir(filepath.Dir(socket)); len(left) != 0 {
		t.Errorf("files after the end: got %v", left)
	}
	if _, err := (&Client{socket: socket}).Status(t.Context()); !errors.Is(err, ErrNoServer) {
		t.Errorf("status after the end: got %v", err)
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
		t.Errorf("sockets: got %v, %v", got, err)
	}
	if _, err := os.Stat(dead); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket of the killed server still exists: %v", err)
	}
	if got, err := Sockets(t.Context(), filepath.Join(state, "none")); err != nil || len(got) != 0 {
		t.Errorf("sockets without a state directory: got %v, %v", got, err)
	}
}

func TestLongPathsWork(t *testing.T) {
	socket := filepath.Join(t.TempDir(), strings.Repeat("long/", 40), "d.sock")
	serve(t, socket, newFake())
	if _, err := (&Client{socket: socket}).Status(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := (&Client{socket: socket + "x"}).Status(t.Context()); !errors.Is(err, ErrNoServer) {
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
		t.Errorf("default state directory: got %q, %v", got, err)
	}
	t.Setenv("ARTIFACTFS_STATE", "/env")
	if got, _ := StateDir(""); got != "/env" {
		t.Errorf("state directory from the environment: got %q", got)
	}
	wd, _ := os.Getwd()
	if got, _ := StateDir("flag"); got != filepath.Join(wd, "flag") {
		t.Errorf("state directory from the flag: got %q", got)
	}
}

func TestShutdownEndsServe(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "d.sock")
	_, ended := serve(t, socket, newFake())
	if err := (&Client{socket: socket}).Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, ended)
}

func TestMountDuringShutdownIsNeverHalfMade(t *testing.T) {
	for _, end := range []error{nil, &Error{Code: ExitFailed, Cause: "busy"}} {
		t.Run(fmt.Sprint(end), func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "d.sock")
			f := newFake()
			arrived, decide := make(chan struct{}), make(chan error)
			f.shutdown = func() error {
				close(arrived)
				return <-decide
			}
			serve(t, socket, f)
			answers := make(chan error, 2)
			go func() { answers <- (&Client{socket: socket}).Shutdown(t.Context()) }()
			await(t, arrived)
			conn := rawRequest(t, socket, mountLine(t))
			if _, err := (&Client{socket: socket}).Status(t.Context()); err != nil { // other requests are served
				t.Error(err)
			}
			f.mu.Lock()
			if len(f.mounted) > 0 {
				t.Error("mount succeeded during a shutdown")
			}
			f.mu.Unlock()
			decide <- end
			if err := await(t, answers); (err == nil) != (end == nil) {
				t.Errorf("shutdown failed: %v", err)
			}
			line, err := readLine(bufio.NewReader(conn), maxMessage)
			// The kernel resets a connection that the server closes before it has read the request. Client treats both ends
			// alike.
			dropped := errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET)
			if end == nil && !dropped || end != nil && err != nil {
				t.Errorf("reply to the mount during a shutdown: got %s, %v", line, err)
			}
			f.mu.Lock()
			if (len(f.mounted) == 1) != (end != nil) {
				t.Errorf("mounts: got %d", len(f.mounted))
			}
			f.mu.Unlock()
			if end != nil {
				return
			}
			// The path can be used by the next server at once, even if the first has not ended yet.
			next, err := Listen(t.Context(), socket, f, zap.NewNop())
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() { next.Serve(t.Context()); close(ended) }()
			next.Close()
			await(t, ended)
		})
	}
}

func TestListenWaitsForOneThatIsEnding(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "d.sock")
	f := newFake()
	arrived, goOn := make(chan struct{}), make(chan struct{})
	f.mount = func(context.Context, MountRequest, func(Progress)) (MountReply, error) {
		close(arrived)
		<-goOn
		return MountReply{}, nil
	}
	first, _ := serve(t, socket, f)
	rawRequest(t, socket, mountLine(t))
	await(t, arrived)
	first.Close() // it still has a request to answer
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Listen(ctx, socket, f, zap.NewNop()); !errors.Is(err, ErrInUse) {
		t.Errorf("second server while the first ends: %v", err)
	}
	close(goOn)
	second, err := Listen(t.Context(), socket, f, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { second.Serve(t.Context()); close(ended) }()
	second.Close()
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
		r, err := (&Client{socket: socket}).Mount(t.Context(), mountRequest("/m"), nil)
		answer <- fmt.Sprint(r.ID, err)
	}()
	await(t, arrived)
	if s.CloseIdle(func() bool { return true }) {
		t.Error("the server was closed as idle while a request was in progress")
	}
	s.Close()
	if _, err := (&Client{socket: socket}).Status(t.Context()); !errors.Is(err, ErrNoServer) {
		t.Errorf("request to a closed server: got %v", err)
	}
	close(goOn)
	if got := await(t, answer); got != "late<nil>" {
		t.Errorf("reply: got %q", got)
	}
	await(t, ended)
}

func TestCloseIdleLosesNoRequest(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "d.sock")
	f := newFake()
	s, ended := serve(t, socket, f)
	if s.CloseIdle(func() bool { return false }) {
		t.Fatal("the server was closed although idle returned false")
	}
	var wg sync.WaitGroup
	var mounted, refused int
	var mu sync.Mutex
	for i := range 50 {
		wg.Go(func() {
			_, err := (&Client{socket: socket}).Mount(t.Context(), mountRequest(fmt.Sprint("/m", i)), nil)
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
		t.Errorf("got closed %v, %d mounted, %d refused", closed, mounted, refused)
	}
	s.Close()
	await(t, ended)
}

// die closes a server's descriptors without further actions, as a kill of its process does. Copies of the descriptors
// stay open.
func die(t *testing.T, s *Server) (listener, lock *os.File) {
	t.Helper()
	listener, lock, err := s.Files()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(int(lock.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	s.listener.Close()
	lock.Close()
	return listener, os.NewFile(uintptr(fd), "lock")
}

func TestAnotherServerGoesOn(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "d.sock")
	first, err := Listen(t.Context(), socket, newFake(), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	listener, lock := die(t, first)
	answer := make(chan error, 1)
	go func() {
		_, err := (&Client{socket: socket}).Status(context.Background())
		answer <- err
	}()
	if _, err := Dial(t.Context(), socket); err != nil {
		t.Errorf("connect before the successor listens: got %v", err)
	}
	if live, err := Sockets(t.Context(), filepath.Dir(filepath.Dir(socket))); err != nil || len(live) > 0 {
		t.Errorf("sockets: got %v, %v", live, err)
	}
	if _, err := takeLock(socket); !errors.Is(err, ErrInUse) {
		t.Errorf("the lock was free before the successor started: %v", err)
	}
	second, err := Inherit(t.Context(), socket, listener, lock, newFake(), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	copied, _, err := second.Files()
	if err != nil {
		t.Fatal(err)
	}
	defer copied.Close()
	closed := make(chan struct{})
	second.OnClose(func() { close(closed) })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { second.Serve(ctx); close(ended) }()
	if err := await(t, answer); err != nil {
		t.Errorf("client of the killed server: got %v", err)
	}
	cancel()
	await(t, closed)
	await(t, ended)
	l, err := takeLock(socket)
	if err != nil {
		t.Errorf("the lock is not free after the end: %v", err)
	} else {
		l.release()
	}
	if left, _ := filepath.Glob(socket + "*"); len(left) > 0 {
		t.Errorf("files after the end: got %v", left)
	}
}

// A server that was killed during its shutdown had already removed its socket.
func TestAnotherServerMakesTheSocketThatIsGone(t *testing.T) {
	for _, with := range []string{"listener", "none"} {
		socket := filepath.Join(t.TempDir(), "d.sock")
		first, err := Listen(t.Context(), socket, newFake(), zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		listener, lock := die(t, first)
		os.Remove(socket)
		if with == "none" {
			listener.Close()
			listener = nil
		}
		second, err := Inherit(t.Context(), socket, listener, lock, newFake(), zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { second.Serve(ctx); close(ended) }()
		if _, err := (&Client{socket: socket}).Status(t.Context()); err != nil {
			t.Errorf("listen with %s: %v", with, err)
		}
		cancel()
		await(t, ended)
	}
}
