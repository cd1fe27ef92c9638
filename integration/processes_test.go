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

// mountsBelow lists our mounts below dir, the newest first.
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

// daemonsBelow lists the processes of our binary whose arguments name a path below dir: each world has a state
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
		ours := bytes.HasPrefix(args, []byte(binary+"\x00")) || bytes.Contains(args, []byte("\x00worker\x00")) // of another build
		if err == nil && ours && bytes.Contains(args, []byte("\x00"+dir+"/")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// isWorker says whether a process serves for the daemon that started it.
func isWorker(pid int) bool {
	args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return bytes.Contains(args, []byte("\x00worker\x00"))
}

// isHelper says whether a process is one that git has started.
func isHelper(pid int) bool {
	args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return bytes.Contains(args, []byte("\x00upload-pack-helper\x00"))
}

// writeProgram writes a file that is to be executed. No process is started meanwhile: it would hold the file open for writing
// until it runs its own program, and the kernel executes no such file (ETXTBSY).
func writeProgram(path string, content []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, content, 0o755)
}
