package torture

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Victim is the server of a state directory, as /proc shows it: asking the server itself would wait for the very
// takeover that is looked at. Only processes whose arguments name the state directory are ever touched.
type Victim struct {
	State   string
	Command string // the hidden command of processes that serve
}

// Process is one of the victim's.
type Process struct {
	PID     int
	Worker  bool // it serves, or waits to serve
	Serving bool // it has mounts
}

// Processes lists those of the victim that live, the oldest first.
func (v Victim) Processes() []Process {
	type aged struct {
		Process
		start int64
	}
	var found []aged
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		args, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		words := strings.Split(string(bytes.TrimSuffix(args, []byte{0})), "\x00")
		daemon, worker := slices.Contains(words, "daemon"), slices.Contains(words, v.Command)
		if !daemon && !worker || !slices.ContainsFunc(words, func(w string) bool { return w == v.State || w == "--state="+v.State }) {
			continue
		}
		stat, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		_, rest, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest)
		if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
			continue
		}
		start, _ := strconv.ParseInt(fields[19], 10, 64)
		found = append(found, aged{Process{pid, worker, worker && holdsDevice(pid)}, start})
	}
	slices.SortStableFunc(found, func(a, b aged) int { return int(a.start - b.start) })
	var all []Process
	for _, p := range found {
		all = append(all, p.Process)
	}
	return all
}

// holdsDevice reports whether a process has a mount's device open. A spare worker that waits has not.
func holdsDevice(pid int) bool {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, l := range links {
		if target, err := os.Readlink(l); err == nil && target == "/dev/fuse" {
			return true
		}
	}
	return false
}

// Serving is the process that serves the mounts; 0: none does.
func (v Victim) Serving() int {
	for _, p := range v.Processes() {
		if p.Serving {
			return p.PID
		}
	}
	return 0
}

// Worker is the process that serves the mounts or would: without mounts it is the oldest, since others wait to follow.
func (v Victim) Worker() int {
	worker := 0
	for _, p := range v.Processes() {
		if p.Serving {
			return p.PID
		}
		if p.Worker && worker == 0 {
			worker = p.PID
		}
	}
	return worker
}

// Supervisor is the process that is no worker; 0: there is none.
func (v Victim) Supervisor() int {
	for _, p := range v.Processes() {
		if !p.Worker {
			return p.PID
		}
	}
	return 0
}

// Await waits for a worker that is not one of old.
func (v Victim) Await(patience time.Duration, old ...int) (int, error) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if pid := v.Serving(); pid != 0 && !slices.Contains(old, pid) {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("wait for a worker: none after %s (%v)", patience, v.Processes())
}

// Blow is a signal that was sent to the serving process.
type Blow struct {
	At   time.Duration // as Now
	PID  int
	Soon bool // the one before it had hardly begun to serve
}

// Strike sends signals to the process that serves, each after a random time that is longest at most, until all are sent or stop
// says so. Of eight, one comes at once: in the middle of a takeover. One of eight comes late, so that a supervisor sees
// that its workers do not die of what they are given.
func (v Victim) Strike(n int, sig syscall.Signal, longest time.Duration, rnd *rand.Rand, stop func() bool) ([]Blow, error) {
	var blows []Blow
	dead := 0
	for len(blows) < n && !stop() {
		wait, soon := time.Duration(rnd.Int64N(int64(longest))), len(blows)%8 == 7
		switch {
		case soon:
			wait = time.Duration(rnd.Int64N(int64(30 * time.Millisecond)))
		case len(blows)%8 == 4:
			wait += 1200 * time.Millisecond
		}
		if !soon { // the takeover is over when a process serves; what it does then is part of the random time
			if _, err := v.Await(30*time.Second, dead); err != nil {
				return blows, err
			}
		}
		time.Sleep(wait)
		pid, err := v.Await(30*time.Second, dead)
		if err != nil {
			return blows, err
		}
		at := Now()
		if err := syscall.Kill(pid, sig); err != nil {
			continue // it ended on its own; its successor is next
		}
		blows, dead = append(blows, Blow{at, pid, soon}), pid
	}
	return blows, nil
}

// Moments are when they fell.
func Moments(blows []Blow) []time.Duration {
	var at []time.Duration
	for _, b := range blows {
		at = append(at, b.At)
	}
	return at
}
