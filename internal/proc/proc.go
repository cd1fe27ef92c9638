// Package proc reads what the kernel reports of processes and of the host in /proc: proc(5) and the pages it refers to. Of mounts,
// package mountinfo does.
//
// A process can end at any time, and another get its number: a caller that remembers a process remembers Stat.Started with it.
// Files of other users' processes may be unreadable; every method then returns the error of the system call.
//
// The package imports nothing that is slow to initialize, since a program that git starts for every command uses it.
package proc

import (
	"bytes"
	"os"
	"strconv"
	"strings"
)

// Root is the directory that the files of this package are in, with a slash at the end.
const Root = "/proc/"

// Self is this process.
const Self Process = Root + "self"

// Process is the directory of a process, or of a thread, in /proc.
type Process string

// Of returns the process, or the thread, of a number.
func Of(pid int) Process { return Process(Root + strconv.Itoa(pid)) }

// PIDs returns the numbers of the processes that /proc shows, in no order.
func PIDs() ([]int, error) {
	d, err := os.Open(Root)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	pids := make([]int, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// Threads returns the threads of p by their numbers, those that could be listed before p ended.
func (p Process) Threads() map[string]Process {
	d, err := os.Open(p.file("task"))
	if err != nil {
		return nil
	}
	defer d.Close()
	ids, _ := d.Readdirnames(-1)
	threads := make(map[string]Process, len(ids))
	for _, id := range ids {
		threads[id] = Process(p.file("task/" + id))
	}
	return threads
}

// file returns the path of a file of the process in /proc.
func (p Process) file(name string) string { return string(p) + "/" + name }

// Name returns the name of the command, 15 bytes at most: proc_pid_comm(5).
func (p Process) Name() (string, error) {
	text, err := os.ReadFile(p.file("comm"))
	return strings.TrimSpace(string(text)), err
}

// SetName changes the name of the command of this process.
func SetName(name string) error { return os.WriteFile(Self.file("comm"), []byte(name), 0) }

// Args returns the arguments that p was started with, the command first: proc_pid_cmdline(5). There are none if p has ended and
// was not waited for, or is ending, or is a thread of the kernel.
func (p Process) Args() ([]string, error) {
	text, err := os.ReadFile(p.file("cmdline"))
	if err != nil || len(text) == 0 {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00"), nil
}

// Environ returns the variables, name=value, that p was started with: proc_pid_environ(5).
func (p Process) Environ() ([]string, error) {
	text, err := os.ReadFile(p.file("environ"))
	if err != nil || len(text) == 0 {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00"), nil
}

// Dir returns the working directory: proc_pid_cwd(5). The kernel appends " (deleted)" if it was removed; so it does for RootDir
// and Executable.
func (p Process) Dir() (string, error) { return os.Readlink(p.file("cwd")) }

// RootDir returns the directory that p has for "/": proc_pid_root(5).
func (p Process) RootDir() (string, error) { return os.Readlink(p.file("root")) }

// Executable returns the path of the program that p runs: proc_pid_exe(5).
func (p Process) Executable() (string, error) { return os.Readlink(p.ExecutablePath()) }

// ExecutablePath returns a path by which the program that p runs can be opened and executed, even if it was removed or replaced.
func (p Process) ExecutablePath() string { return p.file("exe") }

// Namespace returns the name of p's namespace of a kind, "mnt" or "pid": proc_pid_ns(5). Processes of one namespace have the same.
func (p Process) Namespace(kind string) (string, error) { return os.Readlink(p.file("ns/" + kind)) }

// MountTable returns the path of the table of mounts that p sees, which package mountinfo reads.
func (p Process) MountTable() string { return p.file("mountinfo") }

// Maps returns the lines that describe p's memory: proc_pid_maps(5).
func (p Process) Maps() ([]byte, error) { return os.ReadFile(p.file("maps")) }

// MapsBelow reports whether p has files below dir mapped, as far as that can be seen.
func (p Process) MapsBelow(dir string) bool {
	text, err := p.Maps()
	return err == nil && bytes.Contains(text, []byte(" "+dir+"/"))
}

// Stack returns the functions of the kernel that a thread is in: proc_pid_stack(5). Only root may read it.
func (p Process) Stack() ([]byte, error) { return os.ReadFile(p.file("stack")) }

// Memory opens p's memory, in which an offset is an address: proc_pid_mem(5). flag is os.O_RDONLY or os.O_RDWR.
func (p Process) Memory(flag int) (*os.File, error) { return os.OpenFile(p.file("mem"), flag, 0) }

// Cgroup is one line of proc_pid_cgroup(5).
type Cgroup struct {
	Controllers string // "" in the unified hierarchy
	Path        string
}

// Cgroups returns the control groups of p: cgroups(7).
func (p Process) Cgroups() ([]Cgroup, error) {
	text, err := os.ReadFile(p.file("cgroup"))
	return ParseCgroups(string(text)), err
}

// ParseCgroups parses the text of proc_pid_cgroup(5). It skips lines that are not of the format.
func ParseCgroups(text string) (groups []Cgroup) {
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) == 3 {
			groups = append(groups, Cgroup{fields[1], fields[2]})
		}
	}
	return groups
}

// ResidentBytes returns how much of p's memory is resident: proc_pid_statm(5), whose second field counts pages.
func (p Process) ResidentBytes() (int64, bool) {
	text, err := os.ReadFile(p.file("statm"))
	fields := strings.Fields(string(text))
	if err != nil || len(fields) < 2 {
		return 0, false
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize()), err == nil
}
