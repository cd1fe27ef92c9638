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

// A GETATTR request does not contain its purpose. The thread that caused it is blocked in a system call, which /proc
// shows (proc(5), syscall): many calls only check permissions, and must not wait for a size that may have to be fetched.
// If the call is unknown, the request waits for the size: for a thread in a namespace that hides it, a process that may
// not be traced, or an io_uring. It also waits if another file system is stacked on this one: in the same system calls
// that file system may read attributes to copy a file (overlayfs, copy up).

// sysCall is the system call that a thread is blocked in.
type sysCall proc.SystemCall

// needsSize reports whether a thread that causes a GETATTR for a file with this mode may use the file's size.
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

// asksForAttribute reports whether a thread is in a system call that reads an extended attribute. The kernel then first
// requests the length of "security.capability", as it also does before a write (security/commoncap.c,
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

// blockedIn returns the system call that a thread is blocked in. A thread that has just sent its request may still be
// running, so blockedIn waits up to 50 ms for it to block.
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

// checksPermission reports whether the kernel needs the attributes to check permissions, and not for a stacked file
// system. The thread's kernel stack shows that, but only root may read it; other users check whether the caller's mount
// table has a stacked file system.
func checksPermission(thread proc.Process) bool {
	stack, err := thread.Stack()
	if err == nil {
		return bytes.Contains(stack, []byte(" fuse_permission+"))
	}
	mounts, err := os.ReadFile(thread.MountTable())
	return err == nil && !stacks(mounts)
}

// stacks reports whether a mountinfo lists a file system that shows files of another one as its own.
func stacks(mountinfo []byte) bool {
	for line := range bytes.Lines(mountinfo) {
		_, source, _ := bytes.Cut(line, []byte(" - "))
		kind, _, _ := bytes.Cut(source, []byte(" "))
		switch string(kind) {
		case "overlay", "ecryptfs", "": // "": the text is no mountinfo
			return true
		}
	}
	return false
}

// indifferent reports whether a program calls stat only to determine a file's type before it removes, moves, changes or
// overwrites the file, and neither prints nor uses the size. (When mv and cp copy a file, they call fstat on the open
// file, which waits.) Without this rule rm would fail while the network is down.
func indifferent(thread proc.Process, mode uint32) bool {
	name, err := thread.Name()
	if err != nil {
		return false
	}
	switch name {
	case "chgrp", "chmod", "chown", "cp", "ln", "mv": // touch and unlink are recognized by their system calls
		return true
	case "rm": // a prompt of rm shows whether the file is empty; rm prompts with an option, or for a read-only file
		args, err := thread.Args()
		return err == nil && mode&0o222 != 0 && !asks(args)
	}
	return false
}

// asks reports whether one of rm's arguments may be an option to prompt (-i, -I, --interactive).
func asks(args []string) bool {
	for _, arg := range args {
		if len(arg) > 1 && arg[0] == '-' && strings.ContainsAny(arg, "iI") {
			return true
		}
	}
	return false
}

// use is the purpose for which a system call needs a file's attributes.
type use int

const (
	useAny     use = iota // possibly the size
	useNone               // not the size (the mask of statx excludes it)
	useChange             // permissions
	useOpenHow            // depends on the flags in the caller's memory (openat2)
	useStat               // depends on the program that calls stat
)

// use returns the purpose of the system call, from its number and arguments.
func (c sysCall) use() use {
	// 32-bit programs have other system call numbers. Their stacks are below 4 GiB, those of 64-bit programs above.
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

// openUse returns the purpose of an open with these flags.
func openUse(flags uint64) use {
	if writes(flags) {
		return useChange
	}
	return useAny
}

// statUse returns the purpose of a stat with these flags. An fstat of an open file is not made to determine its type.
func statUse(flags uint64) use {
	if flags&unix.AT_EMPTY_PATH != 0 {
		return useAny
	}
	return useStat
}

// writes reports whether an open does not need the size: for writing only, where each write requests it again, or with
// truncation. After O_RDWR the file may be mapped, which makes no request.
func writes(flags uint64) bool {
	return flags&unix.O_ACCMODE == unix.O_WRONLY || flags&unix.O_TRUNC != 0
}

// openHow reads the flags of an openat2(2): the first field of a struct open_how in the caller's memory.
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
