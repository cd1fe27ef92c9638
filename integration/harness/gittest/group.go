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

// group contains the processes of a server. Each process leads its own process group, so that its children can be
// killed too. The children of git's servers (http-backend, upload-pack, pack-objects) would otherwise continue to
// compute after their parent was killed.
type group struct {
	mu      sync.Mutex
	closed  bool
	leaders map[int]struct{}
}

// start starts cmd as the leader of a new process group. The caller must call wait, and may call kill before to end the
// process.
func (g *group) start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return fmt.Errorf("start %s: server is closed", filepath.Base(cmd.Path))
	}
	// mu is held during the start, so that close kills this process too or start fails.
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", filepath.Base(cmd.Path), err)
	}
	if g.leaders == nil {
		g.leaders = map[int]struct{}{}
	}
	g.leaders[cmd.Process.Pid] = struct{}{}
	return nil
}

// kill kills a leader and its process group. It must not be called after wait, because another process may then have
// the ID.
func (g *group) kill(cmd *exec.Cmd) { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }

// wait waits until a leader has ended, and then kills the other processes of its group.
func (g *group) wait(cmd *exec.Cmd) error {
	const pPID, wExited, wNoWait = 1, 4, 0x01000000 // waitid(2)
	var info [128]byte
	for {
		// With WNOWAIT, the ended process remains a zombie, so that no other process gets the ID of the group that is
		// killed below.
		_, _, e := syscall.Syscall6(syscall.SYS_WAITID, pPID, uintptr(cmd.Process.Pid), uintptr(unsafe.Pointer(&info)),
			wExited|wNoWait, 0, 0)
		if e != syscall.EINTR {
			break
		}
	}
	g.kill(cmd)
	g.mu.Lock()
	delete(g.leaders, cmd.Process.Pid)
	g.mu.Unlock()
	err := cmd.Wait()
	// Wait until the killed children have ended. This process can only poll, because it is not their parent.
	const patience, step = 5 * time.Second, time.Millisecond
	for t := time.Duration(0); t < patience && alive(cmd.Process.Pid); t += step {
		time.Sleep(step)
	}
	return err
}

// alive reports whether a process group has a member that is not a zombie. It is not sufficient to check whether the
// group exists, because zombies stay members until they are reaped, and the first process of a container may reap them
// late.
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

// close kills all process groups. Later calls of start return an error.
func (g *group) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for pid := range g.leaders {
		syscall.Kill(-pid, syscall.SIGKILL)
	}
}
