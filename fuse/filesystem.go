package fuse

import (
	"fmt"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	raw "github.com/hanwen/go-fuse/v2/fuse"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/worktree"
)

// forever is the time for which replies let the kernel cache entries and attributes. Entries and attributes that change
// without a request of the kernel are invalidated explicitly (Server.Invalidate).
const forever = 10 * 365 * 24 * time.Hour

// fileSystem answers the requests that only read, for read-only and writable mounts, and refuses requests that change
// something with EROFS (see readOnly). The type writable, for writable mounts, contains a fileSystem. Requests that
// neither type implements are answered with ENOSYS. After ENOSYS to FLUSH, ACCESS or a similar request, the kernel
// sends no more of them, and handles these operations itself.
type fileSystem struct {
	readOnly
	tree   *worktree.Tree
	statFS string // a copy of Options.StatFS
	git    gitGate
	log    *zap.Logger
	ops    counters
	tracer tracer

	server *raw.Server   // go-fuse's server; set by Init, before the first request
	device *Device       // the open /dev/fuse that server reads
	kernel uint64        // capabilities of the kernel: CAP_ bits, set by Init
	gone   chan struct{} // closed when the mount has ended; every waiting request then fails
	leave  sync.Once     // makes endWaits close the channel gone only once
}

// Sampled returns a log that writes, of each message text, the first 10 messages of a second and then every 1000th.
// While the remote is unreachable, a process that reads a whole tree makes thousands of requests fail every second. All
// mounts of a process share one sampled log, because the counters of a sampler take half a megabyte.
func Sampled(log *zap.Logger) *zap.Logger {
	return log.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(c, time.Second, 10, 1000)
	}))
}

// newFileSystem returns the file system of a tree. It is complete once go-fuse has called Init with the features of
// the kernel.
func newFileSystem(t *worktree.Tree, o Options) *fileSystem {
	f := &fileSystem{tree: t, statFS: o.StatFS, log: o.Log, gone: make(chan struct{})}
	f.git.await = o.Await
	f.readOnly = readOnly{raw.NewDefaultRawFileSystem()}
	f.tracer.tree = t
	return f
}

// Init stores the server and the kernel's capabilities. go-fuse calls it after the INIT request.
func (f *fileSystem) Init(s *raw.Server) {
	f.server, f.kernel = s, s.KernelSettings().Flags64()
}

// String returns the name that go-fuse uses for this file system in messages.
func (f *fileSystem) String() string { return "artifactfs" }

// endWaits ends the waits of all requests, because the mount has ended. It may be called more than once.
func (f *fileSystem) endWaits() { f.leave.Do(func() { close(f.gone) }) }

// OnUnmount ends the waits of all requests. go-fuse calls it when the mount has ended.
func (f *fileSystem) OnUnmount() { f.endWaits() }

// Open answers the first open of a mount. If the kernel has CAP_NO_OPEN_SUPPORT the answer is ENOSYS, after which the
// kernel opens all files without a request. A kernel without that capability would report ENOSYS to the program that
// opens the file.
func (f *fileSystem) Open(_ <-chan struct{}, _ *raw.OpenIn, out *raw.OpenOut) raw.Status {
	return f.stateless(raw.CAP_NO_OPEN_SUPPORT, out, raw.FOPEN_KEEP_CACHE)
}

// OpenDir answers the first open of a directory, as Open does for files. The kernel caches listings until they are
// invalidated.
func (f *fileSystem) OpenDir(_ <-chan struct{}, _ *raw.OpenIn, out *raw.OpenOut) raw.Status {
	return f.stateless(raw.CAP_NO_OPENDIR_SUPPORT, out, raw.FOPEN_KEEP_CACHE|raw.FOPEN_CACHE_DIR)
}

// stateless answers an open. It returns ENOSYS if the kernel has the given capability, because such a kernel then opens
// files without requests. Otherwise the open succeeds with the given flags and without a file handle.
func (f *fileSystem) stateless(capability uint64, out *raw.OpenOut, flags uint32) raw.Status {
	if f.kernel&capability != 0 {
		return raw.ENOSYS
	}
	out.OpenFlags = flags
	return raw.OK
}

// StatFs returns the free space of the file system that stores the overlay, since files that are written in the mount
// are stored there. The number of files is the number in the tree plus the number of free inodes of that file system.
func (f *fileSystem) StatFs(_ <-chan struct{}, _ *raw.InHeader, out *raw.StatfsOut) raw.Status {
	var st unix.Statfs_t
	if f.statFS != "" {
		if err := unix.Statfs(f.statFS, &st); err != nil {
			f.log.Warn("read free space", zap.String("path", f.statFS), zap.Error(err))
		}
	}
	st.Bsize = max(st.Bsize, 4096)
	*out = raw.StatfsOut{
		Blocks: st.Blocks, Bfree: st.Bfree, Bavail: st.Bavail, Bsize: uint32(st.Bsize), Frsize: uint32(st.Bsize),
		Files: uint64(f.tree.Base().Counts().Nodes) + st.Ffree, Ffree: st.Ffree, NameLen: object.MaxNameLen,
	}
	return raw.OK
}

// fail converts the error of an operation to a status. It logs the error if the status alone does not describe it.
func (f *fileSystem) fail(op op, h *raw.InHeader, err error) raw.Status {
	status, expected := statusOf(err)
	if op.ofData() && status == raw.ENOENT {
		status, expected = raw.EIO, false
	}
	if op.ofData() && status == raw.Status(syscall.ESTALE) {
		// the kernel knows the node of an open file, so ESTALE means that the tree has lost a node, which is a fault
		expected = false
	}
	if !expected {
		path, _ := f.tree.Path(worktree.Node(h.NodeId))
		f.log.Warn("serve request", zap.Stringer("op", op), zap.String("path", path), zap.Stringer("status", status),
			zap.Error(err))
	}
	return status
}

// panicked logs the panic of a request's handler with the stack, and returns EIO as the answer, so that the process
// continues.
func (f *fileSystem) panicked(cause any) raw.Status {
	f.ops.pending.Add(-1) // observed.end, which decreases the count, is not called after a panic
	f.log.Error("recover from panic in request", zap.Error(fmt.Errorf("panic: %v", cause)),
		zap.ByteString("stack", debug.Stack()))
	return raw.EIO
}
