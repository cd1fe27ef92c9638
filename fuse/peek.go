package fuse

import (
	"bytes"
	"encoding/binary"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A GETATTR does not say what for. Whoever asked is blocked in a system call, and /proc says which (proc(5), syscall):
// many calls check permissions only, and must not wait for a size that may have to come from far. What cannot be read
// (a thread in a namespace that hides it, a process that may not be traced, an io_uring) waits. So does another file
// system that lies over this one: in the same calls it may read attributes to copy a file (overlayfs, copy up).

// sysCall is a system call that a thread is blocked in.
type sysCall struct {
	number uint64
	args   [6]uint64
	stack  uint64 // the stack pointer
}

// needsSize says whether a thread that makes the kernel ask for the attributes of a file of this mode may look at
// its size.
func needsSize(tid, mode uint32) bool {
	proc := "/proc/" + strconv.FormatUint(uint64(tid), 10)
	c, ok := blockedIn(proc)
	if !ok {
		return true
	}
	switch c.use() {
	case useNone:
		return false
	case useChange:
		return !checksPermission(proc)
	case useOpenHow:
		flags, ok := openHow(proc, c.args[2])
		return !ok || !writes(flags) || !checksPermission(proc)
	case useStat:
		return !indifferent(proc, mode)
	}
	return true
}

// asksForAttribute says whether a thread is in a system call that asks for an extended attribute. The kernel then asks
// for the length of "security.capability" first, as it does before a write (security/commoncap.c,
// cap_inode_getsecurity).
func asksForAttribute(tid uint32) bool {
	c, ok := blockedIn("/proc/" + strconv.FormatUint(uint64(tid), 10))
	if !ok || c.stack < 1<<32 {
		return false
	}
	switch c.number {
	case unix.SYS_GETXATTR, unix.SYS_LGETXATTR, unix.SYS_FGETXATTR:
		return true
	}
	return false
}

// blockedIn gives the system call that a thread is blocked in. One that has sent its request may still be on its way
// to sleep, and is "running" for a moment.
func blockedIn(proc string) (c sysCall, ok bool) {
	for pause := 20 * time.Microsecond; pause < 50*time.Millisecond; pause *= 2 {
		line, err := os.ReadFile(proc + "/syscall")
		if err != nil {
			return c, false
		}
		if !bytes.HasPrefix(line, []byte("running")) {
			return parseSysCall(line)
		}
		time.Sleep(pause)
	}
	return c, false
}

// checksPermission says whether it is to check permissions that the kernel asks, and not for another file system.
// Its stack says so, which only root may read; others see whether there is another file system where the caller is.
func checksPermission(proc string) bool {
	stack, err := os.ReadFile(proc + "/stack")
	if err == nil {
		return bytes.Contains(stack, []byte(" fuse_permission+"))
	}
	mounts, err := os.ReadFile(proc + "/mountinfo")
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
func indifferent(proc string, mode uint32) bool {
	comm, err := os.ReadFile(proc + "/comm")
	if err != nil {
		return false
	}
	switch string(bytes.TrimSpace(comm)) {
	case "chgrp", "chmod", "chown", "cp", "ln", "mv", "touch", "unlink":
		return true
	case "rm": // "remove regular empty file?" is what it asks when told to ask, or before it removes what is read-only
		args, err := os.ReadFile(proc + "/cmdline")
		return err == nil && mode&0o222 != 0 && !asks(args)
	}
	return false
}

// asks says whether one of rm's arguments may be an option to ask (-i, -I, --interactive).
func asks(cmdline []byte) bool {
	for arg := range bytes.SplitSeq(cmdline, []byte{0}) {
		if len(arg) > 1 && arg[0] == '-' && bytes.ContainsAny(arg, "iI") {
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
	if c.stack < 1<<32 {
		return useAny
	}
	if u := c.legacyUse(); u != useAny {
		return u
	}
	switch c.number {
	case unix.SYS_OPENAT:
		return openUse(c.args[2])
	case unix.SYS_OPENAT2:
		return useOpenHow
	case unix.SYS_STATX:
		if c.args[3]&(unix.STATX_SIZE|unix.STATX_BLOCKS) == 0 {
			return useNone
		}
		return statUse(c.args[2])
	case unix.SYS_NEWFSTATAT:
		return statUse(c.args[3])
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
func openHow(proc string, addr uint64) (flags uint64, ok bool) {
	mem, err := os.Open(proc + "/mem")
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

// parseSysCall reads /proc/TID/syscall: the number in decimal, six arguments, stack pointer and program counter in
// hexadecimal. A thread that runs, or is blocked outside of a system call, has no such line.
func parseSysCall(line []byte) (c sysCall, ok bool) {
	fields := bytes.Fields(line)
	if len(fields) != 9 {
		return c, false
	}
	var err error
	if c.number, err = strconv.ParseUint(string(fields[0]), 10, 64); err != nil {
		return c, false
	}
	for i, field := range fields[1:8] {
		v, err := strconv.ParseUint(string(field), 0, 64)
		if err != nil {
			return c, false
		}
		if i < len(c.args) {
			c.args[i] = v
		} else {
			c.stack = v
		}
	}
	return c, true
}
