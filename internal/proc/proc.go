// Package proc reads the information on processes and on the host in /proc, which proc(5) and the manual pages that it
// refers to describe. Package mountinfo reads the information on mounts.
//
// A process can end at any time, and another process can receive its ID. So a caller that stores a process ID must
// store Stat.Started with it. Files of other users' processes may be unreadable: the methods then return the error of
// the system call.
//
// The package must not import packages that are slow to initialize, because git starts a program that uses this package
// for every command.
package proc

import (
	"bytes"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Root is the path of the directory /proc, with a slash at the end.
const Root = "/proc/"

// Self is this process.
const Self Process = Root + "self"

// Process is the path of a process's or thread's directory in /proc.
type Process string

// CallerKey is the key under which the context of a request contains the ID of the thread that made the request, as an
// int.
type CallerKey struct{}

// Of returns the Process for a process ID or thread ID.
func Of(pid int) Process { return Process(Root + strconv.Itoa(pid)) }

// PIDs returns the IDs of the processes that /proc shows, in no particular order.
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

// IsOwnThread reports whether tid is a thread of this process.
func IsOwnThread(tid int) bool {
	_, err := os.Lstat(Self.file("task/" + strconv.Itoa(tid)))
	return err == nil
}

// Threads returns the threads of p by their IDs. If p ends during the call, Threads returns the threads that it could
// list, or nil.
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

// file returns the path of a file in the directory of the process.
func (p Process) file(name string) string { return string(p) + "/" + name }

// Name returns the name of the command, which has at most 15 bytes (proc_pid_comm(5)).
func (p Process) Name() (string, error) {
	text, err := os.ReadFile(p.file("comm"))
	return strings.TrimSpace(string(text)), err
}

// SetName changes the name of this process's command (proc_pid_comm(5)).
func SetName(name string) error { return os.WriteFile(Self.file("comm"), []byte(name), 0) }

// Args returns the arguments that p was started with, beginning with the command (proc_pid_cmdline(5)). It returns nil
// if p is exiting, if p has ended and its parent has not waited for it yet, or if p is a thread of the kernel.
func (p Process) Args() ([]string, error) {
	text, err := os.ReadFile(p.file("cmdline"))
	if err != nil || len(text) == 0 {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00"), nil
}

// Environ returns the environment variables that p was started with, in the form name=value (proc_pid_environ(5)).
func (p Process) Environ() ([]string, error) {
	text, err := os.ReadFile(p.file("environ"))
	if err != nil || len(text) == 0 {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00"), nil
}

// Dir returns the working directory of p (proc_pid_cwd(5)). If the directory was removed, the kernel appends "
// (deleted)" to its path. The kernel also appends this text to the results of RootDir and Executable.
func (p Process) Dir() (string, error) { return os.Readlink(p.file("cwd")) }

// DirNumber returns the device number and the inode number of p's working directory. It sends no request to the file
// system of this directory, because this process may serve that file system.
func (p Process) DirNumber() (device, ino uint64, err error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, p.file("cwd"), unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st); err != nil {
		return 0, 0, &os.PathError{Op: "statx", Path: p.file("cwd"), Err: err}
	}
	return unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino, nil
}

// RootDir returns the directory that is "/" for p (proc_pid_root(5)).
func (p Process) RootDir() (string, error) { return os.Readlink(p.file("root")) }

// Executable returns the path of the program that p runs (proc_pid_exe(5)).
func (p Process) Executable() (string, error) { return os.Readlink(p.ExecutablePath()) }

// ExecutablePath returns a path at which the program of p can be opened and executed, even if the program's file was
// removed or replaced.
func (p Process) ExecutablePath() string { return p.file("exe") }

// Namespace returns the name of p's namespace of the given kind, which is "mnt" or "pid" (proc_pid_ns(5)). The names
// for two processes are equal if both processes are in the same namespace.
func (p Process) Namespace(kind string) (string, error) { return os.Readlink(p.NamespacePath(kind)) }

// NamespacePath returns the path of the file that represents a namespace of the process; see namespaces(7).
func (p Process) NamespacePath(kind string) string { return p.file("ns/" + kind) }

// MountTable returns the path of p's mount table, which package mountinfo reads.
func (p Process) MountTable() string { return p.file("mountinfo") }

// Maps returns the lines that describe p's memory mappings (proc_pid_maps(5)).
func (p Process) Maps() ([]byte, error) { return os.ReadFile(p.file("maps")) }

// MapsBelow reports whether p has mapped files below dir. It returns false if p's mappings cannot be read.
func (p Process) MapsBelow(dir string) bool {
	text, err := p.Maps()
	return err == nil && bytes.Contains(text, []byte(" "+dir+"/"))
}

// Stack returns the kernel's call stack of a thread (proc_pid_stack(5)). Only root may read it.
func (p Process) Stack() ([]byte, error) { return os.ReadFile(p.file("stack")) }

// Memory opens p's memory as a file in which an offset is an address (proc_pid_mem(5)). The parameter flag is
// os.O_RDONLY or os.O_RDWR.
func (p Process) Memory(flag int) (*os.File, error) { return os.OpenFile(p.file("mem"), flag, 0) }

// Cgroup is one line of proc_pid_cgroup(5), which describes a control group of a process.
type Cgroup struct {
	// Controllers is a list separated by commas; "" in the unified hierarchy (cgroup v2).
	Controllers string
	Path        string // path of the control group in its hierarchy
}

// Cgroups returns the control groups of p (cgroups(7)).
func (p Process) Cgroups() ([]Cgroup, error) {
	text, err := os.ReadFile(p.file("cgroup"))
	return ParseCgroups(string(text)), err
}

// ParseCgroups parses the text of proc_pid_cgroup(5). It skips lines that do not have the expected format.
func ParseCgroups(text string) (groups []Cgroup) {
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) == 3 {
			groups = append(groups, Cgroup{fields[1], fields[2]})
		}
	}
	return groups
}

// ResidentBytes returns the size of p's resident memory in bytes. It multiplies the second field of proc_pid_statm(5),
// which counts pages, by the page size. It returns false if the size cannot be read.
func (p Process) ResidentBytes() (int64, bool) {
	text, err := os.ReadFile(p.file("statm"))
	fields := strings.Fields(string(text))
	if err != nil || len(fields) < 2 {
		return 0, false
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize()), err == nil
}
