package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sharedPages maps two pages of a file. They are read before, for the reason that mapped states.
func sharedPages(path string) ([]byte, *os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	if _, err := f.ReadAt(make([]byte, 8192), 0); err != nil {
		return nil, nil, err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return mem, f, err
}

func posixTmpfile(t *testing.T, dir string) {
	fd := must[int](t)(unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR, 0o640))
	defer unix.Close(fd)
	_ = must[int](t)(unix.Write(fd, []byte("no name yet")))
	if entries := must[[]os.DirEntry](t)(os.ReadDir(dir)); len(entries) > 0 {
		t.Errorf("entries of the directory: got %v", entries)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Nlink != 0 {
		t.Errorf("stat of the unnamed file: got %d links, %v", st.Nlink, err)
	}
	path := filepath.Join(dir, "name")
	check(t, unix.Linkat(fd, "", unix.AT_FDCWD, path, unix.AT_EMPTY_PATH))
	if got, err := os.ReadFile(path); err != nil || string(got) != "no name yet" {
		t.Errorf("read the file after it got a name: got %q (%v), want \"no name yet\"", got, err)
	}
	if named := statOf(t, path); named.Ino != st.Ino || named.Nlink != 1 || named.Mode&0o777 != 0o640 {
		t.Errorf("stat of the named file: got %+v, want inode %d, one link, mode 640", named, st.Ino)
	}
	never := must[int](t)(unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_EXCL, 0o640))
	defer unix.Close(never)
	wants(t, "naming what never shall have a name", unix.Linkat(never, "", unix.AT_FDCWD, path+"2", unix.AT_EMPTY_PATH),
		unix.ENOENT)
}

func posixDirect(t *testing.T, dir string) {
	path := filepath.Join(dir, "file")
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_RDWR|unix.O_DIRECT, 0o644)
	if errors.Is(err, unix.EINVAL) {
		t.Skip("the file system does not support direct I/O")
	}
	check(t, err)
	defer unix.Close(fd)
	// aligned
	mem := must[[]byte](t)(unix.Mmap(-1, 0, 64<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE))
	defer unix.Munmap(mem)
	for i := range mem {
		mem[i] = byte(i / 100)
	}
	_ = must[int](t)(unix.Pwrite(fd, mem, 4096))
	got := must[[]byte](t)(os.ReadFile(path))
	if want := slices.Concat(make([]byte, 4096), mem); !bytes.Equal(got, want) {
		t.Error("read after a direct write" + where(got, want))
	}
	check(t, os.WriteFile(path, bytes.Repeat([]byte("b"), 8192), 0o644)) // the data stays in the page cache
	if n, err := unix.Pread(fd, mem[:8192], 0); n != 8192 || err != nil ||
		!bytes.Equal(mem[:8192], bytes.Repeat([]byte("b"), 8192)) {
		t.Errorf("direct read after a write: got %d bytes, %v", n, err)
	}
}

func posixSharedMemory(t *testing.T, dir string) {
	path := filepath.Join(dir, "file")
	check(t, os.WriteFile(path, make([]byte, 8192), 0o644))
	mem, f, err := sharedPages(path)
	check(t, err)
	defer f.Close()
	defer unix.Munmap(mem)
	c := child("memory", path)
	check(t, c.Start())
	mem[0] = 41
	check(t, c.Wait())
	if mem[4096] != 42 {
		t.Errorf("byte that another process wrote to the mapping: got %d, want 42", mem[4096])
	}
	_ = must[int](t)(f.WriteAt([]byte{43}, 1))
	if mem[1] != 43 {
		t.Error("the mapping does not show a write to the file")
	}
	mem[2] = 44
	if got := must[[]byte](t)(os.ReadFile(path)); !bytes.Equal(got[:3], []byte{41, 43, 44}) || got[4096] != 42 {
		t.Errorf("read after writes to the mapping: got %v and %d", got[:3], got[4096])
	}
}

func posixExecute(t *testing.T, dir string) {
	script, program := filepath.Join(dir, "script"), filepath.Join(dir, "program")
	check(t, writeProgram(script, []byte("#!/bin/sh\necho script\n")))
	if out, err := exec.Command(script).Output(); err != nil || string(out) != "script\n" {
		t.Errorf("run the script: got %q (%v), want \"script\\n\"", out, err)
	}
	data := must[[]byte](t)(os.ReadFile(must[string](t)(exec.LookPath("echo"))))
	check(t, writeProgram(program, data))
	if out, err := exec.Command(program, "program").Output(); err != nil || string(out) != "program\n" {
		t.Errorf("run the program: got %q (%v), want \"program\\n\"", out, err)
	}
	check(t, os.Chmod(program, 0o644))
	if err := exec.Command(program).Run(); err == nil {
		t.Error("a file without the execute permission was executed")
	}
}

func posixHardLinks(t *testing.T, dir string) {
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "sub", "b")
	check(t, os.Mkdir(filepath.Join(dir, "sub"), 0o755))
	check(t, os.WriteFile(a, []byte("one"), 0o644))
	check(t, os.Link(a, b))
	check(t, os.WriteFile(b, []byte("two!"), 0o644))
	check(t, os.Chmod(b, 0o600))
	if got := must[[]byte](t)(os.ReadFile(a)); string(got) != "two!" {
		t.Errorf("read the linked file: got %q", got)
	}
	if x, y := statOf(t, a), statOf(t, b); x != y || x.Nlink != 2 || x.Size != 4 || x.Mode&0o777 != 0o600 {
		t.Errorf("two names of one file: got stat %+v and %+v", x, y)
	}
	check(t, os.Rename(a, b)) // both are names of one file, so POSIX requires that rename does nothing
	if statOf(t, a).Nlink != 2 {
		t.Error("a rename onto another name of the file removed one")
	}
	check(t, os.Remove(a))
	if st := statOf(t, b); st.Nlink != 1 {
		t.Errorf("links after the unlink: got %d", st.Nlink)
	}
	wants(t, "link to a directory", os.Link(filepath.Join(dir, "sub"), filepath.Join(dir, "x")), unix.EPERM)
	wants(t, "link over a file", os.Link(b, b), unix.EEXIST)
}

func posixSpecialFiles(t *testing.T, dir string) {
	for name, c := range map[string]struct {
		mode uint32
		dev  uint64
	}{
		"character": {unix.S_IFCHR | 0o600, unix.Mkdev(1, 3)},
		"block":     {unix.S_IFBLK | 0o640, unix.Mkdev(7, 300)},
		"fifo":      {unix.S_IFIFO | 0o644, 0},
		"socket":    {unix.S_IFSOCK | 0o644, 0},
	} {
		path := filepath.Join(dir, name)
		check(t, unix.Mknod(path, c.mode, int(c.dev)))
		check(t, os.Rename(path, path+"2"))
		if st := statOf(t, path+"2"); st.Mode != c.mode || st.Rdev != c.dev || st.Size != 0 {
			t.Errorf("lstat %s: got mode %o, device %x, size %d", name, st.Mode, st.Rdev, st.Size)
		}
	}
}

func posixNames(t *testing.T, dir string) {
	names := []string{strings.Repeat("n", 255), strings.Repeat("é", 127), "new\nline", "-rf", "*", " ", "...", "\xff\xfe",
		"com1", "a:b", `back\slash`, "~", ".hidden", "Case", "case"}
	for c := 1; c < 256; c++ {
		if c != '/' {
			names = append(names, "byte-"+string([]byte{byte(c)}))
		}
	}
	for _, n := range names {
		check(t, os.WriteFile(dir+"/"+n, []byte(n), 0o644))
	}
	slices.Sort(names)
	var got []string
	for _, e := range must[[]os.DirEntry](t)(os.ReadDir(dir)) {
		got = append(got, e.Name())
	}
	if !slices.Equal(got, names) {
		t.Errorf("listed %q\nwant %q", got, names)
	}
	for _, n := range names {
		if b, err := os.ReadFile(dir + "/" + n); err != nil || string(b) != n {
			t.Errorf("read %q: got %q (%v), want its own name", n, b, err)
		}
	}
	long := dir + "/" + strings.Repeat("l", 256)
	wants(t, "create", os.WriteFile(long, nil, 0o644), unix.ENAMETOOLONG)
	wants(t, "mkdir", os.Mkdir(long, 0o755), unix.ENAMETOOLONG)
	wants(t, "rename", os.Rename(dir+"/case", long), unix.ENAMETOOLONG)
	wants(t, "link", os.Link(dir+"/case", long), unix.ENAMETOOLONG)
	wants(t, "symlink", os.Symlink("x", long), unix.ENAMETOOLONG)
	_, err := os.Lstat(long)
	wants(t, "lstat", err, unix.ENAMETOOLONG)
	target := strings.Repeat("t/", 2047) + "t"
	check(t, os.Symlink(target, dir+"/link"))
	if got, err := os.Readlink(dir + "/link"); err != nil || got != target {
		t.Errorf("readlink: got a target of %d bytes, %v", len(got), err)
	}
}

// posixDeep makes directories so deep that their path is longer than PATH_MAX.
func posixDeep(t *testing.T, dir string) {
	const levels = 40
	name := strings.Repeat("d", 200)
	fd := must[int](t)(unix.Open(dir, unix.O_DIRECTORY, 0))
	for range levels {
		check(t, unix.Mkdirat(fd, name, 0o755))
		next := must[int](t)(unix.Openat(fd, name, unix.O_DIRECTORY, 0))
		unix.Close(fd)
		fd = next
	}
	file := must[int](t)(unix.Openat(fd, "bottom", unix.O_CREAT|unix.O_WRONLY, 0o644))
	unix.Close(file)
	var st unix.Stat_t
	check(t, unix.Fstatat(fd, "bottom", &st, 0))
	unix.Close(fd)
	check(t, os.RemoveAll(filepath.Join(dir, name)))
}

// entry is a directory entry and the position after it.
type entry struct {
	name string
	next int64
}

// getdents reads some directory entries and leaves out "." and "..".
func getdents(t *testing.T, fd int, size int) (entries []entry) {
	t.Helper()
	buf := make([]byte, size)
	for {
		var n int
		check(t, retry(func() (err error) { n, err = unix.Getdents(fd, buf); return }))
		for b := buf[:n]; len(b) > 0; {
			d := (*unix.Dirent)(unsafe.Pointer(&b[0]))
			name, _, _ := bytes.Cut(b[unsafe.Offsetof(d.Name):d.Reclen], []byte{0})
			if s := string(name); s != "." && s != ".." {
				entries = append(entries, entry{s, d.Off})
			}
			b = b[d.Reclen:]
		}
		if n == 0 || len(entries) > 0 {
			return entries
		}
	}
}

// posixReadDir: while a directory is read and changed, each entry that is not changed is returned exactly once.
func posixReadDir(t *testing.T, dir string) {
	const stay, go1 = 1500, 1500
	for i := range stay {
		check(t, os.WriteFile(fmt.Sprintf("%s/stays-%04d", dir, i), nil, 0o644))
	}
	for i := range go1 {
		check(t, os.WriteFile(fmt.Sprintf("%s/goes-%04d", dir, i), nil, 0o644))
	}
	fd := must[int](t)(unix.Open(dir, unix.O_DIRECTORY, 0))
	defer unix.Close(fd)
	seen := map[string]int{}
	for round := 0; ; round++ {
		entries := getdents(t, fd, 2048)
		if len(entries) == 0 {
			break
		}
		for _, e := range entries {
			seen[e.name]++
		}
		for i := range 30 {
			k := (round*30 + i) % go1
			os.Remove(fmt.Sprintf("%s/goes-%04d", dir, k))
			check(t, os.WriteFile(fmt.Sprintf("%s/comes-%04d", dir, k), nil, 0o644))
			if i%10 == 0 {
				check(t, os.Rename(fmt.Sprintf("%s/comes-%04d", dir, k), fmt.Sprintf("%s/moves-%04d", dir, k)))
			}
		}
		if round > 10_000 {
			t.Fatal("reading the directory did not end")
		}
	}
	for i := range stay {
		if n := seen[fmt.Sprintf("stays-%04d", i)]; n != 1 {
			t.Fatalf("entry stays-%04d was returned %d times", i, n)
		}
	}
	// As rm -r does: read some entries, remove them, continue reading.
	check(t, unix.Fadvise(fd, 0, 0, 0))
	_, err := unix.Seek(fd, 0, 0)
	check(t, err)
	for {
		entries := getdents(t, fd, 4096)
		if len(entries) == 0 {
			break
		}
		for _, e := range entries {
			check(t, os.Remove(dir+"/"+e.name))
		}
	}
	if left := must[[]os.DirEntry](t)(os.ReadDir(dir)); len(left) > 0 {
		t.Errorf("%d entries were not removed", len(left))
	}
}

func posixSeekDir(t *testing.T, dir string) {
	for i := range 300 {
		check(t, os.WriteFile(fmt.Sprintf("%s/file-%d", dir, i), nil, 0o644))
	}
	fd := must[int](t)(unix.Open(dir, unix.O_DIRECTORY, 0))
	defer unix.Close(fd)
	var all []entry
	for {
		some := getdents(t, fd, 1024)
		if len(some) == 0 {
			break
		}
		all = append(all, some...)
	}
	if len(all) != 300 {
		t.Fatalf("entries of the directory: got %d", len(all))
	}
	for _, i := range []int{250, 3, 120, 298} {
		_, err := unix.Seek(fd, all[i].next, 0)
		check(t, err)
		if got := getdents(t, fd, 1024); len(got) == 0 || got[0].name != all[i+1].name {
			t.Errorf("entry after seeking behind %s: got %v, want %s", all[i].name, got, all[i+1].name)
		}
	}
}

func posixRemovedDirectory(t *testing.T, dir string) {
	sub := filepath.Join(dir, "sub")
	check(t, os.Mkdir(sub, 0o755))
	fd := must[int](t)(unix.Open(sub, unix.O_DIRECTORY, 0))
	defer unix.Close(fd)
	check(t, os.Remove(sub))
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		t.Errorf("fstat of the removed directory: %v", err)
	}
	// "." and ".." may be returned
	if n, err := unix.Getdents(fd, make([]byte, 1024)); n > 64 || err != nil && err != unix.ENOENT {
		t.Errorf("read the removed directory: got %d bytes of entries, %v", n, err)
	}
	_, err := unix.Openat(fd, "file", unix.O_CREAT|unix.O_WRONLY, 0o644)
	wants(t, "create", err, unix.ENOENT)
	wants(t, "mkdir", unix.Mkdirat(fd, "d", 0o755), unix.ENOENT)
	check(t, os.Mkdir(sub, 0o755))
	if other := statOf(t, sub); other.Ino == st.Ino {
		t.Log("the number of the removed directory was given again while it was open")
	}
}

func posixRename(t *testing.T, dir string) {
	p := func(name string) string { return filepath.Join(dir, name) }
	check(t, os.MkdirAll(p("a/b/c"), 0o755))
	check(t, os.MkdirAll(p("empty"), 0o755))
	check(t, os.WriteFile(p("file"), []byte("file"), 0o644))
	check(t, os.WriteFile(p("a/inner"), []byte("inner"), 0o644))
	wants(t, "into itself", os.Rename(p("a"), p("a/b/x")), unix.EINVAL)
	wants(t, "over a full directory", unix.Rename(p("empty"), p("a")), unix.ENOTEMPTY)
	wants(t, "over its parent", unix.Rename(p("a/b/c"), p("a")), unix.ENOTEMPTY)
	wants(t, "file over directory", unix.Rename(p("file"), p("empty")), unix.EISDIR)
	wants(t, "directory over file", unix.Rename(p("empty"), p("file")), unix.ENOTDIR)
	wants(t, "nothing", unix.Rename(p("none"), p("x")), unix.ENOENT)
	at := unix.AT_FDCWD
	wants(t, "noreplace", unix.Renameat2(at, p("file"), at, p("empty"), unix.RENAME_NOREPLACE), unix.EEXIST)
	wants(t, "exchange with nothing", unix.Renameat2(at, p("file"), at, p("none"), unix.RENAME_EXCHANGE), unix.ENOENT)
	wants(t, "exchange with its child", unix.Renameat2(at, p("a"), at, p("a/b"), unix.RENAME_EXCHANGE), unix.EINVAL)
	check(t, unix.Renameat2(at, p("file"), at, p("a"), unix.RENAME_EXCHANGE))
	if got, err := os.ReadFile(p("file/inner")); err != nil || string(got) != "inner" {
		t.Errorf("read file/inner: got %q (%v), want \"inner\"", got, err)
	}
	if got, err := os.ReadFile(p("a")); err != nil || string(got) != "file" {
		t.Errorf("read a: got %q (%v), want \"file\"", got, err)
	}
	check(t, unix.Rename(p("file"), p("empty"))) // over an empty directory
	if cwd := must[string](t)(filepath.EvalSymlinks(p("empty/b/c/.."))); cwd != p("empty/b") {
		t.Errorf("\"..\" of a moved directory: got %s", cwd)
	}
	var here, parent unix.Stat_t
	check(t, unix.Stat(p("empty/b/.."), &parent))
	check(t, unix.Stat(p("empty"), &here))
	if here.Ino != parent.Ino {
		t.Error("\"..\" refers to another directory than the parent")
	}
}

func posixInotify(t *testing.T, dir string) {
	fd := must[int](t)(unix.InotifyInit1(unix.IN_NONBLOCK))
	defer unix.Close(fd)
	_ = must[int](t)(unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_MODIFY|unix.IN_MOVED_TO|unix.IN_DELETE))
	check(t, os.WriteFile(dir+"/a", []byte("x"), 0o644))
	check(t, os.Rename(dir+"/a", dir+"/b"))
	check(t, os.Remove(dir+"/b"))
	buf := make([]byte, 4096)
	n := must[int](t)(unix.Read(fd, buf))
	var masks []uint32
	for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
		e := (*unix.InotifyEvent)(unsafe.Pointer(&b[0]))
		masks = append(masks, e.Mask)
		b = b[unix.SizeofInotifyEvent+int(e.Len):]
	}
	if want := []uint32{unix.IN_CREATE, unix.IN_MODIFY, unix.IN_MOVED_TO, unix.IN_DELETE}; !slices.Equal(masks, want) {
		t.Errorf("inotify events: got %x, want %x", masks, want)
	}
}
