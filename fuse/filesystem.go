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

// forever is how long the kernel may keep what it was told; whatever changes is invalidated explicitly.
const forever = 10 * 365 * 24 * time.Hour

// fileSystem answers what a mount of either kind is asked, and refuses what would change something. What it does not
// implement is ENOSYS, which for FLUSH, ACCESS and the like means that the kernel does it alone from then on.
type fileSystem struct {
	readOnly
	tree   *worktree.Tree
	statFS string
	git    gitGate
	log    *zap.Logger
	ops    counters
	tracer tracer

	server *raw.Server   // set by Init, before the first request
	device *Device       // that server answers
	kernel uint64        // what the kernel can do: CAP_ bits, set by Init
	gone   chan struct{} // closed when the mount is gone: nobody is left who waits
	leave  sync.Once
}

// Sampled is a log for all mounts of a process: a remote that is down makes a crawler fail thousands of times a second, of
// which a sample of each message is enough. What a sampler counts with takes half a megabyte, too much for each mount.
func Sampled(log *zap.Logger) *zap.Logger {
	return log.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(c, time.Second, 10, 1000)
	}))
}

func newFileSystem(t *worktree.Tree, o Options) *fileSystem {
	f := &fileSystem{tree: t, statFS: o.StatFS, log: o.Log, gone: make(chan struct{})}
	f.git.await = o.Await
	f.readOnly = readOnly{raw.NewDefaultRawFileSystem()}
	f.tracer.tree = t
	return f
}

func (f *fileSystem) Init(s *raw.Server) {
	f.server, f.kernel = s, s.KernelSettings().Flags64()
}

func (f *fileSystem) String() string { return "artifactfs" }

// leaving ends the waiting of requests that nobody waits for any more.
func (f *fileSystem) leaving() { f.leave.Do(func() { close(f.gone) }) }

func (f *fileSystem) OnUnmount() { f.leaving() }

// Open is asked once: ENOSYS means that every open succeeds without asking. A kernel that does not know that
// would take it for a failure.
func (f *fileSystem) Open(_ <-chan struct{}, _ *raw.OpenIn, out *raw.OpenOut) raw.Status {
	return f.stateless(raw.CAP_NO_OPEN_SUPPORT, out, raw.FOPEN_KEEP_CACHE)
}

func (f *fileSystem) OpenDir(_ <-chan struct{}, _ *raw.OpenIn, out *raw.OpenOut) raw.Status {
	return f.stateless(raw.CAP_NO_OPENDIR_SUPPORT, out, raw.FOPEN_KEEP_CACHE|raw.FOPEN_CACHE_DIR)
}

func (f *fileSystem) stateless(capability uint64, out *raw.OpenOut, flags uint32) raw.Status {
	if f.kernel&capability != 0 {
		return raw.ENOSYS
	}
	out.OpenFlags = flags
	return raw.OK
}

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

// fail turns the outcome of an operation into a status and logs what the status does not tell.
func (f *fileSystem) fail(op op, h *raw.InHeader, err error) raw.Status {
	status, expected := statusOf(err)
	if op.ofData() && status == raw.ENOENT {
		status, expected = raw.EIO, false
	}
	if op.ofData() && status == raw.Status(syscall.ESTALE) {
		expected = false // who has a file open has its node
	}
	if !expected {
		path, _ := f.tree.Path(worktree.Node(h.NodeId))
		f.log.Warn("request failed", zap.Stringer("op", op), zap.String("path", path), zap.Stringer("status", status), zap.Error(err))
	}
	return status
}

// panicked keeps one bad request from taking the mount down.
func (f *fileSystem) panicked(cause any) raw.Status {
	f.ops.pending.Add(-1) // it is answered with this, behind the back of who counts
	f.log.Error("request panicked", zap.Error(fmt.Errorf("%v", cause)), zap.ByteString("stack", debug.Stack()))
	return raw.EIO
}
