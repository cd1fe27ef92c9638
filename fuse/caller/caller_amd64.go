package caller

import (
	"golang.org/x/sys/unix"
)

// legacyUse returns the purpose of the system calls that exist only on old architectures, such as open(2), which has no
// directory descriptor. For all other calls it returns useAny.
func (c sysCall) legacyUse() use {
	switch c.Number {
	case unix.SYS_OPEN:
		return openUse(c.Args[1])
	case unix.SYS_STAT, unix.SYS_LSTAT:
		return useStat
	case unix.SYS_CREAT, unix.SYS_LINK, unix.SYS_UNLINK, unix.SYS_RENAME, unix.SYS_RENAMEAT, unix.SYS_ACCESS,
		unix.SYS_CHMOD, unix.SYS_CHOWN, unix.SYS_LCHOWN, unix.SYS_UTIME, unix.SYS_UTIMES, unix.SYS_FUTIMESAT:
		return useChange
	}
	return useAny
}

// legacyChanges is the part of Changes for the system calls that exist only on old architectures.
func (c sysCall) legacyChanges() bool {
	switch c.Number {
	case unix.SYS_OPEN:
		return opensToChange(c.Args[1])
	case unix.SYS_CREAT:
		return true
	case unix.SYS_ACCESS:
		return c.Args[1]&unix.W_OK != 0
	}
	return false
}
