package proc

import (
	"bytes"
	"os"
	"strconv"
)

// Status holds some fields of proc_pid_status(5).
type Status struct {
	Name      string  // name of the command
	PID       int     // process ID, even if the status describes a thread
	Pending   uint64  // signals that are pending for the thread or its process; signal n is bit n-1
	Blocked   uint64  // signals that the thread blocks
	Threads   int     // number of threads of the process
	Umask     *uint32 // file mode creation mask; nil if the kernel does not report it (before Linux 4.7)
	Anonymous int64   // bytes of resident memory that belongs to no file, mainly the heap
}

// Status returns the status of a process or thread.
func (p Process) Status() (Status, error) {
	text, err := os.ReadFile(p.file("status"))
	if err != nil {
		return Status{}, err
	}
	return ParseStatus(text), nil
}

// ParseStatus parses the text of proc_pid_status(5). Fields that are missing or invalid stay zero.
func ParseStatus(text []byte) (s Status) {
	for line := range bytes.Lines(text) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch string(key) {
		case "Name":
			s.Name = string(value)
		case "Tgid":
			s.PID, _ = strconv.Atoi(string(value))
		case "Threads":
			s.Threads, _ = strconv.Atoi(string(value))
		case "Umask":
			if n, err := strconv.ParseUint(string(value), 8, 32); err == nil {
				umask := uint32(n)
				s.Umask = &umask
			}
		case "RssAnon":
			kib, _ := strconv.ParseInt(string(bytes.TrimSuffix(value, []byte(" kB"))), 10, 64)
			s.Anonymous = kib << 10
		case "SigPnd", "ShdPnd":
			s.Pending |= mask(value)
		case "SigBlk":
			s.Blocked = mask(value)
		}
	}
	return s
}

// mask parses a set of signals, which is written as sixteen hexadecimal digits.
func mask(text []byte) uint64 {
	m, _ := strconv.ParseUint(string(text), 16, 64)
	return m
}

// SystemCall describes the system call in which a thread is blocked (proc_pid_syscall(5)).
type SystemCall struct {
	// Number is the number of the system call, and Args are its arguments.
	Number uint64
	Args   [6]uint64
	Stack  uint64 // stack pointer
}

// SystemCall returns the system call in which a thread is blocked. If the thread is not blocked, running is true and ok
// is false. The result ok is also false if the thread is blocked outside of a system call, if the thread has ended, or
// if this process may not inspect the thread.
func (p Process) SystemCall() (c SystemCall, running, ok bool) {
	line, err := os.ReadFile(p.file("syscall"))
	if err != nil {
		return c, false, false
	}
	if bytes.HasPrefix(line, []byte("running")) {
		return c, true, false
	}
	c, ok = ParseSystemCall(line)
	return c, false, ok
}

// ParseSystemCall parses the line in the file that proc_pid_syscall(5) describes. The line contains the number of the
// system call in decimal, then six arguments, the stack pointer and the program counter in hexadecimal.
func ParseSystemCall(line []byte) (c SystemCall, ok bool) {
	fields := bytes.Fields(line)
	if len(fields) != 9 {
		return c, false
	}
	var err error
	if c.Number, err = strconv.ParseUint(string(fields[0]), 10, 64); err != nil {
		return c, false
	}
	for i, field := range fields[1:8] {
		v, err := strconv.ParseUint(string(field), 0, 64)
		if err != nil {
			return c, false
		}
		if i < len(c.Args) {
			c.Args[i] = v
		} else {
			c.Stack = v
		}
	}
	return c, true
}
