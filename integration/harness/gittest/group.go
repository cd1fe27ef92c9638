package gittest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// group contains the processes of a server. Each of them is the leader of a process group, because git's servers have
// children (http-backend, upload-pack, pack-objects), which would outlive a killed parent for as long as they have something
// to compute.
type group struct {
	mu      sync.Mutex
	closed  bool
	leaders map[int]struct{}
}

// start starts cmd as the leader of a process group. The caller must end it with kill and call wait.
func (g *group) start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return fmt.Errorf("start %s: server is closed", filepath.Base(cmd.Path))
	}
	// The lock is held, so that no process starts after close has killed the others.
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", filepath.Base(cmd.Path), err)
	}
	if g.leaders == nil {
		g.leaders = map[int]struct{}{}
	}
	g.leaders[cmd.Process.Pid] = struct{}{}
	return nil
}

// kill kills a leader with its group. It must be called before wait, after which the ID may belong to another process.
func (g *group) kill(cmd *exec.Cmd) { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }

// wait waits until a leader has ended, and then kills the rest of its group.
func (g *group) wait(cmd *exec.Cmd) error {
	const pPID, wExited, wNoWait = 1, 4, 0x01000000 // waitid(2)
	var info [128]byte
	for {
		// WNOWAIT keeps the process as a zombie. Until cmd.Wait reaps it, no other process can get the ID that is killed
		// below.
		_, _, e := syscall.Syscall6(syscall.SYS_WAITID, pPID, uintptr(cmd.Process.Pid), uintptr(unsafe.Pointer(&info)), wExited|wNoWait, 0, 0)
		if e != syscall.EINTR {
			break
		}
	}
	g.kill(cmd)
	g.mu.Lock()
	delete(g.leaders, cmd.Process.Pid)
	g.mu.Unlock()
	err := cmd.Wait()
	// Killed children need a moment to end, and this process cannot wait for the children of another process.
	const patience, step = 5 * time.Second, time.Millisecond
	for t := time.Duration(0); t < patience && alive(cmd.Process.Pid); t += step {
		time.Sleep(step)
	}
	return err
}

// alive reports whether a process group has a running member. Zombies stay members until they are reaped, which the first
// process of a container may do late. The cheap test, whether the group exists, is therefore not sufficient.
func alive(group int) bool {
	if syscall.Kill(-group, 0) == syscall.ESRCH {
		return false
	}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // the process has ended
		}
		// proc(5): number, (name), state, parent, group. The name may contain any character.
		f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(f) > 2 && f[2] == strconv.Itoa(group) && f[0] != "Z" && f[0] != "X" {
			return true
		}
	}
	return false
}

// close kills all groups. After that, start fails.
func (g *group) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for pid := range g.leaders {
		syscall.Kill(-pid, syscall.SIGKILL)
	}
}
