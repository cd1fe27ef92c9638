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

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/worktree"
)

// forever is how long the kernel may cache entries and attributes; changes are invalidated
// explicitly.
const forever = 10 * 365 * 24 * time.Hour

// fileSystem answers the requests of both kinds of mounts that change nothing, and refuses the
// others. A request that it does not implement is ENOSYS, which for FLUSH, ACCESS and similar ones
// means that the kernel does it alone from then on.
type fileSystem struct {
	readOnly
	tree   *worktree.Tree
	statFS string
	git    gitGate
	log    *zap.Logger
	ops    counters
	tracer tracer

	server *raw.Server   // set by Init, before the first request
	device *Device       // the device of server
	kernel uint64        // capabilities of the kernel: CAP_ bits, set by Init
	gone   chan struct{} // closed when the mount has ended: no caller waits any more
	leave  sync.Once
}

// Sampled returns a log for all mounts of a process. An unreachable remote makes a crawler fail
// thousands of times a second, of which a sample of each message is enough. The counters of a
// sampler take half a megabyte, too much for each mount.
func Sampled(log *zap.Logger) *zap.Logger {
	return log.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(c, time.Second, 10, 1000)
	}))
}

// newFileSystem returns the file system of a tree. Init completes it when the kernel's features are
// known.
func newFileSystem(t *worktree.Tree, o Options) *fileSystem {
	f := &fileSystem{tree: t, statFS: o.StatFS, log: o.Log, gone: make(chan struct{})}
	f.git.await = o.Await
	f.readOnly = readOnly{raw.NewDefaultRawFileSystem()}
	f.tracer.tree = t
	return f
}

// Init is called by go-fuse after the INIT request.
func (f *fileSystem) Init(s *raw.Server) {
	f.server, f.kernel = s, s.KernelSettings().Flags64()
}

func (f *fileSystem) String() string { return "artifactfs" }

// endWaits ends the waits of requests when the mount has ended.
func (f *fileSystem) endWaits() { f.leave.Do(func() { close(f.gone) }) }

// OnUnmount is called by go-fuse when the mount has ended.
func (f *fileSystem) OnUnmount() { f.endWaits() }

// Open is sent once: ENOSYS means that every open succeeds without a request. A kernel without that
// feature would take it for a failure.
func (f *fileSystem) Open(_ <-chan struct{}, _ *raw.OpenIn, out *raw.OpenOut) raw.Status {
	return f.stateless(raw.CAP_NO_OPEN_SUPPORT, out, raw.FOPEN_KEEP_CACHE)
}

// OpenDir is sent once, like Open. The kernel caches listings until they are invalidated.
func (f *fileSystem) OpenDir(_ <-chan struct{}, _ *raw.OpenIn, out *raw.OpenOut) raw.Status {
	return f.stateless(raw.CAP_NO_OPENDIR_SUPPORT, out, raw.FOPEN_KEEP_CACHE|raw.FOPEN_CACHE_DIR)
}

// stateless answers an open with ENOSYS if the kernel has the capability to open without requests,
// otherwise with flags and without a handle.
func (f *fileSystem) stateless(capability uint64, out *raw.OpenOut, flags uint32) raw.Status {
	if f.kernel&capability != 0 {
		return raw.ENOSYS
	}
	out.OpenFlags = flags
	return raw.OK
}

// StatFs returns the free space of the file system that the overlay is on, since files are written
// there.
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
		Files: uint64(f.tree.Counts().Nodes) + st.Ffree, Ffree: st.Ffree, NameLen: object.MaxNameLen,
	}
	return raw.OK
}

// fail converts the result of an operation to a status, and logs a cause that the status does not
// describe.
func (f *fileSystem) fail(op op, h *raw.InHeader, err error) raw.Status {
	status, expected := statusOf(err)
	if op.ofData() && status == raw.ENOENT {
		status, expected = raw.EIO, false
	}
	if op.ofData() && status == raw.Status(syscall.ESTALE) {
		expected = false // a process with the file open must find its node
	}
	if !expected {
		path, _ := f.tree.Path(worktree.Node(h.NodeId))
		f.log.Warn("request failed", zap.Stringer("op", op), zap.String("path", path), zap.Stringer("status", status), zap.Error(err))
	}
	return status
}

// panicked keeps one request from ending the process.
func (f *fileSystem) panicked(cause any) raw.Status {
	f.ops.pending.Add(-1) // counters.pending would count the request forever
	f.log.Error("request panicked", zap.Error(fmt.Errorf("%v", cause)), zap.ByteString("stack", debug.Stack()))
	return raw.EIO
}
