package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// With --id-map, the mount can be attached to a container in a user namespace, whose root is another user outside.
func TestIDMappedMount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, which makes idmapped mounts")
	}
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("idmap"))
	letIn(t, w.root)
	m := w.mount(w.serve(gittest.ServerOptions{}).URL("r.git"), "--id-map", "--allow-other", "--wait", "git")
	// This process stands for a container: in its user namespace, the user id of nobody is root.
	container := exec.Command("sleep", "60")
	maps := []syscall.SysProcIDMap{{ContainerID: 0, HostID: nobody, Size: 1}}
	container.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: maps, GidMappings: maps}
	check(t, container.Start())
	defer func() {
		container.Process.Kill()
		container.Wait()
	}()
	tree := must[int](t)(unix.OpenTree(unix.AT_FDCWD, m.Dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC))
	defer unix.Close(tree)
	space := must[*os.File](t)(os.Open("/proc/" + strconv.Itoa(container.Process.Pid) + "/ns/user"))
	defer space.Close()
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH,
		&unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(space.Fd())}); err != nil {
		t.Fatalf("map the owners of a mount: %v", err)
	}
	at := w.place("container")
	check(t, os.Mkdir(at, 0o755))
	check(t, unix.MoveMount(tree, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH))
	defer unix.Unmount(at, unix.MNT_DETACH)
	letIn(t, at)
	script := exec.Command("sh", "-ec",
		`cat known/a >/dev/null; echo changed >> known/a; mkdir d; echo new > d/f; mv d/f d/g; stat -c %u known/a d/g`)
	script.Dir = at
	out, err := runAsNobody(script)
	if err != nil || out != "65534\n65534\n" {
		t.Errorf("programs in the container: got %q, %v, want that nobody owns all files", out, err)
	}
	for _, name := range []string{"known/a", "d/g"} {
		info := must[os.FileInfo](t)(os.Stat(filepath.Join(m.Dir, name)))
		if uid := info.Sys().(*syscall.Stat_t).Uid; uid != 0 {
			t.Errorf("owner of %s in the mount: got %d, want 0", name, uid)
		}
	}
	syscall.Kill(w.serving(), syscall.SIGKILL) // the successor answers INIT with the same flags
	if out, err := runAsNobody(exec.Command("cat", filepath.Join(at, "d/g"))); err != nil || out != "new\n" {
		t.Errorf("read after a takeover: got %q, %v", out, err)
	}
}
