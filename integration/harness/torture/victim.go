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

// Victim is the daemon of a state directory, whose processes are killed. They are found in /proc, because a request to
// the daemon would wait for the takeover that is measured. Only processes whose arguments contain the state directory
// are signaled.
type Victim struct {
	State   string
	Command string // subcommand of the processes that serve
}

// Process is a process of the daemon.
type Process struct {
	PID     int
	Worker  bool // the process serves mounts or waits to serve them
	Serving bool // the process serves mounts now
}

// Processes returns the running processes of the daemon, oldest first.
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
		if !daemon && !worker || !slices.ContainsFunc(words,
			func(w string) bool { return w == v.State || w == "--state="+v.State }) {
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

// holdsDevice reports whether a process has the FUSE device of a mount open. A spare worker that waits does not have
// one open.
func holdsDevice(pid int) bool {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, l := range links {
		if target, err := os.Readlink(l); err == nil && target == "/dev/fuse" {
			return true
		}
	}
	return false
}

// Serving returns the ID of the process that serves the mounts, or 0 if there is none.
func (v Victim) Serving() int {
	for _, p := range v.Processes() {
		if p.Serving {
			return p.PID
		}
	}
	return 0
}

// Worker returns the ID of the process that serves the mounts, or 0 if there is no worker. Without mounts, it returns
// the oldest worker, because the others are spare workers.
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

// Supervisor returns the ID of the process that is not a worker, or 0 if there is none.
func (v Victim) Supervisor() int {
	for _, p := range v.Processes() {
		if !p.Worker {
			return p.PID
		}
	}
	return 0
}

// Await waits until there is a worker whose ID is not in old, at most for the duration patience, and returns its ID.
func (v Victim) Await(patience time.Duration, old ...int) (int, error) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if pid := v.Serving(); pid != 0 && !slices.Contains(old, pid) {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("wait for worker: none after %s, processes are %v", patience, v.Processes())
}

// Blow is a signal that was sent to the worker that serves.
type Blow struct {
	At   time.Duration // time of the signal as Now returns it
	PID  int
	Soon bool // the signal was sent immediately after the process had begun to serve
}

// longWait is the longest wait for an effect that has no time limit. It is long, because machines that run tests are
// busy.
const longWait = 2 * time.Minute

// Strike sends n signals to the worker that serves, each after a random time of at most longest. It ends earlier if
// stop returns true. One signal of eight is sent immediately, during a takeover. Another one is sent late, so that the
// supervisor sees that a worker can run for some time.
func (v Victim) Strike(n int, sig syscall.Signal, longest time.Duration, rnd *rand.Rand,
	stop func() bool) ([]Blow, error) {
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
		if !soon { // wait until a worker serves; the random time then starts
			if _, err := v.Await(longWait, dead); err != nil {
				return blows, err
			}
		}
		time.Sleep(wait)
		pid, err := v.Await(longWait, dead)
		if err != nil {
			return blows, err
		}
		at := Now()
		if err := syscall.Kill(pid, sig); err != nil {
			continue // the worker has ended for another reason, so continue with its successor
		}
		blows, dead = append(blows, Blow{at, pid, soon}), pid
	}
	return blows, nil
}

// Moments returns the times of the signals.
func Moments(blows []Blow) []time.Duration {
	var at []time.Duration
	for _, b := range blows {
		at = append(at, b.At)
	}
	return at
}
