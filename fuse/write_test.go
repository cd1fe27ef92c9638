package fuse

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// The number of requests of a change determines its speed. After a change of entries the kernel requests the attributes
// of the directory once. FORGET is sent at any time.
func TestWriteRequests(t *testing.T) {
	files := map[string]worktreetest.File{"dir/known": {Data: "content"}, "dir/x": {Data: "x"}, "dir/y": {Data: "y"},
		"dir/z": {Data: "z"}}
	undisturbed(t, func() []error { return countWrites(t, edit(t, files)) })
}

func countWrites(t *testing.T, m *mounted) (errs []error) {
	m.src.KnowsSizes.Store(true)
	write := func(name string, flags int) func() error {
		return func() error {
			fd, err := unix.Open(m.path(name), flags, 0o666)
			if err != nil {
				return err
			}
			_, err = unix.Write(fd, []byte("hello"))
			return errors.Join(err, unix.Close(fd))
		}
	}
	stat := func(name string) func() error {
		return func() error {
			_, err := os.Lstat(m.path(name))
			return err
		}
	}
	const create = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL
	// OPEN, CREATE and FLUSH are sent once in the life of a mount, here for the first file.
	for _, f := range []func() error{write("first", create), stat("dir/known"), stat("dir/none"), stat(".")} {
		if err := ignore(f(), unix.ENOENT); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		what string
		do   func() error
		want counts
	}{
		{"create", write("dir/new", create), counts{"LOOKUP": 1, "MKNOD": 1, "GETXATTR": 1, "WRITE": 1}},
		{"create another", write("dir/new too", create),
			counts{"GETATTR": 1, "LOOKUP": 1, "MKNOD": 1, "GETXATTR": 1, "WRITE": 1}},
		{"stat after write", stat("dir/new"), counts{"GETATTR": 2}}, // the directory, and the file's size and times
		{"stat again", stat("dir/new"), counts{}},
		{"change times", func() error { return os.Chtimes(m.path("dir/new"), commitTime, commitTime) }, counts{"SETATTR": 1}},
		{"overwrite", write("dir/new", unix.O_WRONLY), counts{"GETXATTR": 1, "WRITE": 1}},
		{"truncate and write", write("dir/new", unix.O_WRONLY|unix.O_TRUNC), counts{"GETXATTR": 1, "WRITE": 1, "SETATTR": 1}},
		{"unlink", func() error { return unix.Unlink(m.path("dir/new")) }, counts{"UNLINK": 1}},
		{"look for it", func() error { _, err := os.Lstat(m.path("dir/new")); return ignore(err, unix.ENOENT) },
			counts{"GETATTR": 1, "LOOKUP": 1}},
		{"unlink of the base", func() error { return unix.Unlink(m.path("dir/x")) }, counts{"LOOKUP": 1, "UNLINK": 1}},
		{"rename of the base", func() error { return unix.Rename(m.path("dir/y"), m.path("dir/z")) },
			counts{"GETATTR": 1, "LOOKUP": 2, "RENAME": 1}},
		{"chmod", func() error { return unix.Chmod(m.path("dir/z"), 0o600) }, counts{"GETATTR": 1, "SETATTR": 1}},
		{"mkdir", func() error { return unix.Mkdir(m.path("sub"), 0o777) }, counts{"LOOKUP": 1, "MKDIR": 1}},
		{"rmdir", func() error { return unix.Rmdir(m.path("sub")) }, counts{"GETATTR": 1, "RMDIR": 1}},
	} {
		got := m.requests(func() {
			if err := c.do(); err != nil {
				t.Errorf("call %s: %v", c.what, err)
			}
		})
		delete(got, "FORGET")
		if fmt.Sprint(got) != fmt.Sprint(map[string]uint64(c.want)) {
			errs = append(errs, fmt.Errorf("%s: sent the requests %v, want %v", c.what, got, c.want))
		}
	}
	return errs
}

// Files that were read once are read again without any request, except that grep looks for holes in a large file. A
// changed file costs requests of its own, and the others still none.
func TestWarmReads(t *testing.T) {
	files := manyFiles(300)
	files["large"] = worktreetest.File{Data: pattern(200 << 10)}
	undisturbed(t, func() []error { return countWarmReads(t, edit(t, files)) })
}

func countWarmReads(t *testing.T, m *mounted) (errs []error) {
	m.src.KnowsSizes.Store(true)
	search := func() map[string]uint64 {
		got := m.requests(func() { m.run("sh", "-c", "grep -r nothing .; find . -size +100k; true") })
		delete(got, "FORGET")
		return got
	}
	expect := func(what string, want counts) {
		if got := search(); fmt.Sprint(got) != fmt.Sprint(map[string]uint64(want)) {
			errs = append(errs, fmt.Errorf("search %s: sent the requests %v, want %v", what, got, want))
		}
	}
	search()
	search() // the first stat after a READ sends a GETATTR, because the READ has invalidated the access time
	expect("of unchanged files", counts{"LSEEK": 1})
	name := strings.Fields(m.run("find", ".", "-name", "*.go"))[7]
	if err := os.WriteFile(m.path(name), []byte("a longer text than before"), 0o644); err != nil {
		t.Fatal(err)
	}
	search()
	search()
	expect("after a change", counts{"LSEEK": 1})
	f, err := os.OpenFile(m.path(name), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("more"); err != nil {
		t.Fatal(err)
	}
	expect("beside a file that was appended to", counts{"GETATTR": 1, "LSEEK": 1})
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	expect("after the close", counts{"LSEEK": 1})
	return errs
}

func ignore(err, what error) error {
	if errors.Is(err, what) {
		return nil
	}
	return err
}

// Written data is read back, by other processes, after caches were dropped, and after a remount.
func TestWrite(t *testing.T) {
	m := edit(t, map[string]worktreetest.File{"dir/base": {Data: pattern(10_000)}})
	want := []byte(pattern(10_000))
	f, err := os.OpenFile(m.path("dir/base"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i, w := range []struct {
		off  int
		data string
	}{{0, "start"}, {4090, "across a page"}, {9_995, "across the end"}, {20_000, "behind a hole"}} {
		if _, err := f.WriteAt([]byte(w.data), int64(w.off)); err != nil {
			t.Fatal(err)
		}
		if end := w.off + len(w.data); end > len(want) {
			want = append(want, make([]byte, end-len(want))...)
		}
		copy(want[w.off:], w.data)
		if i%2 == 0 {
			dropCaches(t)
		}
		if got, err := os.ReadFile(f.Name()); err != nil || !bytes.Equal(got, want) {
			t.Errorf("write %d: read %d bytes, want %d, %v", i, len(got), len(want), err)
		}
	}
	if err := errors.Join(f.Sync(), unix.Fdatasync(int(f.Fd()))); err != nil {
		t.Errorf("sync failed: %v", err)
	}
	if err := os.Truncate(f.Name(), 5_000); err != nil {
		t.Error(err)
	}
	dropCaches(t)
	if got, err := os.ReadFile(f.Name()); err != nil || !bytes.Equal(got, want[:5_000]) {
		t.Errorf("read after truncate: got %d bytes, %v", len(got), err)
	}
}

// The process that creates a file with a read-only mode can write through the descriptor of the creation.
func TestCreateReadOnly(t *testing.T) {
	m := edit(t, nil)
	fd, err := unix.Open(m.path("first"), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o444)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(fd, []byte("x")); err != nil {
		t.Error(err)
	}
	unix.Close(fd)
	if _, err := unix.Open(m.path("first"), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o444); !errors.Is(err, unix.EEXIST) {
		t.Errorf("create with O_EXCL again: got %v, want EEXIST", err)
	}
	if os.Getuid() != 0 {
		return
	}
	if err := os.Chmod(m.dir, 0o777); err != nil {
		t.Fatal(err)
	}
	open(t, m.dir)
	out, err := m.as(65534, "sh", "-c",
		"umask 0333; set -C; echo mine > second && cat second && ! echo more 2>/dev/null >> second")
	if err != nil || out != "mine\n" {
		t.Errorf("create and write as user nobody: got %q, %v", out, err)
	}
	if st, err := os.Stat(m.path("second")); err != nil || st.Sys().(*syscall.Stat_t).Uid != 65534 || st.Mode() != 0o444 {
		t.Errorf("stat of the file that user nobody created: got %v, %v", st, err)
	}
}

// open makes a directory of the test and its parents searchable for other users.
func open(t *testing.T, dir string) {
	for ; len(dir) > len(os.TempDir()); dir = dir[:strings.LastIndexByte(dir, '/')] {
		if st, err := os.Stat(dir); err != nil || os.Chmod(dir, st.Mode()|0o055) != nil {
			t.Fatalf("open %s: %v", dir, err)
		}
	}
}

// as runs a command in the mount's root as another user.
func (m *mounted) as(uid uint32, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = m.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// A write or truncate by an unprivileged user clears the set-user-ID and set-group-ID bits, as on other file systems.
func TestSetUserID(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can write as another user")
	}
	const fallocateAndStat = `python3 -c 'import os
f = os.open("f", os.O_WRONLY)
os.posix_fallocate(f, 0, 5000)
assert os.fstat(f).st_mode & 0o7777 == 0o777, oct(os.fstat(f).st_mode)'`
	m := edit(t, nil)
	open(t, m.dir)
	for _, command := range []string{"echo x >> f", ": > f", "echo x 1<> f", "truncate -s 1 f", "fallocate -l 5000 f",
		fallocateAndStat} {
		if err := errors.Join(os.WriteFile(m.path("f"), []byte("#!/bin/sh\n"), 0o777),
			os.Chmod(m.path("f"), 0o777|os.ModeSetuid|os.ModeSetgid)); err != nil {
			t.Fatal(err)
		}
		if out, err := m.as(65534, "sh", "-c", command); err != nil {
			t.Errorf("run %q as another user: %v\n%s", command, err, out)
		}
		if st, err := os.Stat(m.path("f")); err != nil || st.Mode() != 0o777 {
			t.Errorf("mode after %q: got %v (error %v), want 0777 without setuid and setgid", command, st.Mode(), err)
		}
	}
	if err := errors.Join(os.Chmod(m.path("f"), 0o777|os.ModeSetuid),
		os.WriteFile(m.path("f"), []byte("root may"), 0)); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(m.path("f")); err != nil || st.Mode() != 0o777|os.ModeSetuid {
		t.Errorf("mode after a write by root: got %v, %v", st.Mode(), err)
	}
}

// File times are those that the kernel sends. Times that utimes sets stay, and only changes of contents change mtime.
func TestTimes(t *testing.T) {
	m := edit(t, map[string]worktreetest.File{"f": {Data: "x"}, "g": {Data: "y"}})
	times := func(name string) (mtime, ctime time.Time) {
		var st unix.Stat_t
		if err := unix.Lstat(m.path(name), &st); err != nil {
			t.Fatal(err)
		}
		return time.Unix(st.Mtim.Unix()), time.Unix(st.Ctim.Unix())
	}
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"chmod", func() error { return os.Chmod(m.path("f"), 0o600) }},
		{"link", func() error { return os.Link(m.path("f"), m.path("h")) }},
		{"rename", func() error { return os.Rename(m.path("h"), m.path("i")) }},
		{"read", func() error { _, err := os.ReadFile(m.path("f")); return err }},
		{"xattr", func() error { return unix.Setxattr(m.path("f"), "user.x", nil, 0) }},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if mtime, _ := times("f"); !mtime.Equal(commitTime) {
			t.Errorf("%s: unexpected mtime %v", step.what, mtime)
		}
	}
	if _, ctime := times("f"); ctime.Equal(commitTime) {
		t.Error("ctime did not change")
	}
	old := time.Unix(-1_000_000, 999_999_999)
	if err := os.Chtimes(m.path("g"), old, old); err != nil {
		t.Fatal(err)
	}
	dropCaches(t)
	if mtime, _ := times("g"); !mtime.Equal(old) {
		t.Errorf("mtime after utimes: got %v, want %v", mtime, old)
	}
	before := time.Now().Add(-time.Second)
	if err := os.WriteFile(m.path("g"), []byte("new"), 0); err != nil {
		t.Fatal(err)
	}
	mtime, ctime := times("g")
	dropCaches(t)
	if again, _ := times("g"); mtime.Before(before) || ctime.Before(before) || !again.Equal(mtime) {
		t.Errorf("times after a write: got mtime %v, ctime %v, later %v", mtime, ctime, again)
	}
}

// ftruncate(2) to the same size and an open with O_TRUNC change mtime, as on a local file system. File systems differ
// for truncate(2).
func TestTimesOfTruncation(t *testing.T) {
	m, local := edit(t, nil), t.TempDir()
	opened := func(flags int, cut bool) func(path string, size int64) error {
		return func(path string, size int64) error {
			fd, err := unix.Open(path, flags, 0)
			if err != nil || !cut {
				return errors.Join(err, unix.Close(fd))
			}
			return errors.Join(unix.Ftruncate(fd, size), unix.Close(fd))
		}
	}
	for _, c := range []struct {
		what     string
		size     int64
		truncate func(path string, size int64) error
	}{
		{"ftruncate", 5, opened(unix.O_WRONLY, true)},
		{"ftruncate", 0, opened(unix.O_WRONLY, true)},
		{"O_TRUNC", 0, opened(unix.O_WRONLY|unix.O_TRUNC, false)},
	} {
		changes := func(dir string) bool {
			path := filepath.Join(dir, "f")
			err := errors.Join(os.WriteFile(path, make([]byte, c.size), 0o644), os.Chtimes(path, commitTime, commitTime),
				c.truncate(path, c.size))
			st, statErr := os.Stat(path)
			if err := errors.Join(err, statErr); err != nil {
				t.Fatal(err)
			}
			return !st.ModTime().Equal(commitTime)
		}
		if got, want := changes(m.dir), changes(local); got != want {
			t.Errorf("%s to %d bytes changes mtime: got %v, want %v", c.what, c.size, got, want)
		}
	}
}

func TestSplitTime(t *testing.T) {
	for _, ns := range []int64{0, 1, -1, nanosPerSecond, -nanosPerSecond, 1<<62 + 5, -nanosPerSecond - 1} {
		sec, nsec := split(ns)
		if got := join(sec, nsec); got != ns || nsec >= nanosPerSecond {
			t.Errorf("time of %d ns: got %d s %d ns, and back %d", ns, int64(sec), nsec, got)
		}
	}
	if join(1<<62, 5) <= 0 || join(1<<63, 5) >= 0 {
		t.Error("times that are out of range overflow")
	}
}

// SEEK_HOLE and SEEK_DATA are correct, also for data that the kernel has not written back.
func TestSeek(t *testing.T) {
	m := edit(t, map[string]worktreetest.File{"base": {Data: pattern(10_000)}})
	f, err := os.Create(m.path("sparse"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("x"), 1<<20); err != nil {
		t.Fatal(err)
	}
	fd := int(f.Fd())
	if off, err := unix.Seek(fd, 0, unix.SEEK_DATA); err != nil || off > 1<<20 {
		t.Errorf("SEEK_DATA: got %d, %v", off, err)
	}
	if off, err := unix.Seek(fd, 1<<20, unix.SEEK_HOLE); off != 1<<20+1 || err != nil {
		t.Errorf("SEEK_HOLE: got %d, %v", off, err)
	}
	if _, err := unix.Seek(fd, 1<<20+1, unix.SEEK_DATA); !errors.Is(err, unix.ENXIO) {
		t.Errorf("seek behind the end: got %v, want ENXIO", err)
	}
	if _, err := f.WriteAt([]byte("y"), 0); err != nil {
		t.Fatal(err)
	}
	if off, err := unix.Seek(fd, 0, unix.SEEK_DATA); off != 0 || err != nil {
		t.Errorf("SEEK_DATA for new data: got %d, %v", off, err)
	}
	if b, err := os.ReadFile(f.Name()); err != nil || len(b) != 1<<20+1 || b[0] != 'y' || b[1<<20] != 'x' {
		t.Errorf("read the file with holes: got %d bytes, %v", len(b), err)
	}
	base, err := os.Open(m.path("base"))
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	if off, err := unix.Seek(int(base.Fd()), 5, unix.SEEK_HOLE); off != 10_000 || err != nil {
		t.Errorf("SEEK_HOLE in a base file: got %d, %v", off, err)
	}
}

// copy_file_range within the mount copies data that is only in the page cache.
func TestCopyRange(t *testing.T) {
	m := edit(t, map[string]worktreetest.File{"base": {Data: pattern(200_000)}, "other": {Data: pattern(50)}})
	from, err := os.OpenFile(m.path("base"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := os.OpenFile(m.path("other"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	want := []byte(pattern(200_000))
	copy(want[100:], "changed")
	if _, err := from.WriteAt([]byte("changed"), 100); err != nil {
		t.Fatal(err)
	}
	for left := 200_000; left > 0; {
		n, err := unix.CopyFileRange(int(from.Fd()), nil, int(to.Fd()), nil, left, 0)
		if err != nil || n == 0 {
			t.Fatalf("copy_file_range copied %d bytes with %d left: %v", n, left, err)
		}
		left -= n
	}
	if got, err := os.ReadFile(to.Name()); err != nil || !bytes.Equal(got, want) {
		t.Errorf("read the copy: got %d bytes, %v", len(got), err)
	}
	if m.Stats()["COPY_FILE_RANGE"] == 0 {
		t.Error("the kernel did not send COPY_FILE_RANGE")
	}
}

// A removed file can be used through open descriptors, and its contents are deleted when the last descriptor is closed.
func TestOpenUnlinked(t *testing.T) {
	m := edit(t, map[string]worktreetest.File{"base": {Data: pattern(10_000)}, "dir/base": {Data: "deep"}})
	if err := os.WriteFile(m.path("own"), []byte(pattern(10_000)), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"base", "own"} {
		f, err := os.OpenFile(m.path(name), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(f.Name()); err != nil {
			t.Fatal(err)
		}
		dropCaches(t)
		b := make([]byte, 20_000)
		if n, err := f.ReadAt(b, 0); string(b[:n]) != pattern(10_000) {
			t.Errorf("%s: read after the removal: got %d bytes, %v", name, n, err)
		}
		if _, err := f.WriteAt([]byte("more"), 10_000); err != nil {
			t.Errorf("%s: write after the removal: %v", name, err)
		}
		if err := f.Sync(); err != nil {
			t.Errorf("%s: sync after the removal: %v", name, err)
		}
		dropCaches(t)
		if n, _ := f.ReadAt(b, 9_998); string(b[:n]) != pattern(10_000)[9_998:]+"more" {
			t.Errorf("%s: read of the written data: got %q", name, b[:n])
		}
		if st, err := f.Stat(); err != nil || st.Size() != 10_004 || st.Sys().(*syscall.Stat_t).Nlink != 0 {
			t.Errorf("fstat of the removed file %s: got %+v, %v, want 10004 bytes and no link", name, st, err)
		}
		f.Close()
	}
	m.until("the contents of removed files are deleted", func() bool { return m.tree.Overlay().Stats().Contents == 0 })
}
