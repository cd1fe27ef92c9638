// Package caller finds out from /proc in which system call the thread that has caused a request of the kernel is
// blocked: whether the system call uses the size of a file, and whether it changes the file.
package caller

import (
	"bytes"
	"encoding/binary"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// A GETATTR does not state its purpose. But the process that has caused the request is blocked in a system call, which
// /proc shows (proc(5), syscall). Many system calls only check permissions, and these must not wait for a size that may
// have to be fetched. The functions below determine the purpose from the system call. The request waits for the size if
// the system call cannot be read, because the thread is in a namespace that hides it, must not be traced, or uses
// io_uring. The request also waits if another file system that is stacked on this one requests the attributes: even in
// a system call that seems to need no size, that file system may read attributes to copy a file (overlayfs, copy up).

// sysCall is a system call that a thread is blocked in.
type sysCall proc.SystemCall

// NeedsSize reports whether the thread tid, for which the kernel requests the attributes of a file, may use the
// file's size. mode is the mode of the file.
func NeedsSize(tid, mode uint32) bool {
	thread := proc.Of(int(tid))
	c, ok := blockedIn(thread)
	if !ok {
		return true
	}
	purpose := c.use()
	if purpose == useOpenHow {
		flags, ok := openHow(thread, c.Args[2])
		if !ok {
			return true
		}
		purpose = openUse(flags)
	}
	switch purpose {
	case useNone:
		return false
	case useChange:
		return !checksPermission(thread)
	case useTouch:
		name, err := thread.Name()
		return err != nil || name != "touch" || !checksPermission(thread)
	case useStat:
		return !indifferent(thread, mode)
	}
	return true
}

// Truncates reports whether a thread is in truncate(2) or ftruncate(2).
func Truncates(tid uint32) bool {
	c, ok := blockedIn(proc.Of(int(tid)))
	return ok && c.Stack >= 1<<32 && (c.Number == unix.SYS_TRUNCATE || c.Number == unix.SYS_FTRUNCATE)
}

// A thread that has sent a request sleeps until the reply arrives. On a busy host, it may be some time before the
// thread runs again and falls asleep. Until then /proc shows it as running.
const (
	sleepTime = time.Second           // maximum time for which awaitCall waits until a thread sleeps
	sleepPoll = 10 * time.Millisecond // longest pause between two reads of its state
)

// blockedIn returns the system call that a thread is blocked in. It returns false if the system call cannot be read.
func blockedIn(thread proc.Process) (sysCall, bool) { return awaitCall(thread.SystemCall) }

// awaitCall calls read until the thread does not run any more, but not longer than sleepTime, and returns its system
// call.
func awaitCall(read func() (c proc.SystemCall, running, ok bool)) (sysCall, bool) {
	pause := 20 * time.Microsecond
	for end := time.Now().Add(sleepTime); time.Now().Before(end); pause = min(2*pause, sleepPoll) {
		c, running, ok := read()
		if !running {
			return sysCall(c), ok
		}
		time.Sleep(pause)
	}
	return sysCall{}, false
}

// checksPermission reports whether the kernel requests the attributes to check permissions, and not for another file
// system that is stacked on this one. The kernel stack of the thread shows this, but only root may read the stack. If
// the stack cannot be read, checksPermission returns true unless the thread's mount table lists a stacked file system.
func checksPermission(thread proc.Process) bool {
	stack, err := thread.Stack()
	if err == nil {
		return bytes.Contains(stack, []byte(" fuse_permission+"))
	}
	mounts, err := os.ReadFile(thread.MountTable())
	return err == nil && !stacks(mounts)
}

// stacks reports whether a mount table (proc(5), mountinfo) lists a file system that shows the files of another file
// system as its own.
func stacks(mountinfo []byte) bool {
	for line := range bytes.Lines(mountinfo) {
		_, source, _ := bytes.Cut(line, []byte(" - "))
		kind, _, _ := bytes.Cut(source, []byte(" "))
		switch string(kind) {
		case "overlay", "ecryptfs", "": // an empty type means that the format of the line is unknown
			return true
		}
	}
	return false
}

// indifferent reports whether the program of a thread calls stat only to find out the type of a file, before it
// removes, moves, changes or overwrites the file, and does not use the size. When mv and cp have to copy, they call
// stat once more on the open file, and that stat waits for the size. Without this exception rm would fail while the
// remote is unreachable.
func indifferent(thread proc.Process, mode uint32) bool {
	name, err := thread.Name()
	if err != nil {
		return false
	}
	switch name {
	// touch and unlink are not listed, because their system calls already show that they need no size.
	case "chgrp", "chmod", "chown", "cp", "ln", "mv":
		return true
	// rm needs the size if it asks the user for confirmation (with an option, or for a read-only file), because the
	// text of the question depends on the size
	case "rm":
		args, err := thread.Args()
		return err == nil && mode&0o222 != 0 && !asks(args)
	}
	return false
}

// asks reports whether one of the arguments of rm may be an option that makes rm ask before it removes a file (-i, -I,
// --interactive). The result is also true for some options that do not have this effect.
func asks(args []string) bool {
	for _, arg := range args {
		if len(arg) > 1 && arg[0] == '-' && strings.ContainsAny(arg, "iI") {
			return true
		}
	}
	return false
}

// use is the purpose for which a system call needs the attributes of a file, as far as the call's number and arguments
// show it.
type use int

const (
	useAny     use = iota // the purpose is unknown, so the call may need the size
	useNone               // the call needs only attributes other than the size, as the mask of statx(2) shows
	useChange             // the call opens or changes the file, and the kernel needs only the permissions
	useTouch              // the call opens the file as touch does, which does not write; another program may append later
	useOpenHow            // the purpose depends on the flags of openat2(2), which are in the memory of the thread
	useStat               // the purpose depends on the program that calls stat
)

// use returns the purpose for which the kernel needs the attributes during a system call, or useAny if the purpose is
// unknown.
func (c sysCall) use() use {
	// In 32-bit programs the same numbers stand for other system calls. The stacks of such programs are below 4 GiB, and
	// the stacks of 64-bit programs are above.
	if c.Stack < 1<<32 {
		return useAny
	}
	if u := c.legacyUse(); u != useAny {
		return u
	}
	switch c.Number {
	case unix.SYS_OPENAT:
		return openUse(c.Args[2])
	case unix.SYS_OPENAT2:
		return useOpenHow
	case unix.SYS_STATX:
		if c.Args[3]&(unix.STATX_SIZE|unix.STATX_BLOCKS) == 0 {
			return useNone
		}
		return statUse(c.Args[2])
	case unix.SYS_NEWFSTATAT:
		return statUse(c.Args[3])
	case unix.SYS_TRUNCATE, unix.SYS_LINKAT, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT2,
		unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2, unix.SYS_UTIMENSAT,
		unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT,
		unix.SYS_GETXATTR, unix.SYS_LGETXATTR, unix.SYS_FGETXATTR, unix.SYS_LISTXATTR, unix.SYS_LLISTXATTR,
		unix.SYS_FLISTXATTR,
		unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR, unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR,
		unix.SYS_FREMOVEXATTR,
		unix.SYS_INOTIFY_ADD_WATCH:
		return useChange
	}
	return useAny
}

// openUse returns the purpose of an open(2) with these flags. An open that truncates the file to size 0 needs no size:
// the kernel requests the attributes only to check permissions. An open that may be followed by an append needs the
// size, because the kernel appends at the size that it knows. An open with O_RDWR needs the size, because the program
// may map the file next, and for a mapping the kernel does not request the size.
func openUse(flags uint64) use {
	switch {
	case flags&unix.O_TRUNC != 0:
		return useChange
	case flags&unix.O_ACCMODE == unix.O_WRONLY && flags&(unix.O_NONBLOCK|unix.O_APPEND) == unix.O_NONBLOCK:
		return useTouch
	}
	return useAny
}

// statUse returns the purpose of a stat with these flags. A program that calls stat on an open file (AT_EMPTY_PATH) may
// use the size, and not only the type of the file.
func statUse(flags uint64) use {
	if flags&unix.AT_EMPTY_PATH != 0 {
		return useAny
	}
	return useStat
}

// openHow returns the flags of an openat2(2). They are the first field of the struct open_how at addr in the memory
// of the thread. ok is false if that memory cannot be read.
func openHow(thread proc.Process, addr uint64) (flags uint64, ok bool) {
	mem, err := thread.Memory(os.O_RDONLY)
	if err != nil {
		return 0, false
	}
	defer mem.Close()
	var b [8]byte
	if _, err := mem.ReadAt(b[:], int64(addr)); err != nil {
		return 0, false
	}
	return binary.NativeEndian.Uint64(b[:]), true
}

// Changes reports whether a thread is in a system call that opens a file for writing, writes to it, truncates it, or
// asks whether it can be written to. It returns false for system calls that may read the file and write to another one,
// and if the system call cannot be read.
func Changes(tid uint32) bool {
	thread := proc.Of(int(tid))
	c, ok := blockedIn(thread)
	if !ok || c.Stack < 1<<32 { // a 32-bit program, in which the numbers stand for other system calls (see sysCall.use)
		return false
	}
	switch c.Number {
	case unix.SYS_OPENAT:
		return opensToChange(c.Args[2])
	case unix.SYS_OPENAT2:
		flags, ok := openHow(thread, c.Args[2])
		return ok && opensToChange(flags)
	case unix.SYS_WRITE, unix.SYS_WRITEV, unix.SYS_PWRITE64, unix.SYS_PWRITEV, unix.SYS_PWRITEV2, unix.SYS_TRUNCATE,
		unix.SYS_FTRUNCATE:
		return true
	case unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2:
		return c.Args[2]&unix.W_OK != 0
	}
	return c.legacyChanges()
}

// opensToChange reports whether an open(2) with these flags opens a file for writing or truncates it.
func opensToChange(flags uint64) bool {
	return flags&unix.O_PATH == 0 && (flags&unix.O_ACCMODE != unix.O_RDONLY || flags&unix.O_TRUNC != 0)
}
