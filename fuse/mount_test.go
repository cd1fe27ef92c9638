package fuse

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// commitTime is the time of every path in the tests' mounts.
var commitTime = time.Unix(1700000000, 0)

// mounted is a mount of a fake source.
type mounted struct {
	testing.TB
	*Server
	tree *worktree.Tree
	src  *worktreetest.Source
	dir  string
	logs *observer.ObservedLogs
}

func mount(t testing.TB, files map[string]worktreetest.File) *mounted {
	t.Helper()
	return mountSource(t, worktreetest.New(files), filepath.Join(t.TempDir(), "inodes"))
}

// mountSource mounts a source read-only with an inode table, and unmounts it when the test ends.
func mountSource(t testing.TB, src *worktreetest.Source, table string) *mounted {
	t.Helper()
	return mountTree(t, src, table, "", Options{ReadOnly: true})
}

// mountTree mounts a source, with an overlay unless overlay is "".
func mountTree(t testing.TB, src *worktreetest.Source, table, overlay string, o Options) *mounted {
	t.Helper()
	return mountWith(t, src, worktree.Options{Overlay: overlay}, table, o)
}

// mountWith mounts a source as a tree with these options.
func mountWith(t testing.TB, src *worktreetest.Source, w worktree.Options, table string, o Options) *mounted {
	t.Helper()
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		t.Skipf("FUSE is not available: %v", err)
	} else {
		f.Close()
	}
	core, logs := observer.New(zapcore.DebugLevel)
	w.Root, w.Time, w.UID, w.GID, w.Log = src.Root, commitTime, uint32(os.Getuid()), uint32(os.Getgid()), zap.New(core)
	tree, err := worktree.Open(table, src, w)
	if err != nil {
		t.Fatal(err)
	}
	o.FsName, o.StatFS, o.Log = "https://example.com/repo", "/", Sampled(zap.New(core))
	m := &mounted{TB: t, tree: tree, src: src, dir: t.TempDir(), logs: logs}
	if m.Server, err = Mount(tree, m.dir, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.end)
	return m
}

// edit mounts files so that they can be changed.
func edit(t testing.TB, files map[string]worktreetest.File) *mounted {
	t.Helper()
	state := t.TempDir()
	o := Options{AllowOther: os.Getuid() == 0}
	return mountTree(t, worktreetest.New(files), filepath.Join(state, "inodes"), filepath.Join(state, "overlay"), o)
}

// end unmounts, by force if necessary, so that a failing test leaves no hanging mount. On a busy machine, threads that
// no longer work for the test, such as the helper of a search, may have files of the mount open for some time, and the
// mount namespaces of other processes may contain it.
func (m *mounted) end() {
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	err := m.Unmount(ctx)
	for (errors.Is(err, ErrBusy) || errors.Is(err, ErrElsewhere)) && ctx.Err() == nil {
		err = m.Unmount(ctx)
	}
	if err != nil {
		m.Errorf("unmount: %v", err)
		if err := m.Detach(); err != nil {
			m.Error(err)
		}
		return
	}
	m.Wait()
	if err := m.tree.Close(); err != nil {
		m.Error(err)
	}
	if n := m.src.Unreleased(); n != 0 {
		m.Errorf("%d contents were not released", n)
	}
}

func (m *mounted) path(name string) string { return filepath.Join(m.dir, name) }

// run runs a command in the root of the mount and returns its output.
func (m *mounted) run(name string, args ...string) string {
	m.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = m.dir
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		errors.As(err, &exit)
		m.Fatalf("run %s %q: %v\n%s", name, args, err, exit.Stderr)
	}
	return string(out)
}

// requests returns the numbers of requests that f causes, by kind.
func (m *mounted) requests(f func()) map[string]uint64 {
	before := m.Stats()
	f()
	after := m.Stats()
	maps.DeleteFunc(after, func(kind string, n uint64) bool { return n == before[kind] })
	for kind, n := range before {
		if _, ok := after[kind]; ok {
			after[kind] -= n
		}
	}
	return after
}

// undisturbed repeats a count of requests up to three times, because other processes may drop the kernel's caches at
// the same time.
func undisturbed(t testing.TB, count func() []error) {
	t.Helper()
	var errs []error
	for range 3 {
		if errs = count(); len(errs) == 0 {
			return
		}
	}
	t.Error(errors.Join(errs...))
}

// dropCaches makes the kernel forget entries, attributes and pages.
func dropCaches(t testing.TB) {
	t.Helper()
	unix.Sync()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
		t.Skipf("cannot drop caches: %v", err)
	}
}
