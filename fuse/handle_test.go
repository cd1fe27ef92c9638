package fuse

import (
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// A file handle opens its file or directory even if the kernel has forgotten the node and the file was renamed, and
// fails with ESTALE if the file was removed.
func TestFileHandles(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("open_by_handle_at(2) needs root")
	}
	files := map[string]worktreetest.File{
		"dir/sub/base": {Data: "base"}, "dir/sub/moved": {Data: "moved"}, "dir/sub/gone": {Data: "gone"},
		"linked": {Data: "linked"},
	}
	m := edit(t, files)
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(os.WriteFile(m.path("own"), []byte("own"), 0o644))
	check(os.WriteFile(m.path("own gone"), []byte("own gone"), 0o644))
	root, err := os.Open(m.dir)
	check(err)
	defer root.Close()
	handles := map[string]unix.FileHandle{}
	for _, name := range []string{"dir/sub", "dir/sub/base", "dir/sub/moved", "dir/sub/gone", "linked",
		"own", "own gone"} {
		h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, m.path(name), 0)
		check(err)
		handles[name] = h
	}
	check(os.Rename(m.path("dir/sub/moved"), m.path("dir/there")))
	check(os.Remove(m.path("dir/sub/gone")))
	check(os.Remove(m.path("own gone")))
	check(os.Link(m.path("linked"), m.path("dir/link")))
	check(os.Remove(m.path("linked")))

	open := func(name string) (*os.File, error) {
		fd, err := unix.OpenByHandleAt(int(root.Fd()), handles[name], unix.O_RDONLY)
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), name), nil
	}
	// The kernel sends a LOOKUP only if it has forgotten the node.
	asked := func(name string) (f *os.File, err error) {
		t.Helper()
		for deadline := time.Now().Add(await.Patience); ; time.Sleep(10 * time.Millisecond) {
			check(os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0))
			requests := m.requests(func() { f, err = open(name) })
			if requests["LOOKUP"] > 0 {
				return f, err
			}
			if err == nil {
				f.Close()
			}
			if time.Now().After(deadline) {
				t.Fatalf("open %s by its handle: %v without a LOOKUP, want the kernel to have forgotten it", name, err)
			}
		}
	}
	for name, want := range map[string]string{"dir/sub/base": "base", "dir/sub/moved": "moved", "linked": "linked",
		"own": "own"} {
		f, err := asked(name)
		if err != nil {
			t.Errorf("open %s by its handle: %v", name, err)
			continue
		}
		if got, err := io.ReadAll(f); err != nil || string(got) != want {
			t.Errorf("contents of %s by its handle: got %q (%v), want %q", name, got, err, want)
		}
		f.Close()
	}
	for _, name := range []string{"dir/sub/gone", "own gone"} {
		if f, err := asked(name); !errors.Is(err, unix.ESTALE) {
			t.Errorf("open %s, which was removed, by its handle: got %v (%v), want ESTALE", name, f, err)
		}
	}
	// The kernel connects a directory to the root by looking up "..".
	dir, err := asked("dir/sub")
	check(err)
	defer dir.Close()
	if names, err := dir.Readdirnames(-1); err != nil || len(names) != 1 || names[0] != "base" {
		t.Errorf("names in dir/sub by its handle: got %q (%v), want base", names, err)
	}
	if at, err := os.Readlink(fmt.Sprint("/proc/self/fd/", dir.Fd())); err != nil || at != m.path("dir/sub") {
		t.Errorf("path of dir/sub by its handle: got %q (%v), want %q", at, err, m.path("dir/sub"))
	}
}
