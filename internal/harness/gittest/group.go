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
		// Without taking the status: until cmd.Wait does, no other process can get the number that is killed below.
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
	// Being killed takes the children a moment, and they are not ours to wait for.
	const patience, step = 5 * time.Second, time.Millisecond
	for t := time.Duration(0); t < patience && alive(cmd.Process.Pid); t += step {
		time.Sleep(step)
	}
	return err
}

// alive reports whether a process group has a running member. Dead processes stay members until a process reaps them, which
// the first process of a container may be slow at; that their group has one is the cheap half of the question.
func alive(group int) bool {
	if syscall.Kill(-group, 0) == syscall.ESRCH {
		return false
	}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // gone meanwhile
		}
		// proc(5): number, (name), state, parent, group; the name may hold anything.
		f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(f) > 2 && f[2] == strconv.Itoa(group) && f[0] != "Z" && f[0] != "X" {
			return true
		}
	}
	return false
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
