package fuse

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// redirected mounts a tree that calls hook for each new directory.
func redirected(t *testing.T, hook func(m *mounted, path string) (func() error, bool)) *mounted {
	state := t.TempDir()
	var m atomic.Pointer[mounted]
	src := worktreetest.New(map[string]worktreetest.File{"sub/file": {Data: "x"}})
	m.Store(mountTree(t, src, filepath.Join(state, "inodes"), filepath.Join(state, "overlay"), Options{
		Redirect: func(path string) (func() error, bool) { return hook(m.Load(), path) },
	}))
	return m.Load()
}

// Lookups in a new directory that is to be redirected wait until the redirect is mounted. The process that mounts it
// does not wait.
func TestRedirectWaits(t *testing.T) {
	release, looked := make(chan struct{}), make(chan error, 1)
	letGo := sync.OnceFunc(func() { close(release) })
	defer letGo()
	var asked atomic.Int32
	m := redirected(t, func(m *mounted, path string) (func() error, bool) {
		asked.Add(1)
		return func() error {
			var st unix.Stat_t
			looked <- unix.Stat(m.path(path), &st) // as mount(2) does
			<-release
			return errors.New("bind: not permitted")
		}, path == "sub/node_modules"
	})
	m.run("ls", "-l", "sub", "/dev/null")
	var st unix.Stat_t
	// the kernel caches the missing entry
	if err := unix.Stat(m.path("sub/node_modules"), &st); !errors.Is(err, unix.ENOENT) {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(m.path("ordinary"), 0o777), os.Mkdir(m.path("sub/node_modules"), 0o777)); err != nil {
		t.Fatal(err)
	}
	if err := <-looked; err != nil {
		t.Errorf("stat by the process that mounts: %v", err)
	}
	touch := exec.Command("touch", m.path("sub/node_modules/inside"))
	if err := touch.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- touch.Wait() }()
	// a listing of the parent does not wait
	if out := m.run("ls", "sub", "ordinary"); out != "ordinary:\n\nsub:\nfile\nnode_modules\n" {
		t.Errorf("ls printed %q", out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := m.Unmount(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("unmount while a redirect is being mounted: got %v, want a time-out", err)
	}
	select {
	case err := <-ended:
		t.Fatalf("touch did not wait: %v", err)
	default:
	}
	letGo()
	if err := <-ended; err != nil {
		t.Errorf("touch after the failed redirect: %v", err)
	}
	if out := m.run("ls", "sub/node_modules"); out != "inside\n" {
		t.Errorf("directory after the failed redirect: got %q", out)
	}
	if n := m.logs.FilterMessage("redirect directory").Len(); n != 1 || asked.Load() != 2 {
		t.Errorf("got %d logged failures, want 1, and %d calls of the hook, want 2", n, asked.Load())
	}
	requests := m.requests(func() { m.run("ls", "sub/node_modules") })
	if requests["LOOKUP"] != 0 {
		t.Errorf("requests after the failed redirect: got %v", requests)
	}
}

// An interrupted process stops waiting for a redirect, and a mkdir that fails causes no redirect.
func TestRedirectInterrupted(t *testing.T) {
	release := make(chan struct{})
	m := redirected(t, func(_ *mounted, path string) (func() error, bool) {
		return func() error { <-release; return nil }, true
	})
	defer close(release)
	if err := os.Mkdir(m.path("sub"), 0o777); !errors.Is(err, unix.EEXIST) {
		t.Errorf("mkdir of an existing directory: got %v", err)
	}
	if err := os.Mkdir(m.path("target"), 0o777); err != nil {
		t.Fatal(err)
	}
	stat := exec.Command("stat", m.path("target"))
	if err := stat.Start(); err != nil {
		t.Fatal(err)
	}
	lookups := m.Stats()["LOOKUP"]
	m.until("stat sends a LOOKUP", func() bool { return m.Stats()["LOOKUP"] > lookups || m.Stats()["LOOKUP"] >= 4 })
	m.endsBy(stat, unix.SIGINT)
	if out := m.run("ls", "sub"); out != "file\n" {
		t.Errorf("ls printed %q", out)
	}
}

// A real bind mount is made between mkdir and the next use of the directory.
func TestRedirectBind(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount")
	}
	backing := t.TempDir()
	m := redirected(t, func(m *mounted, path string) (func() error, bool) {
		return func() error { return unix.Mount(backing, m.path(path), "", unix.MS_BIND, "") },
			filepath.Base(path) == "node_modules"
	})
	out := m.run("sh", "-ec",
		"mkdir -p sub/node_modules/a/b && echo inside > sub/node_modules/a/b/c && rmdir sub/node_modules 2>&1 || ls sub")
	t.Cleanup(func() {
		if err := unix.Unmount(m.path("sub/node_modules"), 0); err != nil {
			t.Error(err)
		}
	})
	if b, err := os.ReadFile(filepath.Join(backing, "a/b/c")); err != nil || string(b) != "inside\n" {
		t.Errorf("the redirect's directory has %q, %v; the shell printed %q", b, err, out)
	}
	if got := m.run("cat", "sub/node_modules/a/b/c"); got != "inside\n" {
		t.Errorf("the mount's own directory has %q", got)
	}
	if n := m.logs.FilterMessage("redirect directory").Len(); n != 0 {
		t.Errorf("log after the redirect: %v", m.logs.All())
	}
	if err := m.Unmount(t.Context()); !errors.Is(err, ErrBusy) {
		t.Errorf("unmount with a mount inside: got %v, want ErrBusy", err)
	}
}
