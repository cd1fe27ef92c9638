package fuse

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

func TestRename(t *testing.T) {
	m := edit(t, map[string]worktreetest.File{"a": {Data: "A"}, "b": {Data: "B"}, "dir/deep/c": {Data: "C"}, "full/x": {}})
	rename := func(from, to string, flags uint) error {
		return unix.Renameat2(unix.AT_FDCWD, m.path(from), unix.AT_FDCWD, m.path(to), flags)
	}
	for _, c := range []struct {
		from, to string
		flags    uint
		want     error
	}{
		{"a", "b", unix.RENAME_NOREPLACE, unix.EEXIST},
		{"a", "new", unix.RENAME_NOREPLACE, nil},
		{"new", "b", unix.RENAME_EXCHANGE, nil}, // b has A
		{"b", "dir", unix.RENAME_EXCHANGE, nil}, // dir is a file
		{"b/deep", "deep", 0, nil},
		{"deep", "full", 0, unix.ENOTEMPTY},
		{"dir", "full", 0, unix.EISDIR},
		{"full", "dir", 0, unix.ENOTDIR},
		{"deep", "deep/below", 0, unix.EINVAL},
		{"none", "x", 0, unix.ENOENT},
		{"dir", "none", unix.RENAME_EXCHANGE, unix.ENOENT},
		{"dir", strings.Repeat("n", 256), 0, unix.ENAMETOOLONG},
		{"dir", "b/back", 0, nil},
	} {
		if err := rename(c.from, c.to, c.flags); !errors.Is(err, c.want) {
			t.Errorf("rename %s %.20s with flags %d: got %v, want %v", c.from, c.to, c.flags, err, c.want)
		}
	}
	want := "b/back: A\ndeep/c: C\nfull/x: \nnew: B\n"
	for range 2 {
		if got := m.run("sh", "-c",
			"find * -type f | LC_ALL=C sort | while read f; do echo \"$f: $(cat $f)\"; done"); got != want {
			t.Errorf("names after the renames:\n%swant\n%s", got, want)
		}
		dropCaches(t)
	}
}

// Nodes of all kinds can be created, read, linked and removed.
func TestKinds(t *testing.T) {
	m := edit(t, map[string]worktreetest.File{"base": {Data: "x"}, "link": {Mode: object.ModeSymlink, Data: "base"}})
	for name, mode := range map[string]uint32{"fifo": unix.S_IFIFO | 0o640, "socket": unix.S_IFSOCK | 0o600,
		"plain": unix.S_IFREG | 0o604} {
		if err := unix.Mknod(m.path(name), mode, 0); err != nil {
			t.Errorf("make %s: %v", name, err)
		}
		var st unix.Stat_t
		if err := unix.Lstat(m.path(name), &st); err != nil || st.Mode != mode&^0o022 || st.Nlink != 1 || st.Size != 0 {
			t.Errorf("lstat of the new %s: got %+v, %v", name, st, err)
		}
	}
	if os.Getuid() == 0 {
		var st unix.Stat_t
		err := unix.Mknod(m.path("null"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))
		if err = errors.Join(err, unix.Stat(m.path("null"), &st)); err != nil || st.Rdev != unix.Mkdev(1, 3) {
			t.Errorf("lstat of the device: got %+v, %v", st, err)
		}
	}
	if err := errors.Join(os.Symlink("../far", m.path("own link")), os.Link(m.path("link"), m.path("second")),
		os.Link(m.path("base"), m.path("third"))); err != nil {
		t.Error(err)
	}
	dropCaches(t)
	for link, want := range map[string]string{"own link": "../far", "link": "base", "second": "base"} {
		st, err := os.Lstat(m.path(link))
		if got, readErr := os.Readlink(m.path(link)); errors.Join(err, readErr) != nil || got != want ||
			st.Size() != int64(len(want)) {
			t.Errorf("symbolic link %s: got target %q, attributes %v, errors %v and %v", link, got, st, err, readErr)
		}
	}
	if st, err := os.Stat(m.path("third")); err != nil || st.Sys().(*syscall.Stat_t).Nlink != 2 {
		t.Errorf("stat of the linked file: got %v, %v", st, err)
	}
	if err := os.Link(m.dir, m.path("dir link")); !errors.Is(err, unix.EPERM) {
		t.Errorf("link of a directory: got %v, want EPERM", err)
	}
	m.run("sh", "-c", "cat fifo & echo through > fifo; wait; rm -f fifo socket plain null second third")
}

// A file of O_TMPFILE can be linked to a name, or is removed when it is closed, also if it is the first file opened on
// the mount.
func TestTmpfile(t *testing.T) {
	for _, first := range []bool{true, false} {
		m := edit(t, map[string]worktreetest.File{"dir/x": {Data: "x"}})
		if !first {
			m.run("cat", "dir/x")
		}
		fd, err := unix.Open(m.path("dir"), unix.O_TMPFILE|unix.O_RDWR, 0o640)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Write(fd, []byte(pattern(5_000))); err != nil {
			t.Error(err)
		}
		name := m.path("named")
		if err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, name,
			unix.AT_SYMLINK_FOLLOW); err != nil {
			t.Errorf("link the unnamed file: %v", err)
		}
		unix.Close(fd)
		dropCaches(t)
		st, err := os.Stat(name)
		if b, readErr := os.ReadFile(name); errors.Join(err, readErr) != nil || string(b) != pattern(5_000) ||
			st.Mode() != 0o640 {
			t.Errorf("the named file: got %d bytes, attributes %v, errors %v and %v", len(b), st, err, readErr)
		}
		if fd, err = unix.Open(m.dir, unix.O_TMPFILE|unix.O_WRONLY, 0o600); err != nil {
			t.Fatal(err)
		}
		unix.Write(fd, []byte("lost"))
		unix.Close(fd)
		m.until("the unnamed file is removed", func() bool { return m.tree.Overlay().Stats().Contents == 1 })
	}
}

// A directory that is read while other entries are created and removed returns each entry that stays exactly once.
func TestListWhileChanging(t *testing.T) {
	files := make(map[string]worktreetest.File)
	for i := range 400 {
		files[fmt.Sprintf("d/base%03d", i)] = worktreetest.File{Data: "x"}
	}
	m := edit(t, files)
	for i := range 400 {
		if err := os.WriteFile(m.path(fmt.Sprintf("d/own%03d", i)), nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.Open(m.path("d"))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	seen := make(map[string]int)
	for i := 0; ; i++ {
		names, err := dir.Readdirnames(16)
		if err != nil {
			break
		}
		for _, name := range names {
			seen[name]++
		}
		err = errors.Join(
			ignore(os.Remove(m.path(fmt.Sprintf("d/own%03d", i*8+1))), os.ErrNotExist),
			ignore(os.Remove(m.path(fmt.Sprintf("d/base%03d", i*8+1))), os.ErrNotExist),
			os.WriteFile(m.path(fmt.Sprintf("d/new%03d", i)), nil, 0o666))
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range 400 {
		for _, kind := range []string{"base", "own"} {
			name := fmt.Sprintf("%s%03d", kind, i)
			if n := seen[name]; n > 1 || n == 0 && i%8 != 1 {
				t.Errorf("%s was listed %d times", name, n)
			}
		}
	}
	listed := strings.Fields(m.run("ls", "d"))
	cached := strings.Fields(m.run("ls", "d"))
	if !slices.Equal(listed, cached) || slices.Contains(listed, "own001") {
		t.Errorf("listings: got %d entries, then %d", len(listed), len(cached))
	}
}

// Locks of one process exclude other processes.
func TestLocks(t *testing.T) {
	m := edit(t, map[string]worktreetest.File{"f": {Data: "x"}})
	f, err := os.OpenFile(m.path("f"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		t.Fatal(err)
	}
	other := `import fcntl, sys
f = open(sys.argv[2], "r+")
try:
	getattr(fcntl, sys.argv[1])(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
	print("free")
except OSError:
	print("taken")`
	if got := m.run("python3", "-c", other, "lockf", "f"); got != "taken\n" {
		t.Errorf("record lock by another process: got %q", got)
	}
	if got := m.run("python3", "-c", other, "flock", "f"); got != "free\n" {
		t.Errorf("flock by another process: got %q", got)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if got := m.run("python3", "-c", other, "flock", "f"); got != "taken\n" {
		t.Errorf("flock by another process: got %q", got)
	}
}

// A shared mapping is written back. The test maps in another process, because a page fault of this process would wait
// for its own server.
func TestMap(t *testing.T) {
	m := edit(t, map[string]worktreetest.File{"base": {Data: pattern(10_000)}, "odd": {Data: pattern(8_193)}})
	script := `import mmap, sys
with open(sys.argv[1], "r+b") as f:
	with mmap.mmap(f.fileno(), 0) as map:
		before = bytes(map)
		map[5:8] = b"NEW"
		map[-1:] = b"#"
		map.flush()
		map[4096:4099] = b"new"
	print(len(before), hash(before) == hash(f.read()), end="")`
	for name, size := range map[string]int{"base": 10_000, "odd": 8_193} {
		if got := m.run("python3", "-c", script, name); got != fmt.Sprint(size, " False") {
			t.Errorf("map file %s: got size and hash comparison %q", name, got)
		}
		want := []byte(pattern(size))
		copy(want[5:], "NEW")
		copy(want[4096:], "new")
		want[size-1] = '#'
		for range 2 {
			if got, err := os.ReadFile(m.path(name)); err != nil || string(got) != string(want) {
				t.Errorf("read %s: got %d bytes, %v", name, len(got), err)
			}
			dropCaches(t)
		}
	}
}

func TestXattr(t *testing.T) {
	m := edit(t, map[string]worktreetest.File{"f": {Data: "x"}, "dir/g": {Data: "y"}})
	names := []string{"user.a", "user.b"}
	if os.Getuid() == 0 {
		names = append(names, "trusted.c", "security.d")
	}
	list := func(name string) []string {
		b := make([]byte, 1000)
		n, err := unix.Listxattr(m.path(name), b)
		if err != nil {
			t.Error(err)
		}
		got := strings.Split(strings.TrimSuffix(string(b[:n]), "\x00"), "\x00")
		slices.Sort(got)
		return got
	}
	for _, path := range []string{"f", "dir"} {
		for _, name := range names {
			if err := unix.Setxattr(m.path(path), name, []byte("value of "+name), unix.XATTR_CREATE); err != nil {
				t.Errorf("set attribute %s: %v", name, err)
			}
			if err := unix.Setxattr(m.path(path), name, nil, unix.XATTR_CREATE); !errors.Is(err, unix.EEXIST) {
				t.Errorf("set attribute %s with XATTR_CREATE again: got %v, want EEXIST", name, err)
			}
			b := make([]byte, 100)
			if n, err := unix.Getxattr(m.path(path), name, b); err != nil || string(b[:n]) != "value of "+name {
				t.Errorf("get attribute %s: got %q, %v", name, b[:max(n, 0)], err)
			}
			if n, err := unix.Getxattr(m.path(path), name, nil); err != nil || n != len("value of "+name) {
				t.Errorf("length of attribute %s: got %d, %v", name, n, err)
			}
			if _, err := unix.Getxattr(m.path(path), name, b[:3]); !errors.Is(err, unix.ERANGE) {
				t.Errorf("get attribute %s into 3 bytes: got %v, want ERANGE", name, err)
			}
		}
		slices.Sort(names)
		if got := list(path); !slices.Equal(got, names) {
			t.Errorf("list of attributes: got %q", got)
		}
		if err := unix.Removexattr(m.path(path), "user.a"); err != nil {
			t.Error(err)
		}
		if err := unix.Removexattr(m.path(path), "user.a"); !errors.Is(err, unix.ENODATA) {
			t.Errorf("remove an attribute again: got %v, want ENODATA", err)
		}
		if got := list(path); slices.Contains(got, "user.a") {
			t.Errorf("list of attributes after the removal: got %q", got)
		}
	}
	if err := unix.Setxattr(m.path("f"), "system.posix_acl_access", []byte("\x02\x00\x00\x00"), 0); !errors.Is(err,
		unix.EOPNOTSUPP) {
		t.Errorf("set an access control list: got %v, want EOPNOTSUPP", err)
	}
}

// The next mount shows the same tree as the previous one, including inode numbers.
func TestRemount(t *testing.T) {
	state := t.TempDir()
	table, overlay := filepath.Join(state, "inodes"), filepath.Join(state, "overlay")
	first := mountTree(t, worktreetest.New(trickyFiles()), table, overlay, Options{})
	first.run("sh", "-ec", `
		echo changed >> plain.txt; rm empty; mv bin tools; chmod 600 tools/run.sh; ln large hard; mkdir -p new/sub
		echo mine > new/sub/file; ln -s file new/sub/link; mkfifo new/fifo; truncate -s 1000000 page; touch -d @77 new/sub/file
		mv new/sub 'd/moved'; rm -rf module; setfattr -n user.x -v y plain.txt 2>/dev/null || true`)
	const list = "find . -maxdepth 40 -printf '%i %m %n %s %T@ %p %l\\n' | LC_ALL=C sort; find . -maxdepth 40 -type f | LC_ALL=C sort | tr '\\n' '\\0' | xargs -0 cat 2>/dev/null | sha256sum"
	before := first.run("sh", "-c", list)
	first.end()
	for _, readOnly := range []bool{false, true} {
		again := mountTree(t, worktreetest.New(trickyFiles()), table, overlay, Options{ReadOnly: readOnly})
		if after := again.run("sh", "-c", list); after != before {
			t.Errorf("next mount, read-only %v: got\n%.3000s\nwant\n%.3000s", readOnly, after, before)
		}
		again.end()
	}
}

// A file that is repeatedly opened, appended to and closed grows by each append.
func TestAppends(t *testing.T) {
	m := edit(t, nil)
	cmd := exec.Command("sh", "-c",
		"i=0; while [ $i -lt 300 ]; do echo line $i >> log; i=$((i+1)); done; wc -l < log; sort -u log | wc -l")
	cmd.Dir = m.dir
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if lines.Text() != "300" {
			t.Errorf("lines of the file: got %s", lines.Text())
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
