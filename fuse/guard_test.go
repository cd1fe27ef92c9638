package fuse

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// fakeGuard locks paths and everything below them.
type fakeGuard struct {
	active atomic.Bool
	warn   atomic.Bool

	mu      sync.Mutex
	locked  []string
	refused map[string]int
}

func (g *fakeGuard) Active() bool { return g.active.Load() }

func (g *fakeGuard) covers(path string, below bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range g.locked {
		if l == path || strings.HasPrefix(path, l+"/") || below && strings.HasPrefix(l, path+"/") {
			return true
		}
	}
	return false
}

func (g *fakeGuard) Locked(path string) bool { return !g.warn.Load() && g.covers(path, false) }

func (g *fakeGuard) Refuses(path string, below bool) bool {
	if !g.covers(path, below) {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refused[path]++
	return !g.warn.Load()
}

// attempts returns how often programs tried to change a path.
func (g *fakeGuard) attempts(path string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.refused[path]
}

// lock locks paths in a mount, as the daemon does when it learns of a lock.
func (g *fakeGuard) lock(m *mounted, paths ...string) {
	g.mu.Lock()
	g.locked, g.refused = paths, map[string]int{}
	g.mu.Unlock()
	g.active.Store(len(paths) > 0)
	nodes := m.tree.Kernel().Known(func(path string) (bool, bool) { return g.covers(path, false), g.covers(path, true) })
	m.Invalidate(worktree.Stale{Nodes: nodes})
}

// guardedMount mounts files that can be changed, with a guard.
func guardedMount(t *testing.T, files map[string]worktreetest.File) (*mounted, *fakeGuard) {
	g := &fakeGuard{}
	state := t.TempDir()
	o := Options{AllowOther: os.Getuid() == 0, Guard: g}
	return mountTree(t, worktreetest.New(files), filepath.Join(state, "inodes"), filepath.Join(state, "overlay"), o), g
}

var mutableFiles = map[string]worktreetest.File{
	"file": {Data: "content"}, "dir/sub/inner": {Data: "x"}, "link": {Mode: object.ModeSymlink, Data: "file"},
	"other": {Data: "o"},
}

// Every call that changes a locked path fails with EACCES, also of root and also if the kernel has cached everything.
func TestLockedPathsCannotBeChanged(t *testing.T) {
	m, g := guardedMount(t, mutableFiles)
	m.run("sh", "-c", "ls -lR . fresh; cat file; true")
	g.lock(m, "file", "fresh", "dir")
	calls := m.mutations()
	delete(calls, "unnamed file") // it has no path
	calls["open to read and write"] =
		func() error { fd, err := unix.Open(m.path("file"), unix.O_RDWR, 0); unix.Close(fd); return err }
	calls["move a directory above"] = func() error { return unix.Rename(m.path("dir"), m.path("dir2")) }
	calls["move over"] = func() error { return unix.Rename(m.path("other"), m.path("file")) }
	calls["openat2"] = func() error {
		fd, err := unix.Openat2(unix.AT_FDCWD, m.path("file"), &unix.OpenHow{Flags: unix.O_WRONLY})
		unix.Close(fd)
		return err
	}
	for what, f := range calls {
		if err := f(); !errors.Is(err, unix.EACCES) {
			t.Errorf("%s: got %v, want EACCES", what, err)
		}
	}
	for _, path := range []string{"file", "fresh", "dir", "dir/sub"} {
		if g.attempts(path) == 0 {
			t.Errorf("no change of %s was refused", path)
		}
	}
	if out := m.run("sh", "-c",
		"cat file link dir/sub/inner; stat -c %a file; echo new >new; echo n >>other; mv other dir2; cat new"); out != "contentcontentx444\nnew\n" {
		t.Errorf("reading and changing other files: got %q", out)
	}
	g.lock(m)
	for what, f := range calls {
		if err := f(); errors.Is(err, unix.EACCES) {
			t.Errorf("%s after the lock is gone: got %v", what, err)
		}
	}
}

// A program that had opened a file before it was locked cannot write to it any more.
func TestLockOfOpenFile(t *testing.T) {
	m, g := guardedMount(t, mutableFiles)
	if err := os.WriteFile(m.path("own"), []byte("own"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"file", "own"} {
		f, err := os.OpenFile(m.path(name), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		want, err := os.ReadFile(m.path(name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(want[:1], 0); err != nil {
			t.Fatal(err)
		}
		g.lock(m, name)
		if _, err := f.WriteAt([]byte("X"), 0); !errors.Is(err, unix.EACCES) {
			t.Errorf("write to %s: got %v, want EACCES", name, err)
		}
		if err := f.Truncate(0); !errors.Is(err, unix.EACCES) {
			t.Errorf("truncate %s: got %v, want EACCES", name, err)
		}
		if got, err := os.ReadFile(m.path(name)); err != nil || string(got) != string(want) {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, want)
		}
		g.lock(m)
		if _, err := f.WriteAt([]byte("Y"), 0); err != nil {
			t.Errorf("write to %s after the lock is gone: got %v", name, err)
		}
	}
}

// A write to a mapping sends no request before the kernel writes the page back. This WRITE is refused, and the kernel
// drops the page.
func TestLockOfMappedFile(t *testing.T) {
	m, g := guardedMount(t, mutableFiles)
	f, err := os.OpenFile(m.path("file"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data, err := unix.Mmap(int(f.Fd()), 0, 7, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(data)
	g.lock(m, "file")
	data[0] = 'X'
	if err := unix.Msync(data, unix.MS_SYNC); err == nil {
		t.Error("msync of a locked file: got no error")
	}
	await.Until(t, "the kernel drops the page", func() bool {
		got, err := os.ReadFile(m.path("file"))
		return err == nil && string(got) == "content"
	})
	if g.attempts("file") == 0 {
		t.Error("the write was not noticed")
	}
}

// Other users than root get EACCES from the kernel because of the permissions.
func TestLockForOtherUsers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	m, g := guardedMount(t, mutableFiles)
	if err := os.Chmod(m.path("file"), 0o666); err != nil {
		t.Fatal(err)
	}
	try := func() string {
		cmd := exec.Command("sh", "-c", "echo x >>file && echo done")
		cmd.Dir, cmd.SysProcAttr = m.dir, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	if out := try(); out != "done\n" {
		t.Skipf("another user cannot write: %s", out)
	}
	g.lock(m, "file")
	if out := try(); !strings.Contains(out, "Permission denied") {
		t.Errorf("write of another user: got %q", out)
	}
}

// A guard that only warns learns of every change.
func TestWarningGuard(t *testing.T) {
	m, g := guardedMount(t, mutableFiles)
	g.warn.Store(true)
	g.lock(m, "file", "dir")
	m.run("sh", "-c", "echo x >>file; rm dir/sub/inner; stat file")
	if a, b := g.attempts("file"), g.attempts("dir/sub/inner"); a == 0 || b == 0 {
		t.Errorf("noticed: got %d changes of file and %d of dir/sub/inner", a, b)
	}
	if out := m.run("cat", "file"); out != "contentx\n" {
		t.Errorf("file: got %q", out)
	}
}

// A mount without locks sends the same requests with and without a guard.
func TestGuardWithoutLocksIsFree(t *testing.T) {
	work := func(m *mounted) map[string]uint64 {
		return m.requests(func() {
			m.run("sh", "-c",
				"ls -lR .; cat file; echo x >>file; echo y >new; mv new dir/new; rm dir/new; cat file; stat file; chmod 600 file")
		})
	}
	undisturbed(t, func() (errs []error) {
		with, _ := guardedMount(t, mutableFiles)
		without := edit(t, mutableFiles)
		if a, b := work(with), work(without); !maps.Equal(a, b) {
			errs = append(errs, errors.New("requests differ"))
			t.Logf("requests with a guard: %v, without: %v", a, b)
		}
		return errs
	})
}
