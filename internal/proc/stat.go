package proc

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"
)

// Tick is the unit of times in /proc: USER_HZ is 100 on every architecture that Go runs on.
const Tick = 10 * time.Millisecond

// ErrStat reports that a stat file is not of the format that proc_pid_stat(5) describes.
var ErrStat = errors.New("invalid stat of a process")

// Stat holds fields of proc_pid_stat(5).
type Stat struct {
	Name   string // of the command, 15 bytes at most
	State  byte   // 'R' runs or is runnable, 'D' waits for a disk, 'T' and 't' are stopped, 'Z' and 'X' have ended
	Parent int    // process number
	Start  uint64 // when it was started, in ticks since the boot of the host
	// ArgStart and EnvEnd are the addresses between which the kernel put arguments and environment, one behind the other. They are 0
	// if they are not known, as of processes that this one may not trace.
	ArgStart, EnvEnd int64
}

// Ended reports whether only the number of the process still exists.
func (s Stat) Ended() bool { return s.State == 'Z' || s.State == 'X' }

// Started returns the time between the boot of the host and the start of the process.
func (s Stat) Started() time.Duration { return time.Duration(s.Start) * Tick }

// Stat returns the state of a process or thread.
func (p Process) Stat() (Stat, error) {
	text, err := os.ReadFile(p.file("stat"))
	if err != nil {
		return Stat{}, err
	}
	return ParseStat(text)
}

// ParseStat parses the text of proc_pid_stat(5). It returns ErrStat for anything else.
func ParseStat(text []byte) (s Stat, err error) {
	// The name is in parentheses and may contain spaces and parentheses itself.
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return Stat{}, ErrStat
	}
	s.Name = string(text[open+1 : end])
	const first = 3 // the number of the first field behind the name; proc_pid_stat(5) counts from 1
	fields := strings.Fields(string(text[end+1:]))
	if len(fields) <= 22-first || len(fields[0]) != 1 {
		return Stat{}, ErrStat
	}
	s.State = fields[0][0]
	if s.Parent, err = strconv.Atoi(fields[4-first]); err != nil {
		return Stat{}, ErrStat
	}
	if s.Start, err = strconv.ParseUint(fields[22-first], 10, 64); err != nil || s.Start > uint64(1<<62/Tick) {
		return Stat{}, ErrStat
	}
	if len(fields) > 51-first { // emulations of /proc may have fewer
		s.ArgStart, _ = strconv.ParseInt(fields[48-first], 10, 64)
		s.EnvEnd, _ = strconv.ParseInt(fields[51-first], 10, 64)
	}
	return s, nil
}

// Identity returns a text that no other process of this boot has, "" if there is no process: its number and its start.
func Identity(pid int) string {
	s, err := Of(pid).Stat()
	if err != nil {
		return ""
	}
	return strconv.Itoa(pid) + "." + strconv.FormatUint(s.Start, 10)
}

// Times returns how long a thread ran on a processor, and how long it waited for one. A wait counts once it has ended. Source:
// Documentation/scheduler/sched-stats.rst, /proc/PID/schedstat, in nanoseconds.
func (p Process) Times() (ran, waited time.Duration, ok bool) {
	text, err := os.ReadFile(p.file("schedstat"))
	fields := strings.Fields(string(text))
	if err != nil || len(fields) < 2 {
		return 0, 0, false
	}
	r, err1 := strconv.ParseInt(fields[0], 10, 64)
	w, err2 := strconv.ParseInt(fields[1], 10, 64)
	return time.Duration(r), time.Duration(w), err1 == nil && err2 == nil
}
