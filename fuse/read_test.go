package fuse

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// trickyFiles returns all kinds of entries, and names that programs often handle wrongly.
func trickyFiles() map[string]worktreetest.File {
	return map[string]worktreetest.File{
		"plain.txt":                            {Data: "hello\n"},
		"empty":                                {},
		"crlf.txt":                             {Data: "a\r\nb\r\n"},
		"bin/run.sh":                           {Mode: object.ModeExec, Data: "#!/bin/sh\necho ran \"$0\"\n"},
		"link":                                 {Mode: object.ModeSymlink, Data: "plain.txt"},
		"dangling":                             {Mode: object.ModeSymlink, Data: "../\xff/nowhere"},
		"module":                               {Mode: object.ModeGitlink},
		"latin1 \xe9":                          {Data: "not UTF-8"},
		"new\nline":                            {Data: "x"},
		"-rf":                                  {Data: "dash"},
		"\x01\x7f":                             {Data: "control"},
		strings.Repeat("n", object.MaxNameLen): {Data: "longest name"},
		strings.Repeat("d/", 1500) + "deep":    {Data: "down here"},
		"page":                                 {Data: strings.Repeat("p", os.Getpagesize())},
		"page and one":                         {Data: strings.Repeat("q", os.Getpagesize()+1)},
		"large":                                {Data: strings.Repeat("0123456789abcdef", 300_000)},
	}
}

// The mount shows the files of the source with the same contents, modes and link targets.
func TestContents(t *testing.T) {
	files := trickyFiles()
	m := mount(t, files)
	for _, when := range []string{"cold", "warm", "caches dropped"} {
		if when == "caches dropped" {
			dropCaches(t)
		}
		for path, f := range files {
			if err := m.compare(path, f); err != nil {
				t.Errorf("compare file, %s: %.60q: %v", when, path, err)
			}
		}
	}
	if out := m.run("bin/run.sh"); out != "ran bin/run.sh\n" {
		t.Errorf("script printed %q", out)
	}
	if out := m.run("find", ".", "-type", "f"); strings.Count(out, "\n") != 14 { // 13 files, one with a newline
		t.Errorf("find printed %d lines:\n%.2000s", strings.Count(out, "\n"), out)
	}
}

// compare checks one path, descending by file descriptors because a path may be longer than PATH_MAX.
func (m *mounted) compare(path string, f worktreetest.File) error {
	dir, err := unix.Open(m.dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer func() { unix.Close(dir) }()
	parts := strings.Split(path, "/")
	for _, name := range parts[:len(parts)-1] {
		next, err := unix.Openat(dir, name, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		unix.Close(dir)
		dir = next
	}
	name := parts[len(parts)-1]
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mtim.Sec != commitTime.Unix() || st.Uid != uint32(os.Getuid()) {
		return fmt.Errorf("got mtime %d and uid %d", st.Mtim.Sec, st.Uid)
	}
	wantMode, wantSize := uint32(syscall.S_IFREG|0o644), int64(len(f.Data))
	switch f.Mode {
	case object.ModeExec:
		wantMode = syscall.S_IFREG | 0o755
	case object.ModeSymlink:
		wantMode = syscall.S_IFLNK | 0o777
	case object.ModeGitlink:
		wantMode, wantSize = syscall.S_IFDIR|0o755, st.Size
	}
	if st.Mode != wantMode || st.Size != wantSize {
		return fmt.Errorf("got mode %o and size %d, want %o and %d", st.Mode, st.Size, wantMode, wantSize)
	}
	switch f.Mode {
	case object.ModeGitlink:
		return nil
	case object.ModeSymlink:
		b := make([]byte, 4096)
		n, err := unix.Readlinkat(dir, name, b)
		if err != nil || string(b[:n]) != f.Data {
			return fmt.Errorf("got link target %q, %v", b[:max(n, 0)], err)
		}
		return nil
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	got, err := io.ReadAll(file)
	if err != nil || string(got) != f.Data {
		return fmt.Errorf("contents of %d bytes differ from the source, %v", len(got), err)
	}
	return nil
}

// A file of 1 GiB can be read or mapped without this process keeping its contents in memory.
func TestLargeFile(t *testing.T) {
	const size, marked = 1 << 30, 700<<20 + 123
	disk, err := os.Create(filepath.Join(t.TempDir(), "content"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { disk.Close() }) // runs after the unmount, which waits for readahead
	const offset = 4096 + 77           // contents may start at any offset of the file that stores them
	if err := disk.Truncate(offset + size); err != nil {
		t.Fatal(err)
	}
	if _, err := disk.WriteAt([]byte("the mark"), offset+marked); err != nil {
		t.Fatal(err)
	}
	m := mount(t, map[string]worktreetest.File{"large": {OnDisk: disk, Offset: offset, Size: size}})
	before := residentBytes(t)
	f, err := os.Open(m.path("large"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := sameBytes(f, io.NewSectionReader(disk, offset, size)); err != nil {
		t.Error(err)
	}
	if grown := residentBytes(t) - before; grown > 32<<20 && !await.Race {
		t.Errorf("resident memory grew by %d MiB", grown>>20)
	}
	mapped, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mapped)
	if got := string(mapped[marked : marked+8]); got != "the mark" {
		t.Errorf("read from the mapping: got %q", got)
	}
	if off, err := f.Seek(0, unix.SEEK_DATA); off != 0 || err != nil {
		t.Errorf("SEEK_DATA: got %d, %v", off, err)
	}
}

// sameBytes reads both to the end, and returns an error if they differ.
func sameBytes(a, b io.Reader) error {
	bufA, bufB := make([]byte, 1<<20), make([]byte, 1<<20)
	for off := int64(0); ; off += int64(len(bufA)) {
		nA, errA := io.ReadFull(a, bufA)
		nB, errB := io.ReadFull(b, bufB)
		if !bytes.Equal(bufA[:nA], bufB[:nB]) || !errors.Is(errA, errB) {
			return fmt.Errorf("contents differ after offset %d: read %d and %d bytes, errors %v and %v", off, nA, nB, errA, errB)
		}
		if errA != nil {
			return nil
		}
	}
}

// A directory of 20,000 names returns each entry once and in order, also after seeks, and the server keeps no state for
// open directories.
func TestLargeDirectory(t *testing.T) {
	const n = 20_000
	files := make(map[string]worktreetest.File, n)
	for i := range n {
		files[fmt.Sprintf("big/%05d", i)] = worktreetest.File{Data: "x"}
	}
	m := mount(t, files)
	m.src.KnowsSizes.Store(true)
	undisturbed(t, func() (errs []error) {
		for _, limit := range []uint64{n / 100, 0} { // cold, warm
			requests := m.requests(func() {
				if out := m.run("ls", "-f", "big"); strings.Count(out, "\n") != n+2 {
					errs = append(errs, fmt.Errorf("ls printed %d lines", strings.Count(out, "\n")))
				}
			})
			if total(requests) > limit {
				errs = append(errs, fmt.Errorf("listing sent the requests %v, want at most %d", requests, limit))
			}
		}
		return errs
	})
	fd, err := unix.Open(m.path("big"), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for _, dropped := range []bool{false, true} {
		if dropped {
			dropCaches(t)
		}
		buf := make([]byte, 32<<10)
		all := readDirents(t, fd, buf, -1)
		if len(all) != n+2 || all[0].name != "." || all[1].name != ".." || all[2].name != "00000" ||
			all[n+1].name != fmt.Sprintf("%05d", n-1) {
			t.Fatalf("entries of the directory: got %d", len(all))
		}
		for _, at := range []int{n / 2, 3, n, 0, 1, 2, n + 1} { // seekdir, backwards and forwards
			off := int64(0)
			if at > 0 {
				off = all[at-1].off
			}
			if _, err := unix.Seek(fd, off, 0); err != nil {
				t.Fatal(err)
			}
			if got := readDirents(t, fd, buf, 1); len(got) == 0 || got[0] != all[at] {
				t.Errorf("entry after a seek to position %d: got %v, want %v", at, got, all[at])
			}
		}
		if _, err := unix.Seek(fd, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
}

type dirent struct {
	name     string
	ino      uint64
	off      int64 // position of the next entry
	fileType uint8
}

// readDirents reads the rest of the directory with getdents64(2), or only the first few buffers.
func readDirents(t *testing.T, fd int, buf []byte, buffers int) []dirent {
	t.Helper()
	var all []dirent
	for ; buffers != 0; buffers-- {
		n, err := unix.Getdents(fd, buf)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			break
		}
		for rest := buf[:n]; len(rest) > 0; {
			u16, u64 := func(b []byte) uint16 { return uint16(b[0]) | uint16(b[1])<<8 }, func(b []byte) (v uint64) {
				for i := 7; i >= 0; i-- {
					v = v<<8 | uint64(b[i])
				}
				return v
			}
			length := u16(rest[16:])
			name, _, _ := bytes.Cut(rest[19:length], []byte{0})
			all = append(all, dirent{string(name), u64(rest), int64(u64(rest[8:])), rest[18]})
			rest = rest[length:]
		}
	}
	return all
}

func TestInodesAgree(t *testing.T) {
	m := mount(t, map[string]worktreetest.File{"dir/file": {}, "dir/sub/x": {}})
	fd, err := unix.Open(m.path("dir"), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for _, e := range readDirents(t, fd, make([]byte, 4096), -1) {
		var st unix.Stat_t
		if err := unix.Lstat(m.path("dir/"+e.name), &st); err != nil || st.Ino != e.ino || st.Mode>>12 != uint32(e.fileType) {
			t.Errorf("%s: getdents returned inode %d and type %d, lstat inode %d, mode %o, %v", e.name, e.ino, e.fileType,
				st.Ino, st.Mode, err)
		}
	}
}

// Concurrent readers of many files all read the right contents.
func TestParallelReads(t *testing.T) {
	files := make(map[string]worktreetest.File)
	for i := range 300 {
		files[fmt.Sprintf("d%d/f%d", i%5, i)] = worktreetest.File{Data: strings.Repeat(fmt.Sprintf("%d\n", i), 1+i*20)}
	}
	m := mount(t, files)
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			for path, f := range files {
				if err := m.compare(path, f); err != nil {
					t.Errorf("compare file %s: %v", path, err)
				}
			}
		})
	}
	all.Wait()
}

// If the source returned a wrong size, no read returns wrong bytes: the first read fails or returns the right contents,
// and the second returns the right contents.
func TestResized(t *testing.T) {
	m := mount(t, map[string]worktreetest.File{"more": {Data: "the real content", Size: 5},
		"less": {Data: "real", Size: 50}})
	for _, name := range []string{"more", "less"} {
		want := map[string]string{"more": "the real content", "less": "real"}[name]
		if got, err := os.ReadFile(m.path(name)); !errors.Is(err, syscall.EIO) && string(got) != want {
			t.Errorf("%s: first read: got %q, %v", name, got, err)
		}
		if got, err := os.ReadFile(m.path(name)); err != nil || string(got) != want {
			t.Errorf("%s: second read: got %q, %v", name, got, err)
		}
		if st, err := os.Stat(m.path(name)); err != nil || st.Size() != int64(len(want)) {
			t.Errorf("%s: stat after the reads: got size %d, %v", name, st.Size(), err)
		}
	}
}

// If the file that stores contents is truncated while it is open, a read is an error and not a short read.
func TestCutContent(t *testing.T) {
	disk, err := os.Create(filepath.Join(t.TempDir(), "content"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { disk.Close() })
	const size = 1 << 20
	if err := disk.Truncate(size / 2); err != nil {
		t.Fatal(err)
	}
	m := mount(t, map[string]worktreetest.File{"cut": {OnDisk: disk, Size: size}})
	if got, err := os.ReadFile(m.path("cut")); !errors.Is(err, syscall.EIO) {
		t.Errorf("read of a truncated file: got %d bytes, %v, want EIO", len(got), err)
	}
	if st, err := os.Stat(m.path("cut")); err != nil || st.Size() != size {
		t.Errorf("stat after the failed read: got %v, %v", st, err)
	}
}
