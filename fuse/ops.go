package fuse

import (
	"sync/atomic"
	"syscall"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/internal/metrics"
)

// op is the kind of a FUSE request.
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
	ops // number of kinds
)

// opNames contains the kernel's name of each kind of request.
var opNames = [ops]string{
	"LOOKUP", "FORGET", "GETATTR", "SETATTR", "READLINK", "SYMLINK", "MKNOD", "MKDIR", "UNLINK", "RMDIR", "RENAME", "LINK",
	"OPEN", "READ", "WRITE", "STATFS", "RELEASE", "FSYNC", "SETXATTR", "GETXATTR", "LISTXATTR", "REMOVEXATTR", "FLUSH",
	"OPENDIR", "READDIR", "READDIRPLUS", "FSYNCDIR", "ACCESS", "CREATE", "IOCTL", "FALLOCATE", "LSEEK",
	"COPY_FILE_RANGE", "TMPFILE",
}

// String returns the kernel's name of the request, such as LOOKUP.
func (o op) String() string { return opNames[o] }

// ofData reports whether a request concerns the contents of an open file. ENOENT would be a wrong reply to such a
// request: since the file is open, ENOENT would mean that the daemon has a fault.
func (o op) ofData() bool {
	switch o {
	case opRead, opWrite, opFsync, opFallocate, opLseek, opCopyFileRange:
		return true
	}
	return false
}

// Latencies has a histogram of durations for each kind of request. Several mounts may share one. The zero value is
// ready to use.
type Latencies [ops]metrics.Histogram

// Each calls f for every kind of request that occurred. op is the kernel's name of the kind, such as LOOKUP.
func (l *Latencies) Each(f func(op string, h *metrics.Histogram)) {
	for o := range ops {
		if l[o].Count() > 0 {
			f(o.String(), &l[o])
		}
	}
}

// counters counts the requests of one mount.
type counters struct {
	byKind  [ops]atomic.Uint64 // number of requests since the mount was attached, by op
	pending atomic.Int64       // number of requests that are not answered yet
	fetched atomic.Uint64      // number of requests that waited for the remote
	failed  [len(failures)]atomic.Uint64
}

// failures are the statuses that show a fault of the host or of the remote, with the names of their errnos. All other
// statuses are ordinary results of system calls. EACCES means that the remote refused access or that another session
// holds a lock, because the kernel itself checks permissions.
var failures = [...]struct {
	status raw.Status
	name   string
}{
	{raw.EIO, "EIO"}, {raw.EACCES, "EACCES"}, {raw.Status(syscall.ENOSPC), "ENOSPC"},
	{raw.Status(syscall.EDQUOT), "EDQUOT"},
	{raw.Status(syscall.ENOMEM), "ENOMEM"},
}

// fail counts a request that was answered with this status, if the status shows a fault.
func (c *counters) fail(status raw.Status) {
	for i := range failures {
		if failures[i].status == status {
			c.failed[i].Add(1)
		}
	}
}

// snapshot returns the number of requests of each kind, by the kernel's name of the kind. Kinds that did not occur are
// left out.
func (c *counters) snapshot() map[string]uint64 {
	m := make(map[string]uint64)
	for o := range ops {
		if n := c.byKind[o].Load(); n > 0 {
			m[o.String()] = n
		}
	}
	return m
}
