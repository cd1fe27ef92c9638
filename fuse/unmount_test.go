package fuse

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

func TestUnmount(t *testing.T) {
	m := mount(t, map[string]worktreetest.File{"dir/file": {Data: "x"}})
	f, err := os.Open(m.path("dir/file"))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Unmount(t.Context()); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), m.dir) {
		t.Errorf("unmount of a mount in use: got %v, want ErrBusy", err)
	}
	if out := m.run("cat", "dir/file"); out != "x" {
		t.Errorf("read after the refused unmount: got %q", out)
	}
	f.Close()
	if err := m.Unmount(t.Context()); err != nil {
		t.Error(err)
	}
	m.Wait()
	if listed(m.dir) {
		t.Error("the directory is still mounted after Unmount")
	}
	if err := errors.Join(m.Unmount(t.Context()), m.Detach()); err != nil {
		t.Errorf("second Unmount: %v", err)
	}
}

// A detached mount disappears from the directory, and continues to serve open files.
func TestDetach(t *testing.T) {
	m := mount(t, map[string]worktreetest.File{"file": {Data: "x"}})
	f, err := os.Open(m.path("file"))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Detach(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(m.path("file")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("stat of a file of the detached mount: got %v", err)
	}
	b := make([]byte, 10)
	if n, err := f.Read(b); err != nil || string(b[:n]) != "x" {
		t.Errorf("read of an open file: got %q, %v", b[:n], err)
	}
	f.Close()
	m.Wait()
}

// A server ends when another process unmounts its mount.
func TestUnmountedByOthers(t *testing.T) {
	m := mount(t, map[string]worktreetest.File{"file": {Data: "x"}})
	if err := unix.Unmount(m.dir, 0); err != nil {
		t.Skipf("cannot unmount: %v", err)
	}
	m.Wait()
}

// A request that waits for ever, and whose process has been killed, does not prevent the unmount.
func TestUnmountEndsWaiting(t *testing.T) {
	m := mount(t, map[string]worktreetest.File{"slow": {Data: "x"}})
	m.run("stat", "slow")
	m.src.Rule("slow", worktreetest.Rule{Block: make(chan struct{})})
	m.endsBy(m.start("slow", "cat", "slow"), syscall.SIGINT)
	if n := m.src.Waiting("slow"); n == 0 {
		t.Log("the kernel sent an interrupt")
	}
	if err := m.Unmount(t.Context()); err != nil {
		t.Error(err)
	}
	m.Wait()
}

func TestMountErrors(t *testing.T) {
	src := worktreetest.New(nil)
	tree, err := worktree.Open(filepath.Join(t.TempDir(), "inodes"), src, worktree.Options{Root: src.Root})
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	none := filepath.Join(t.TempDir(), "none")
	if s, err := Mount(tree, none, Options{}); err == nil {
		t.Error("a mount at a missing directory succeeded")
		s.Unmount(context.Background())
	} else if !strings.Contains(err.Error(), none) {
		t.Errorf("error %v does not name the directory", err)
	}
}

// A new mount with the same inode table shows the same inode numbers.
func TestSuccessorMount(t *testing.T) {
	table := filepath.Join(t.TempDir(), "inodes")
	files := trickyFiles()
	first := mountSource(t, worktreetest.New(files), table)
	const list = "find . -maxdepth 40 -printf '%i %p\\n'"
	before := first.run("sh", "-c", list)
	first.end()
	second := mountSource(t, worktreetest.New(files), table)
	if after := second.run("sh", "-c", list); after != before {
		t.Errorf("inode numbers differ: got\n%.1000s\nwant\n%.1000s", after, before)
	}
	if n := second.src.Calls("Tree"); n != 0 {
		t.Errorf("the new mount requested %d trees again", n)
	}
}

// df and mount(8) show the remote as the source, and the type fuse.artifactfs.
func TestMountTable(t *testing.T) {
	m := mount(t, map[string]worktreetest.File{"x": {}})
	table, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); f[1] == m.dir {
			if f[0] != "https://example.com/repo" || f[2] != "fuse.artifactfs" || !strings.HasPrefix(f[3], "ro,nosuid,nodev") {
				t.Errorf("line of the mount table: got %s", line)
			}
			return
		}
	}
	t.Error("the mount is not in the mount table")
}
