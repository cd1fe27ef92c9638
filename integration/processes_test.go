package integration

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// mountsBelow lists the artifactfs mounts below dir, the newest first.
func mountsBelow(dir string) []string {
	table, _ := os.ReadFile("/proc/self/mountinfo")
	var found []string
	for line := range bytes.Lines(table) {
		fields := strings.Fields(string(line))
		if len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			found = append([]string{fields[4]}, found...)
		}
	}
	return found
}

// daemonsBelow lists the processes of the tested binary whose arguments name a path below dir: each world has a state
// directory of its own.
func daemonsBelow(dir string) []int {
	var pids []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		args, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		// a worker of another build
		ours := bytes.HasPrefix(args, []byte(binary+"\x00")) || bytes.Contains(args, []byte("\x00worker\x00"))
		if err == nil && ours && bytes.Contains(args, []byte("\x00"+dir+"/")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// isWorker reports whether the arguments of a process are those of a worker.
func isWorker(pid int) bool {
	args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return bytes.Contains(args, []byte("\x00worker\x00"))
}

// isHelper reports whether a process is a helper that git has started.
func isHelper(pid int) bool {
	args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return bytes.Contains(args, []byte("\x00upload-pack-helper\x00"))
}

// writeProgram writes an executable file. It prevents this process from forking at the same time: the child would keep
// the file open for writing until it executes its own program, and the kernel refuses to execute a file that is open
// for writing (ETXTBSY).
func writeProgram(path string, content []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, content, 0o755)
}
