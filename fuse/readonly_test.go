package fuse

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// mutations are the system calls that change a file system, on a tree of file, dir, dir/inner and link.
func (m *mounted) mutations() map[string]func() error {
	file, dir, fresh, link := m.path("file"), m.path("dir"), m.path("fresh"), m.path("link")
	openTo := func(path string, flags int) func() error {
		return func() error {
			fd, err := unix.Open(path, flags, 0o666)
			if err == nil {
				_, err = unix.Write(fd, []byte("x"))
				unix.Close(fd)
			}
			return err
		}
	}
	return map[string]func() error{
		"open to write":     openTo(file, unix.O_WRONLY),
		"open to append":    openTo(file, unix.O_WRONLY|unix.O_APPEND),
		"open to truncate":  openTo(file, unix.O_WRONLY|unix.O_TRUNC),
		"create":            openTo(fresh, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL),
		"unnamed file":      openTo(dir, unix.O_WRONLY|unix.O_TMPFILE),
		"truncate":          func() error { return unix.Truncate(file, 1) },
		"chmod":             func() error { return unix.Chmod(file, 0o600) },
		"chown":             func() error { return unix.Lchown(file, 1, 1) },
		"utimes":            func() error { return unix.Utimes(file, []unix.Timeval{{Sec: 1}, {Sec: 1}}) },
		"mkdir":             func() error { return unix.Mkdir(fresh, 0o777) },
		"mknod":             func() error { return unix.Mknod(fresh, unix.S_IFIFO|0o666, 0) },
		"unlink":            func() error { return unix.Unlink(file) },
		"rmdir":             func() error { return unix.Rmdir(filepath.Join(dir, "sub")) },
		"rename":            func() error { return unix.Rename(file, fresh) },
		"rename over":       func() error { return unix.Rename(file, link) },
		"exchange":          func() error { return unix.Renameat2(unix.AT_FDCWD, file, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE) },
		"hard link":         func() error { return unix.Link(file, fresh) },
		"symbolic link":     func() error { return unix.Symlink("file", fresh) },
		"set attribute":     func() error { return unix.Setxattr(file, "user.x", []byte("x"), 0) },
		"remove attribute":  func() error { return unix.Removexattr(file, "user.x") },
		"access for write":  func() error { return unix.Access(file, unix.W_OK) },
		"allocate by write": func() error { return m.fallocate(file) },
	}
}

func (m *mounted) fallocate(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Fallocate(fd, 0, 0, 4096)
}

func mutable(t *testing.T) *mounted {
	return mount(t, map[string]worktreetest.File{
		"file": {Data: "content"}, "dir/sub/inner": {Data: "x"}, "link": {Mode: object.ModeSymlink, Data: "file"},
	})
}

// Whatever would change something is told that the file system is read-only, and makes no request.
func TestReadOnly(t *testing.T) {
	m := mutable(t)
	m.run("sh", "-c", "ls -lR . fresh; cat file; true")
	requests := m.requests(func() {
		for what, f := range m.mutations() {
			if err := f(); !errors.Is(err, unix.EROFS) {
				t.Errorf("%s: %v, want EROFS", what, err)
			}
		}
	})
	delete(requests, "LOOKUP") // the kernel looks whether a new name is free
	if total(requests) != 0 {
		t.Errorf("made requests: %v", requests)
	}
}

// The second lock: a mount that somebody made writable changes nothing either.
func TestReadOnlyRemounted(t *testing.T) {
	m := mutable(t)
	if err := unix.Mount("", m.dir, "", unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		t.Skipf("cannot remount: %v", err)
	}
	for what, f := range m.mutations() {
		err := f()
		switch what {
		case "access for write": // the kernel believes the remount
			continue
		case "set attribute", "remove attribute":
			if !errors.Is(err, unix.EOPNOTSUPP) {
				t.Errorf("%s: %v, want EOPNOTSUPP", what, err)
			}
			continue
		}
		if !errors.Is(err, unix.EROFS) {
			t.Errorf("%s: %v, want EROFS", what, err)
		}
	}
	if got, err := os.ReadFile(m.path("file")); err != nil || string(got) != "content" {
		t.Errorf("afterwards: %q, %v", got, err)
	}
}

func TestExtendedAttributes(t *testing.T) {
	m := mutable(t)
	for _, name := range []string{"user.x", "security.capability", "system.posix_acl_access"} {
		_, err := unix.Getxattr(m.path("file"), name, make([]byte, 10))
		if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENODATA) { // ACLs are ENODATA, all else EOPNOTSUPP
			t.Errorf("get %s: %v", name, err)
		}
	}
	if _, err := unix.Listxattr(m.path("file"), make([]byte, 10)); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("list: %v, want EOPNOTSUPP", err)
	}
}

func TestStatFS(t *testing.T) {
	m := mutable(t)
	var here, root unix.Statfs_t
	if err := errors.Join(unix.Statfs(m.dir, &here), unix.Statfs("/", &root)); err != nil {
		t.Fatal(err)
	}
	if here.Namelen != object.MaxNameLen || here.Blocks != root.Blocks || here.Bsize != root.Bsize || here.Flags&unix.ST_RDONLY == 0 {
		t.Errorf("statfs %+v, of / it is %+v", here, root)
	}
	if here.Files-here.Ffree != uint64(m.tree.Counts().Nodes) {
		t.Errorf("%d files in use, %d nodes", here.Files-here.Ffree, m.tree.Counts().Nodes)
	}
}

// What the kernel does alone works without us: locks, fsync, seeking for data, asking for a terminal.
func TestKernelAlone(t *testing.T) {
	m := mutable(t)
	fd, err := unix.Open(m.path("file"), unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Flock(fd, unix.LOCK_EX); err != nil {
		t.Errorf("flock: %v", err)
	}
	if err := unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &unix.Flock_t{Type: unix.F_RDLCK}); err != nil {
		t.Errorf("lock: %v", err)
	}
	if err := unix.Fsync(fd); err != nil {
		t.Errorf("fsync: %v", err)
	}
	if _, err := unix.IoctlGetTermios(fd, unix.TCGETS); !errors.Is(err, unix.ENOTTY) {
		t.Errorf("is it a terminal: %v, want ENOTTY", err)
	}
	if off, err := unix.Seek(fd, 0, unix.SEEK_HOLE); off != 7 || err != nil {
		t.Errorf("seek to hole: %d, %v", off, err)
	}
	var flags int
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.FS_IOC_GETFLAGS, uintptr(unsafe.Pointer(&flags))); errno != unix.ENOTTY {
		t.Errorf("get flags: %v, want ENOTTY", errno)
	}
}

// A name longer than a file system may hold is the kernel's error, whichever way it is used.
func TestNameTooLong(t *testing.T) {
	m := mutable(t)
	var st unix.Stat_t
	if err := unix.Stat(m.path(strings.Repeat("n", object.MaxNameLen+1)), &st); !errors.Is(err, syscall.ENAMETOOLONG) {
		t.Errorf("stat: %v", err)
	}
}
