package integration

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A test binary that is killed or times out runs no cleanup, so its mounts and daemons would stay. A second process,
// the reaper, waits for its end, which the kernel reports by closing a pipe, and removes them.

// environment variable of the reaper: the directory below which it removes all mounts and processes
const reaps = "AFS_REAPS"

// reaper starts the process that outlives this one; done ends it when everything has been cleaned up.
func reaper() (done func(), err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env, cmd.Dir, cmd.Stdin = []string{reaps + "=" + base}, "/", r
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // so that Ctrl-C does not end it
	if err := cmd.Start(); err != nil {
		w.Close()
		return nil, err
	}
	return func() {
		w.Close()
		cmd.Wait()
	}, nil
}

// reap waits for the end of the process that has started this one, and removes its mounts and processes below a
// directory.
func reap(dir string) {
	io.Copy(io.Discard, os.Stdin)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		pids := processesOf(dir)
		for _, pid := range pids {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		if len(pids) == 0 {
			break
		}
	}
	for _, at := range mountsBelow(dir) {
		unix.Unmount(at, unix.MNT_DETACH)
	}
	os.RemoveAll(dir)
}

// processesOf lists the processes whose arguments contain a path below a directory.
func processesOf(dir string) (pids []int) {
	found, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range found {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if args, readErr := os.ReadFile(name); err == nil && readErr == nil && pid != os.Getpid() &&
			bytes.Contains(args, []byte(dir+"/")) {
			pids = append(pids, pid)
		}
	}
	return pids
}
