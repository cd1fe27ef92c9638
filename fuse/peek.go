package fuse

import (
	"bytes"
	"encoding/binary"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// A GETATTR does not say what for. Whoever asked is blocked in a system call, and /proc says which (proc(5), syscall):
// many calls check permissions only, and must not wait for a size that may have to come from far. What cannot be read
// (a thread in a namespace that hides it, a process that may not be traced, an io_uring) waits. So does another file
// system that lies over this one: in the same calls it may read attributes to copy a file (overlayfs, copy up).

// sysCall is a system call that a thread is blocked in.
type sysCall proc.SystemCall

// needsSize says whether a thread that makes the kernel ask for the attributes of a file of this mode may look at
// its size.
func needsSize(tid, mode uint32) bool {
	thread := proc.Of(int(tid))
	c, ok := blockedIn(thread)
	if !ok {
		return true
	}
	switch c.use() {
	case useNone:
		return false
	case useChange:
		return !checksPermission(thread)
	case useOpenHow:
		flags, ok := openHow(thread, c.Args[2])
		return !ok || !writes(flags) || !checksPermission(thread)
	case useStat:
		return !indifferent(thread, mode)
	}
	return true
}

// asksForAttribute says whether a thread is in a system call that asks for an extended attribute. The kernel then asks
// for the length of "security.capability" first, as it does before a write (security/commoncap.c,
// cap_inode_getsecurity).
func asksForAttribute(tid uint32) bool {
	c, ok := blockedIn(proc.Of(int(tid)))
	if !ok || c.Stack < 1<<32 {
		return false
	}
	switch c.Number {
	case unix.SYS_GETXATTR, unix.SYS_LGETXATTR, unix.SYS_FGETXATTR:
		return true
	}
	return false
}

// blockedIn returns the system call that a thread is blocked in. One that has sent its request may still be on its way
// to sleep, and is "running" for a moment.
func blockedIn(thread proc.Process) (sysCall, bool) {
	for pause := 20 * time.Microsecond; pause < 50*time.Millisecond; pause *= 2 {
		c, running, ok := thread.SystemCall()
		if !running {
			return sysCall(c), ok
		}
		time.Sleep(pause)
	}
	return sysCall{}, false
}

// checksPermission says whether it is to check permissions that the kernel asks, and not for another file system.
// Its stack says so, which only root may read; others see whether there is another file system where the caller is.
func checksPermission(thread proc.Process) bool {
	stack, err := thread.Stack()
	if err == nil {
		return bytes.Contains(stack, []byte(" fuse_permission+"))
	}
	mounts, err := os.ReadFile(thread.MountTable())
	return err == nil && !stacks(mounts)
}

// stacks says whether a mountinfo lists a file system that shows files of another one as its own.
func stacks(mountinfo []byte) bool {
	for line := range bytes.Lines(mountinfo) {
		_, source, _ := bytes.Cut(line, []byte(" - "))
		kind, _, _ := bytes.Cut(source, []byte(" "))
		switch string(kind) {
		case "overlay", "ecryptfs", "": // or it is no mountinfo
			return true
		}
	}
	return false
}

// indifferent says whether a program calls stat for a file only to see of what kind it is, before it removes, moves,
// changes or overwrites it, and neither shows nor uses a size that stat told (mv and cp, when they have to copy, ask
// again once they have the file open, which waits). Without this rm would fail when the network is down.
func indifferent(thread proc.Process, mode uint32) bool {
	name, err := thread.Name()
	if err != nil {
		return false
	}
	switch name {
	case "chgrp", "chmod", "chown", "cp", "ln", "mv": // touch and unlink need no name: their system calls say it
		return true
	case "rm": // "remove regular empty file?" is what it asks when told to ask, or before it removes what is read-only
		args, err := thread.Args()
		return err == nil && mode&0o222 != 0 && !asks(args)
	}
	return false
}

// asks says whether one of rm's arguments may be an option to ask (-i, -I, --interactive).
func asks(args []string) bool {
	for _, arg := range args {
		if len(arg) > 1 && arg[0] == '-' && strings.ContainsAny(arg, "iI") {
			return true
		}
	}
	return false
}

// use is what a system call wants a file's attributes for.
type use int

const (
	useAny     use = iota // its size too, perhaps
	useNone               // others than the size (statx says which)
	useChange             // permissions
	useOpenHow            // as the flags in memory say (openat2)
	useStat               // whatever the program that calls stat does with it
)

func (c sysCall) use() use {
	// Programs of 32 bits have other numbers for their calls. Their stacks lie below 4 GiB, those of others above.
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
		unix.SYS_GETXATTR, unix.SYS_LGETXATTR, unix.SYS_FGETXATTR, unix.SYS_LISTXATTR, unix.SYS_LLISTXATTR, unix.SYS_FLISTXATTR,
		unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR, unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR, unix.SYS_FREMOVEXATTR,
		unix.SYS_INOTIFY_ADD_WATCH:
		return useChange
	}
	return useAny
}

func openUse(flags uint64) use {
	if writes(flags) {
		return useChange
	}
	return useAny
}

// statUse is that of a stat with these flags. A stat of an open file is not made to see of what kind it is.
func statUse(flags uint64) use {
	if flags&unix.AT_EMPTY_PATH != 0 {
		return useAny
	}
	return useStat
}

// writes says whether an open needs no size: for writing alone, where each write asks again, or to empty the file.
// With O_RDWR a mapping may follow, which does not ask.
func writes(flags uint64) bool {
	return flags&unix.O_ACCMODE == unix.O_WRONLY || flags&unix.O_TRUNC != 0
}

// openHow reads the flags of an openat2(2), the first field of a struct open_how in the caller's memory.
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
