package bind

import (
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/internal/proc"
)

// owner is the user and the group who own the git directory in the bind mount. On disk, the daemon's user owns it. An
// ID mapping (mount_setattr(2), MOUNT_ATTR_IDMAP) exchanges the two, so that the git commands of the owner, which
// refuse the directory of another user, and those of the daemon can both change it.
type owner struct{ uid, gid uint32 }

// exchange returns an ID mapping that exchanges the ID 0 with the given ID.
func exchange(id uint32) []syscall.SysProcIDMap {
	const end = 1<<32 - 1 // the last id is invalid
	if id == 0 {
		return []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: end}}
	}
	all := []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(id), Size: 1}, {ContainerID: int(id), HostID: 0, Size: 1}}
	if id > 1 {
		all = append(all, syscall.SysProcIDMap{ContainerID: 1, HostID: 1, Size: int(id) - 1})
	}
	if rest := end - int(id) - 1; rest > 0 {
		all = append(all, syscall.SysProcIDMap{ContainerID: int(id) + 1, HostID: int(id) + 1, Size: rest})
	}
	return all
}

// namespace opens a user namespace with the ID mapping for o. It must be called on a thread of fuse.WithoutDevice, to
// which the descriptor belongs. A user namespace needs a process: a copy of this program, which stops before its first
// instruction (PTRACE_TRACEME), and is killed.
func (o owner) namespace() (fd int, err error) {
	pid, end := make(chan int), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- fuse.WithAllFiles(func() error {
			runtime.LockOSThread() // only this thread may wait for the process that it traces
			defer runtime.UnlockOSThread()
			cmd := exec.Command(proc.Self.ExecutablePath())
			cmd.SysProcAttr = &syscall.SysProcAttr{
				Ptrace: true, Cloneflags: syscall.CLONE_NEWUSER, UidMappings: exchange(o.uid), GidMappings: exchange(o.gid),
				GidMappingsEnableSetgroups: true,
			}
			if err := cmd.Start(); err != nil {
				return err
			}
			pid <- cmd.Process.Pid
			<-end
			cmd.Process.Kill()
			cmd.Wait()
			return nil
		})
	}()
	select {
	case err := <-done:
		return -1, err
	case p := <-pid:
		fd, err = unix.Open(proc.Of(p).NamespacePath("user"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		close(end)
		<-done
		return fd, err
	}
}
