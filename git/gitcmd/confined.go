package gitcmd

import (
	"context"
	"os/exec"
	"strconv"

	"golang.org/x/sys/unix"
)

// Confined makes the git commands of a server, which read objects that other people have made. git gets exactly the
// variables Env, and each process can allocate at most Memory bytes, or the limit of WithMemory. The limit is
// RLIMIT_DATA, which does not count packs that are mapped into memory, as a limit of the address space would.
type Confined struct {
	Env    []string
	Memory int64 // 0: no limit

	commits bool // see ForCommits
}

type memoryKey struct{}

// WithMemory returns a context for work that has a part of the memory of the server: each git process that is made with
// it can allocate this number of bytes. 0: the limit of Confined applies.
func WithMemory(ctx context.Context, bytes int64) context.Context {
	if bytes <= 0 {
		return ctx
	}
	return context.WithValue(ctx, memoryKey{}, bytes)
}

// MemoryOf returns the limit that WithMemory has set, and otherwise the second argument.
func MemoryOf(ctx context.Context, otherwise int64) int64 {
	if bytes, ok := ctx.Value(memoryKey{}).(int64); ok {
		return bytes
	}
	return otherwise
}

const (
	shell = "/bin/sh"
	// limited sets a limit in KiB, and becomes the program that its arguments name. A lower limit that applies already
	// stays.
	limited = `ulimit -d "$0" 2>/dev/null; exec "$@"`
)

// Command returns a git command that runs in the directory "/", like New. A shell sets the limit before git starts,
// because a limit that this process sets could be too late: git fetch at once starts other processes, which inherit the
// limit of that moment.
func (c Confined) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := New(ctx, args...)
	cmd.Env = append([]string{}, c.Env...) // not nil, with which git would inherit the environment
	memory := MemoryOf(ctx, c.Memory)
	if c.commits {
		memory = max(memory/8, min(memory, leastOfCommits))
	}
	if memory > 0 && cmd.Err == nil {
		cmd.Args = append([]string{shell, "-c", limited, strconv.FormatInt(max(memory>>10, 1), 10), cmd.Path}, args...)
		cmd.Path = shell
	}
	return cmd
}

// leastOfCommits is the memory in bytes that a command which reads commits gets in any case.
const leastOfCommits = 32 << 20

// ForCommits returns c with an eighth of the memory, but at least 32 MiB. It is for commands that read commits and no
// other objects: git log holds a commit and its formatted copy in memory before it writes the first byte, and a commit
// of 200 MB needs less than 1 MB in a push.
func (c Confined) ForCommits() Confined {
	c.commits = true
	return c
}

// LimitMemory limits the memory of a git process that was started without a limit and waits for its input. It needs no
// shell, whose start takes about a millisecond. Processes that git starts later inherit the limit.
func LimitMemory(pid int, bytes int64) error {
	if bytes <= 0 {
		return nil
	}
	return unix.Prlimit(pid, unix.RLIMIT_DATA, &unix.Rlimit{Cur: uint64(bytes), Max: uint64(bytes)}, nil)
}
