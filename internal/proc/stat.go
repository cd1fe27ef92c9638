package proc

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"
)

// Tick is the unit of times in /proc. It is 1/USER_HZ, and USER_HZ is 100 on every architecture that Go supports.
const Tick = 10 * time.Millisecond

// ErrStat reports that a stat file does not have the format that proc_pid_stat(5) describes.
var ErrStat = errors.New("invalid stat file of a process")

// Stat holds fields of proc_pid_stat(5).
type Stat struct {
	Name string // name of the command, at most 15 bytes
	// State is 'R' for running or runnable, 'D' for waiting for a disk, 'T' and 't' for stopped, 'Z' and 'X' for ended.
	State  byte
	Parent int // process ID of the parent
	Group  int // ID of the process group
	// Ran is the time that the process and those of its children that it has waited for have spent on a processor.
	Ran   time.Duration
	Start uint64 // start time, in ticks since the boot of the host
	// ArgStart is the start of the memory in which the kernel put the arguments and, after them, the environment; EnvEnd
	// is the end of this memory. Both are 0 if they are unknown, for example for processes that this process may not
	// trace.
	ArgStart, EnvEnd int64
}

// Ended reports whether the process has ended, so that only its process ID still exists.
func (s Stat) Ended() bool { return s.State == 'Z' || s.State == 'X' }

// Started returns the time between the boot of the host and the start of the process.
func (s Stat) Started() time.Duration { return time.Duration(s.Start) * Tick }

// Stat returns the fields of a process's or thread's stat file.
func (p Process) Stat() (Stat, error) {
	text, err := os.ReadFile(p.file("stat"))
	if err != nil {
		return Stat{}, err
	}
	return ParseStat(text)
}

// ParseStat parses the text of proc_pid_stat(5). It returns ErrStat if the text does not have the expected format.
func ParseStat(text []byte) (s Stat, err error) {
	// The name is in parentheses, and may itself contain spaces and parentheses.
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return Stat{}, ErrStat
	}
	s.Name = string(text[open+1 : end])
	const first = 3 // number of the first field after the name; proc_pid_stat(5) counts fields from 1
	fields := strings.Fields(string(text[end+1:]))
	if len(fields) <= 22-first || len(fields[0]) != 1 {
		return Stat{}, ErrStat
	}
	s.State = fields[0][0]
	if s.Parent, err = strconv.Atoi(fields[4-first]); err != nil {
		return Stat{}, ErrStat
	}
	if s.Group, err = strconv.Atoi(fields[5-first]); err != nil {
		return Stat{}, ErrStat
	}
	for _, field := range fields[14-first : 17-first+1] {
		ticks, err := strconv.ParseUint(field, 10, 64)
		if err != nil || ticks > uint64(1<<60/Tick) {
			return Stat{}, ErrStat
		}
		s.Ran += time.Duration(ticks) * Tick
	}
	if s.Start, err = strconv.ParseUint(fields[22-first], 10, 64); err != nil || s.Start > uint64(1<<62/Tick) {
		return Stat{}, ErrStat
	}
	if len(fields) > 51-first { // emulations of /proc may have fewer fields than Linux
		s.ArgStart, _ = strconv.ParseInt(fields[48-first], 10, 64)
		s.EnvEnd, _ = strconv.ParseInt(fields[51-first], 10, 64)
	}
	return s, nil
}

// Identity returns a text that identifies a process among all processes of this boot: its process ID and its start
// time. It returns "" if there is no such process.
func Identity(pid int) string {
	s, err := Of(pid).Stat()
	if err != nil {
		return ""
	}
	return strconv.Itoa(pid) + "." + strconv.FormatUint(s.Start, 10)
}

// GroupRan returns the time that the processes of a process group, and the children that they have waited for, have
// spent on a processor.
func GroupRan(group int) (ran time.Duration, err error) {
	pids, err := PIDs()
	for _, pid := range pids {
		if s, err := Of(pid).Stat(); err == nil && s.Group == group {
			ran += s.Ran
		}
	}
	return ran, err
}

// Times returns two durations: the time that a thread has spent on a processor, and the time that it has spent waiting
// for a processor. A wait is counted when it has ended. The source is /proc/PID/schedstat, whose values are nanoseconds
// (Documentation/scheduler/sched-stats.rst).
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
