// Package daemons finds and ends the daemons that a measurement has started. These are the daemons whose state
// directory is below the directory of the measurement. The package finds them in /proc, so it also finds daemons that
// no longer answer.
package daemons

import (
	"bytes"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	endTime  = 2 * time.Minute       // time limit for daemons to unmount everything and end
	endPoll  = 20 * time.Millisecond // interval at which processes are listed
	killTime = 10 * time.Second      // time limit for killed processes to end
)

// End unmounts the mounts of every daemon whose state directory is below a directory, and ends the daemon. Without
// this, a daemon that the command mount has started would run for five more minutes. End returns an error if it had to
// kill processes or detach mounts.
func End(below string) error {
	var errs []error
	asked := map[int]bool{}
	deadline := time.Now().Add(endTime)
	for {
		running := Below(below)
		if len(running) == 0 {
			break
		}
		if time.Now().After(deadline) {
			errs = append(errs, fmt.Errorf("end daemons: %d processes had to be killed: %v", len(running), running))
			killAll(below)
			break
		}
		for _, p := range running {
			// Only the supervisor is asked to end; it asks its worker to unmount everything.
			if !p.Worker && !asked[p.PID] {
				asked[p.PID] = true
				syscall.Kill(p.PID, syscall.SIGTERM)
			}
		}
		time.Sleep(endPoll)
	}
	for _, dir := range Mounts(below) {
		errs = append(errs, fmt.Errorf("end daemons: detached remaining mount %s", dir))
		syscall.Unmount(dir, syscall.MNT_DETACH)
	}
	return errors.Join(errs...)
}

// killAll kills the processes of daemons whose state directory is below a directory, and waits until they have ended.
func killAll(below string) {
	for deadline := time.Now().Add(killTime); time.Now().Before(deadline); time.Sleep(endPoll) {
		running := Below(below)
		if len(running) == 0 {
			return
		}
		for _, p := range running {
			syscall.Kill(p.PID, syscall.SIGKILL)
		}
	}
	log.Printf("processes of daemons still run after SIGKILL: %v", Below(below))
}

// Process is a process of a daemon.
type Process struct {
	PID    int
	Worker bool   // the process serves or waits to serve; otherwise it is the supervisor
	State  string // state directory
}

// Below returns the running processes of daemons whose state directory is below a directory. Commands that serve a
// mount in the foreground are returned as supervisors.
func Below(below string) (found []Process) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		args, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		words := strings.Split(string(bytes.TrimSuffix(args, []byte{0})), "\x00")
		worker := slices.Contains(words, "worker")
		at := slices.Index(words, "--state")
		if !worker && !slices.Contains(words, "daemon") && !slices.Contains(words, "--foreground") ||
			at < 0 || at+1 == len(words) || !strings.HasPrefix(words[at+1], below+"/") {
			continue
		}
		stat, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		_, rest, _ := strings.Cut(string(stat), ") ")
		if rest == "" || rest[0] == 'Z' || rest[0] == 'X' {
			continue
		}
		found = append(found, Process{pid, worker, words[at+1]})
	}
	return found
}

// Mounts returns the mount points of the FUSE mounts below a directory.
func Mounts(below string) (dirs []string) {
	table, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); len(fields) > 2 && strings.HasPrefix(fields[1], below+"/") &&
			strings.HasPrefix(fields[2], "fuse") {
			dirs = append(dirs, fields[1])
		}
	}
	return dirs
}
