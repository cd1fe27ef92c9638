package fuse

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/worktree/acl"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// guest is the id of the user that the access control lists of these tests name.
const guest = 4711

// list returns the value of an access control list: of the owner, of guest, of the group, the mask, of others.
func list(owner, named, group, mask, other byte) string {
	entry := func(tag, perm byte, id uint32) string {
		return string([]byte{tag, 0, perm, 0, byte(id), byte(id >> 8), byte(id >> 16), byte(id >> 24)})
	}
	const none = 1<<32 - 1
	return "\x02\x00\x00\x00" + entry(1, owner, none) + entry(2, named, guest) + entry(4, group, none) +
		entry(16, mask, none) + entry(32, other, none)
}

func xattr(path, name string) (string, error) {
	b := make([]byte, 1<<10)
	n, err := unix.Getxattr(path, name, b)
	return string(b[:max(n, 0)]), err
}

func editACL(t *testing.T, files map[string]worktreetest.File) *mounted {
	t.Helper()
	state := t.TempDir()
	return mountTree(t, worktreetest.New(files), filepath.Join(state, "inodes"), filepath.Join(state, "overlay"),
		Options{AllowOther: true, ACL: true})
}

// The kernel checks access control lists. The mount stores them, keeps them consistent with modes, and lets new files
// inherit them.
func TestACL(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("acting as another user needs root")
	}
	m := editACL(t, map[string]worktreetest.File{"file": {Data: "secret\n"}, "dir/other": {Data: "x"}})
	for dir := m.dir; dir != "/"; dir = filepath.Dir(dir) { // guest needs search permission on all parents
		if st, err := os.Stat(dir); err == nil && st.Mode()&1 == 0 {
			if err := os.Chmod(dir, st.Mode()|0o11); err != nil {
				t.Fatal(err)
			}
		}
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	mode := func(name string) uint32 {
		t.Helper()
		var st unix.Stat_t
		check(unix.Lstat(m.path(name), &st))
		return st.Mode & 0o7777
	}
	want := func(what string, got, want any) {
		t.Helper()
		if got != want {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
	}
	guestReads := func(name string) bool {
		cmd := exec.Command("cat", m.path(name))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: guest, Gid: guest}}
		return cmd.Run() == nil
	}

	check(os.Chmod(m.path("file"), 0o600))
	want("guest reads a file with mode 600", guestReads("file"), false)
	check(unix.Setxattr(m.path("file"), acl.Access, []byte(list(6, 4, 0, 4, 0)), 0))
	want("mode with the list", fmt.Sprintf("%o", mode("file")), "640")
	want("guest reads the file with a list", guestReads("file"), true)
	check(os.Chmod(m.path("file"), 0o600))
	got, err := xattr(m.path("file"), acl.Access)
	check(err)
	want("list after chmod", got, list(6, 4, 0, 0, 0))
	want("guest reads after chmod took the mask's right", guestReads("file"), false)
	check(os.Chmod(m.path("file"), 0o640))
	want("guest reads after chmod set it again", guestReads("file"), true)
	check(unix.Removexattr(m.path("file"), acl.Access))
	_, err = xattr(m.path("file"), acl.Access)
	want("list that was removed", err, error(unix.ENODATA))
	want("guest reads after it was removed", guestReads("file"), false)

	// A file that inherits a list ignores the umask.
	defer unix.Umask(unix.Umask(0o077))
	check(unix.Setxattr(m.path("dir"), acl.Default, []byte(list(7, 7, 5, 7, 0)), 0))
	check(os.WriteFile(m.path("dir/new"), nil, 0o666))
	check(os.Mkdir(m.path("dir/sub"), 0o777))
	want("mode of a file that inherits", fmt.Sprintf("%o", mode("dir/new")), "660")
	want("mode of a directory that inherits", fmt.Sprintf("%o", mode("dir/sub")), "770")
	for _, c := range []struct{ name, attr, want string }{
		{"dir/new", acl.Access, list(6, 7, 5, 6, 0)},
		{"dir/sub", acl.Access, list(7, 7, 5, 7, 0)},
		{"dir/sub", acl.Default, list(7, 7, 5, 7, 0)},
	} {
		got, err := xattr(m.path(c.name), c.attr)
		check(err)
		want(c.attr+" of "+c.name, got, c.want)
	}
	check(os.WriteFile(m.path("plain"), nil, 0o666))
	want("mode where nothing is inherited", fmt.Sprintf("%o", mode("plain")), "600")
	if err := unix.Setxattr(m.path("plain"), acl.Default, []byte(list(7, 7, 5, 7, 0)), 0); !errors.Is(err, unix.EACCES) {
		t.Errorf("default list of a file: %v, want EACCES", err)
	}
}

// Access control lists cost no requests for commands of the files' owner, and in a mount without lists ls -l sends
// about one request per file.
func TestACLRequests(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a mount with allow_other needs root")
	}
	files := map[string]worktreetest.File{}
	for i := range 50 {
		files[fmt.Sprintf("dir/f%02d", i)] = worktreetest.File{Data: "x"}
	}
	for _, c := range []struct {
		name string
		m    *mounted
	}{{"with lists", editACL(t, files)}, {"without", edit(t, files)}} {
		got := c.m.requests(func() {
			c.m.run("sh", "-c",
				"cat dir/* >/dev/null; find . -size +1k; test -w dir/f03; chmod 600 dir/f04; mv dir/f05 dir/g; rm dir/f06")
		})
		if n := got["GETXATTR"]; n != 0 {
			t.Errorf("GETXATTR requests of commands of the owner, %s: got %d, want 0", c.name, n)
		}
		got = c.m.requests(func() { c.m.run("sh", "-c", "ls -l dir >/dev/null") })
		t.Logf("ls -l of 49 files, %s: %v", c.name, got)
		if n := got["GETXATTR"] + got["LISTXATTR"]; c.name == "without" && n > 52 { // ls may read a security label of each
			t.Errorf("requests for attributes of ls -l without lists: got %d", n)
		}
		if n := c.m.src.Calls("Open"); n > 50 {
			t.Errorf("opened contents, %s: got %d, want at most those read", c.name, n)
		}
	}
}
