package gitcmd

import (
	"context"
	"os/exec"
	"strconv"

	"golang.org/x/sys/unix"
)

// Confined makes the git commands of a server, which read objects that other people have made. git gets exactly the variables Env, and
// each process can allocate at most Memory bytes. The limit is RLIMIT_DATA, which does not count packs that are mapped into memory, as a
// limit of the address space would.
type Confined struct {
	Env    []string
	Memory int64 // 0: no limit
}

// DefaultMemory returns the default limit in bytes of the memory of each git process: an eighth of the machine's memory, but at most
// 2 GiB, and at least 256 MiB, which git needs for ordinary repositories.
func DefaultMemory() int64 {
	const least, most = 256 << 20, 2 << 30
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return most
	}
	return int64(min(max(uint64(info.Totalram)*uint64(info.Unit)/8, least), most))
}

const (
	shell = "/bin/sh"
	// limited sets a limit in KiB, and becomes the program that its arguments name. A lower limit that applies already stays.
	limited = `ulimit -d "$0" 2>/dev/null; exec "$@"`
)

// Command returns a git command that runs in the directory "/", like New. A shell sets the limit before git starts, because a limit that
// this process sets could be too late: git fetch at once starts other processes, which inherit the limit of that moment.
func (c Confined) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := New(ctx, args...)
	cmd.Env = append([]string{}, c.Env...) // not nil, with which git would inherit the environment
	if c.Memory > 0 && cmd.Err == nil {
		cmd.Args = append([]string{shell, "-c", limited, strconv.FormatInt(max(c.Memory>>10, 1), 10), cmd.Path}, args...)
		cmd.Path = shell
	}
	return cmd
}

// ForCommits returns c with an eighth of the memory. It is for commands that read commits and no other objects: git log holds
// a commit and its formatted copy in memory before it writes the first byte, and a commit of 200 MB needs less than 1 MB in a push.
func (c Confined) ForCommits() Confined {
	c.Memory /= 8
	return c
}

// LimitMemory limits the memory of a git process that was started without a limit and waits for its input. It needs no shell, whose start
// takes about a millisecond. Processes that git starts later inherit the limit.
func LimitMemory(pid int, bytes int64) error {
	if bytes <= 0 {
		return nil
	}
	return unix.Prlimit(pid, unix.RLIMIT_DATA, &unix.Rlimit{Cur: uint64(bytes), Max: uint64(bytes)}, nil)
}
