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

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// mutations returns the system calls that change a file system, for a tree of file, dir, dir/inner and link.
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
		"open to write":    openTo(file, unix.O_WRONLY),
		"open to append":   openTo(file, unix.O_WRONLY|unix.O_APPEND),
		"open to truncate": openTo(file, unix.O_WRONLY|unix.O_TRUNC),
		"create":           openTo(fresh, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL),
		"unnamed file":     openTo(dir, unix.O_WRONLY|unix.O_TMPFILE),
		"truncate":         func() error { return unix.Truncate(file, 1) },
		"chmod":            func() error { return unix.Chmod(file, 0o600) },
		"chown":            func() error { return unix.Lchown(file, 1, 1) },
		"utimes":           func() error { return unix.Utimes(file, []unix.Timeval{{Sec: 1}, {Sec: 1}}) },
		"mkdir":            func() error { return unix.Mkdir(fresh, 0o777) },
		"mknod":            func() error { return unix.Mknod(fresh, unix.S_IFIFO|0o666, 0) },
		"unlink":           func() error { return unix.Unlink(file) },
		"rmdir":            func() error { return unix.Rmdir(filepath.Join(dir, "sub")) },
		"rename":           func() error { return unix.Rename(file, fresh) },
		"rename over":      func() error { return unix.Rename(file, link) },
		"exchange": func() error {
			return unix.Renameat2(unix.AT_FDCWD, file, unix.AT_FDCWD, link,
				unix.RENAME_EXCHANGE)
		},
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

// Each call that would change the read-only mount fails with EROFS and sends no request.
func TestReadOnly(t *testing.T) {
	m := mutable(t)
	m.run("sh", "-c", "ls -lR . fresh; cat file; true")
	requests := m.requests(func() {
		for what, f := range m.mutations() {
			if err := f(); !errors.Is(err, unix.EROFS) {
				t.Errorf("%s: got %v, want EROFS", what, err)
			}
		}
	})
	delete(requests, "LOOKUP") // the kernel checks whether a new name exists
	if total(requests) != 0 {
		t.Errorf("refused calls sent the requests %v", requests)
	}
}

// The server refuses changes itself, too: a read-only mount that was remounted writable stays unchanged.
func TestReadOnlyRemounted(t *testing.T) {
	m := mutable(t)
	if err := unix.Mount("", m.dir, "", unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		t.Skipf("cannot remount: %v", err)
	}
	for what, f := range m.mutations() {
		err := f()
		switch what {
		case "access for write": // the kernel allows this after the remount
			continue
		case "set attribute", "remove attribute":
			if !errors.Is(err, unix.EOPNOTSUPP) {
				t.Errorf("%s: got %v, want EOPNOTSUPP", what, err)
			}
			continue
		}
		if !errors.Is(err, unix.EROFS) {
			t.Errorf("%s: got %v, want EROFS", what, err)
		}
	}
	if got, err := os.ReadFile(m.path("file")); err != nil || string(got) != "content" {
		t.Errorf("read after the refused calls: got %q, %v", got, err)
	}
}

func TestExtendedAttributes(t *testing.T) {
	m := mutable(t)
	for _, name := range []string{"user.x", "security.capability", "system.posix_acl_access"} {
		_, err := unix.Getxattr(m.path("file"), name, make([]byte, 10))
		// ACLs fail with ENODATA, other attributes with EOPNOTSUPP
		if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENODATA) {
			t.Errorf("get attribute %s: got %v", name, err)
		}
	}
	if _, err := unix.Listxattr(m.path("file"), make([]byte, 10)); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("list attributes: got %v, want EOPNOTSUPP", err)
	}
}

func TestStatFS(t *testing.T) {
	m := mutable(t)
	var here, root unix.Statfs_t
	if err := errors.Join(unix.Statfs(m.dir, &here), unix.Statfs("/", &root)); err != nil {
		t.Fatal(err)
	}
	if here.Namelen != object.MaxNameLen || here.Blocks != root.Blocks || here.Bsize != root.Bsize ||
		here.Flags&unix.ST_RDONLY == 0 {
		t.Errorf("statfs of the mount: got %+v, want that of /, %+v", here, root)
	}
	if here.Files-here.Ffree != uint64(m.tree.Base().Counts().Nodes) {
		t.Errorf("statfs reports %d used files, but there are %d nodes", here.Files-here.Ffree, m.tree.Base().Counts().Nodes)
	}
}

// Operations that the kernel handles without a request work: locks, fsync, SEEK_DATA, terminal ioctls.
func TestKernelAlone(t *testing.T) {
	m := mutable(t)
	fd, err := unix.Open(m.path("file"), unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Flock(fd, unix.LOCK_EX); err != nil {
		t.Errorf("flock failed: %v", err)
	}
	if err := unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &unix.Flock_t{Type: unix.F_RDLCK}); err != nil {
		t.Errorf("fcntl lock failed: %v", err)
	}
	if err := unix.Fsync(fd); err != nil {
		t.Errorf("fsync failed: %v", err)
	}
	if _, err := unix.IoctlGetTermios(fd, unix.TCGETS); !errors.Is(err, unix.ENOTTY) {
		t.Errorf("isatty: got %v, want ENOTTY", err)
	}
	if off, err := unix.Seek(fd, 0, unix.SEEK_HOLE); off != 7 || err != nil {
		t.Errorf("SEEK_HOLE: got %d, %v", off, err)
	}
	var flags int
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.FS_IOC_GETFLAGS,
		uintptr(unsafe.Pointer(&flags))); errno != unix.ENOTTY {
		t.Errorf("FS_IOC_GETFLAGS: got %v, want ENOTTY", errno)
	}
}

// A name that is longer than NAME_MAX fails with ENAMETOOLONG in all calls.
func TestNameTooLong(t *testing.T) {
	m := mutable(t)
	var st unix.Stat_t
	if err := unix.Stat(m.path(strings.Repeat("n", object.MaxNameLen+1)), &st); !errors.Is(err, syscall.ENAMETOOLONG) {
		t.Errorf("stat of a name that is too long: got %v", err)
	}
}
