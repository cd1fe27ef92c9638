// Package daemons finds and ends the daemons that a measurement has started: those whose state directory is below the directory of the
// measurement. They are found in /proc, so that those which no longer answer are found too.
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
	endTime  = 2 * time.Minute       // maximum time in which daemons unmount everything and end
	endPoll  = 20 * time.Millisecond // interval at which their processes are listed
	killTime = 10 * time.Second      // maximum time in which killed processes end
)

// End ends every daemon whose state directory is below a directory, with its mounts, and waits for the end. A daemon that mount
// has started would otherwise stay for five minutes. It returns an error if processes had to be killed or mounts had to be detached.
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
			errs = append(errs, fmt.Errorf("%d processes did not end: %v", len(running), running))
			killAll(below)
			break
		}
		for _, p := range running {
			// The supervisor asks its worker to unmount everything.
			if !p.Worker && !asked[p.PID] {
				asked[p.PID] = true
				syscall.Kill(p.PID, syscall.SIGTERM)
			}
		}
		time.Sleep(endPoll)
	}
	for _, dir := range Mounts(below) {
		errs = append(errs, fmt.Errorf("%s was still mounted", dir))
		syscall.Unmount(dir, syscall.MNT_DETACH)
	}
	return errors.Join(errs...)
}

// killAll kills the processes of daemons below a directory, and waits for their end.
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
	log.Printf("processes are left: %v", Below(below))
}

// Process is a process of a daemon.
type Process struct {
	PID    int
	Worker bool   // the process serves or waits to serve; otherwise it is the supervisor
	State  string // state directory
}

// Below lists the running processes of daemons whose state directory is below a directory. Mounts in the foreground count as
// supervisors.
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

// Mounts lists the FUSE mounts below a directory.
func Mounts(below string) (dirs []string) {
	table, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); len(fields) > 2 && strings.HasPrefix(fields[1], below+"/") && strings.HasPrefix(fields[2], "fuse") {
			dirs = append(dirs, fields[1])
		}
	}
	return dirs
}
