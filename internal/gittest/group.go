package gittest

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"unsafe"
)

// group owns the processes of a server. Each is the leader of a process group of its own, because git's servers are
// families (http-backend, upload-pack, pack-objects) and the children would outlive a killed parent for as long as
// they have something to compute.
type group struct {
	mu      sync.Mutex
	closed  bool
	leaders map[int]struct{}
}

// start starts cmd as a leader. The caller ends it with kill and waits for it.
func (g *group) start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return fmt.Errorf("start %s: server is closed", filepath.Base(cmd.Path))
	}
	// Under the lock: a process must not slip in behind kill.
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", filepath.Base(cmd.Path), err)
	}
	if g.leaders == nil {
		g.leaders = map[int]struct{}{}
	}
	g.leaders[cmd.Process.Pid] = struct{}{}
	return nil
}

// kill ends a leader and its family. It must come before wait, while the number is still taken.
func (g *group) kill(cmd *exec.Cmd) { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }

// wait waits until a leader has ended, then ends what is left of its family.
func (g *group) wait(cmd *exec.Cmd) error {
	const pPID, wExited, wNoWait = 1, 4, 0x01000000 // waitid(2)
	var info [128]byte
	for {
		// Without taking the status: until cmd.Wait does, nobody else can get the number that is killed below.
		_, _, e := syscall.Syscall6(syscall.SYS_WAITID, pPID, uintptr(cmd.Process.Pid), uintptr(unsafe.Pointer(&info)), wExited|wNoWait, 0, 0)
		if e != syscall.EINTR {
			break
		}
	}
	g.kill(cmd)
	g.mu.Lock()
	delete(g.leaders, cmd.Process.Pid)
	g.mu.Unlock()
	return cmd.Wait()
}

// close kills every family; later starts fail.
func (g *group) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for pid := range g.leaders {
		syscall.Kill(-pid, syscall.SIGKILL)
	}
}
