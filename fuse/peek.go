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

// A GETATTR does not contain its purpose. The process for which it is sent is blocked in a system
// call, which /proc shows (proc(5), syscall). Many calls only check permissions, and must not wait
// for a size that may have to be fetched. If the call cannot be read (a thread in a namespace that
// hides it, a process that may not be traced, an io_uring), the request waits for the size. So does
// one for another file system that is stacked on this one: in the same calls it may read attributes
// to copy a file (overlayfs, copy up).

// sysCall is a system call that a thread is blocked in.
type sysCall proc.SystemCall

// needsSize reports whether the thread for which the kernel requests the attributes of a file may
// look at its size. mode is the file's.
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

// asksForAttribute reports whether a thread is in a system call that reads an extended attribute.
// In such a call the kernel requests the length of "security.capability" first, as it does before a
// write (security/commoncap.c, cap_inode_getsecurity).
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

// blockedIn returns the system call that a thread is blocked in. A thread that has just sent its
// request may still be running, and is read again until it sleeps.
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

// checksPermission reports whether the kernel requests the attributes to check permissions, and not
// for another file system. The thread's stack shows this, which only root may read. Other users see
// only whether a file system that is stacked on others is mounted where the caller is.
func checksPermission(thread proc.Process) bool {
	stack, err := thread.Stack()
	if err == nil {
		return bytes.Contains(stack, []byte(" fuse_permission+"))
	}
	mounts, err := os.ReadFile(thread.MountTable())
	return err == nil && !stacks(mounts)
}

// stacks reports whether a mountinfo lists a file system that shows files of another one as its
// own.
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

// indifferent reports whether a program calls stat only to find out the kind of a file, before it
// removes, moves, changes or overwrites it, and neither shows nor uses the size. mv and cp, when
// they have to copy, call stat again on the open file, which waits. Without this exception rm would
// fail while the remote is unreachable.
func indifferent(thread proc.Process, mode uint32) bool {
	name, err := thread.Name()
	if err != nil {
		return false
	}
	switch name {
	case "chgrp", "chmod", "chown", "cp", "ln", "mv": // the system calls of touch and unlink are enough
		return true
	case "rm": // the question that it prints, with an option or for a read-only file, depends on the size
		args, err := thread.Args()
		return err == nil && mode&0o222 != 0 && !asks(args)
	}
	return false
}

// asks reports whether one of rm's arguments may be an option that makes it ask (-i, -I,
// --interactive).
func asks(args []string) bool {
	for _, arg := range args {
		if len(arg) > 1 && arg[0] == '-' && strings.ContainsAny(arg, "iI") {
			return true
		}
	}
	return false
}

// use is the purpose for which a system call needs the attributes of a file.
type use int

const (
	useAny     use = iota // any attributes, perhaps the size
	useNone               // attributes other than the size, by the mask of statx
	useChange             // permissions
	useOpenHow            // depends on the flags in memory (openat2)
	useStat               // depends on the program that calls stat
)

// use returns the purpose of a system call, by its number and arguments; useAny if it is not known.
func (c sysCall) use() use {
	// Programs of 32 bits have other numbers for their calls. Their stacks are below 4 GiB, those of
	// 64-bit programs above.
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

// openUse returns the purpose of an open(2) with these flags: a file that is opened for writing
// needs no size yet.
func openUse(flags uint64) use {
	if writes(flags) {
		return useChange
	}
	return useAny
}

// statUse returns the purpose of a stat with these flags. A stat of an open file is not one that
// only finds out the kind.
func statUse(flags uint64) use {
	if flags&unix.AT_EMPTY_PATH != 0 {
		return useAny
	}
	return useStat
}

// writes reports whether an open needs no size: for writing alone, where each write requests the
// size, or to empty the file. With O_RDWR a mapping may follow, for which the kernel does not
// request it.
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
