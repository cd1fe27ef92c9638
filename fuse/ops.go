package fuse

import "sync/atomic"

// op is a kind of request.
type op int

const (
	opLookup op = iota
	opForget
	opGetAttr
	opSetAttr
	opReadlink
	opSymlink
	opMknod
	opMkdir
	opUnlink
	opRmdir
	opRename
	opLink
	opOpen
	opRead
	opWrite
	opStatFs
	opRelease
	opFsync
	opSetXattr
	opGetXattr
	opListXattr
	opRemoveXattr
	opFlush
	opOpenDir
	opReadDir
	opReadDirPlus
	opFsyncDir
	opAccess
	opCreate
	opIoctl
	opFallocate
	opLseek
	opCopyFileRange
	opTmpfile
	ops
)

var opNames = [ops]string{
	"LOOKUP", "FORGET", "GETATTR", "SETATTR", "READLINK", "SYMLINK", "MKNOD", "MKDIR", "UNLINK", "RMDIR", "RENAME", "LINK",
	"OPEN", "READ", "WRITE", "STATFS", "RELEASE", "FSYNC", "SETXATTR", "GETXATTR", "LISTXATTR", "REMOVEXATTR", "FLUSH",
	"OPENDIR", "READDIR", "READDIRPLUS", "FSYNCDIR", "ACCESS", "CREATE", "IOCTL", "FALLOCATE", "LSEEK", "COPY_FILE_RANGE", "TMPFILE",
}

func (o op) String() string { return opNames[o] }

// ofData says whether an operation is about contents. That something does not exist is then no answer to the caller,
// who holds the file: it is a fault of ours.
func (o op) ofData() bool {
	switch o {
	case opRead, opWrite, opFsync, opFallocate, opLseek, opCopyFileRange:
		return true
	}
	return false
}

// counters counts requests by kind.
type counters [ops]atomic.Uint64

func (c *counters) add(o op) { c[o].Add(1) }

// snapshot gives what was counted; kinds that never came are left out.
func (c *counters) snapshot() map[string]uint64 {
	m := make(map[string]uint64)
	for o := range ops {
		if n := c[o].Load(); n > 0 {
			m[o.String()] = n
		}
	}
	return m
}
