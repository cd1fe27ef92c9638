package fuse

import (
	"errors"
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

// fileSystem answers the kernel's requests. What it does not implement is ENOSYS, which for OPEN, OPENDIR, FLUSH,
// ACCESS, LSEEK and the like means that the kernel does it alone from then on.
type fileSystem struct {
	readOnly
	tree   *worktree.Tree
	statFS string
	log    *zap.Logger
	ops    counters

	server *raw.Server   // set by Init, before the first request
	kernel uint64        // what the kernel can do: CAP_ bits, set by Init
	gone   chan struct{} // closed when the mount is gone: nobody is left who waits
	leave  sync.Once
}

func newFileSystem(t *worktree.Tree, o Options) *fileSystem {
	// A remote that is down makes a crawler fail thousands of times a second: a sample of each message is enough.
	sampled := o.Log.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(c, time.Second, 10, 1000)
	}))
	f := &fileSystem{tree: t, statFS: o.StatFS, log: sampled, gone: make(chan struct{})}
	f.readOnly = readOnly{raw.NewDefaultRawFileSystem(), &f.ops}
	return f
}

func (f *fileSystem) Init(s *raw.Server) {
	f.server, f.kernel = s, s.KernelSettings().Flags64()
}

func (f *fileSystem) String() string { return "artifactfs" }

// leaving ends the waiting of requests that nobody waits for any more.
func (f *fileSystem) leaving() { f.leave.Do(func() { close(f.gone) }) }

func (f *fileSystem) OnUnmount() { f.leaving() }

func (f *fileSystem) Lookup(cancel <-chan struct{}, h *raw.InHeader, name string, out *raw.EntryOut) raw.Status {
	f.ops.add(opLookup)
	if len(name) > object.MaxNameLen {
		return raw.Status(syscall.ENAMETOOLONG)
	}
	w := f.wait(cancel, h)
	defer w.finish()
	a, err := f.tree.Lookup(w, worktree.Node(h.NodeId), name)
	if err == nil && a.Size < 0 {
		a, err = f.tree.Attr(w, a.Node)
	}
	if errors.Is(err, worktree.ErrNotExist) {
		out.SetEntryTimeout(forever) // node id 0: the kernel keeps the absence as well
		return raw.OK
	}
	if err != nil {
		return f.fail(opLookup, h, err)
	}
	fillEntry(out, a)
	return raw.OK
}

func (f *fileSystem) GetAttr(cancel <-chan struct{}, in *raw.GetAttrIn, out *raw.AttrOut) raw.Status {
	f.ops.add(opGetAttr)
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	a, err := f.tree.Attr(w, worktree.Node(in.NodeId))
	if err != nil {
		return f.fail(opGetAttr, &in.InHeader, err)
	}
	out.SetTimeout(forever)
	fillAttr(&out.Attr, a)
	return raw.OK
}

// Open is asked once: ENOSYS means that every open succeeds without asking. A kernel that does not know that
// would take it for a failure.
func (f *fileSystem) Open(_ <-chan struct{}, _ *raw.OpenIn, out *raw.OpenOut) raw.Status {
	f.ops.add(opOpen)
	return f.stateless(raw.CAP_NO_OPEN_SUPPORT, out, raw.FOPEN_KEEP_CACHE)
}

func (f *fileSystem) OpenDir(_ <-chan struct{}, _ *raw.OpenIn, out *raw.OpenOut) raw.Status {
	f.ops.add(opOpenDir)
	return f.stateless(raw.CAP_NO_OPENDIR_SUPPORT, out, raw.FOPEN_KEEP_CACHE|raw.FOPEN_CACHE_DIR)
}

func (f *fileSystem) stateless(capability uint64, out *raw.OpenOut, flags uint32) raw.Status {
	if f.kernel&capability != 0 {
		return raw.ENOSYS
	}
	out.OpenFlags = flags
	return raw.OK
}

func (f *fileSystem) Readlink(cancel <-chan struct{}, h *raw.InHeader) ([]byte, raw.Status) {
	f.ops.add(opReadlink)
	w := f.wait(cancel, h)
	defer w.finish()
	target, err := f.tree.Readlink(w, worktree.Node(h.NodeId))
	return target, f.fail(opReadlink, h, err)
}

func (f *fileSystem) ReadDir(cancel <-chan struct{}, in *raw.ReadIn, out *raw.DirEntryList) raw.Status {
	f.ops.add(opReadDir)
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	return f.fail(opReadDir, &in.InHeader, f.list(w, in, func(e raw.DirEntry) bool { return out.AddDirEntry(e) }))
}

// ReadDirPlus gives attributes with the names, which spares the kernel a LOOKUP each. It waits for no size: an
// entry whose size is not known has node id 0, a name without attributes.
func (f *fileSystem) ReadDirPlus(cancel <-chan struct{}, in *raw.ReadIn, out *raw.DirEntryList) raw.Status {
	f.ops.add(opReadDirPlus)
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	return f.fail(opReadDirPlus, &in.InHeader, f.list(w, in, func(e raw.DirEntry) bool {
		entry := out.AddDirLookupEntry(e)
		if entry == nil {
			return false
		}
		if e.Off > dots {
			if a, ok := f.tree.KnownAttr(worktree.Node(e.Ino)); ok {
				fillEntry(entry, a)
			}
		}
		return true
	}))
}

// dots is how many offsets "." and ".." take; the first entry of the tree is behind them.
const dots = 2

// list emits a directory's entries behind an offset.
func (f *fileSystem) list(w *waiter, in *raw.ReadIn, emit func(raw.DirEntry) bool) error {
	dir := worktree.Node(in.NodeId)
	if in.Offset < 1 && !emit(raw.DirEntry{Name: ".", Ino: in.NodeId, Mode: syscall.S_IFDIR, Off: 1}) {
		return nil
	}
	if in.Offset < dots {
		parent, err := f.tree.Parent(dir)
		if err != nil || !emit(raw.DirEntry{Name: "..", Ino: uint64(parent), Mode: syscall.S_IFDIR, Off: dots}) {
			return err
		}
	}
	return f.tree.ReadDir(w, dir, max(in.Offset, dots)-dots, func(e worktree.Entry) bool {
		return emit(raw.DirEntry{Name: e.Name, Ino: uint64(e.Node), Mode: e.Mode, Off: e.Next + dots})
	})
}

func (f *fileSystem) StatFs(_ <-chan struct{}, _ *raw.InHeader, out *raw.StatfsOut) raw.Status {
	f.ops.add(opStatFs)
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
	if !expected {
		path, _ := f.tree.Path(worktree.Node(h.NodeId))
		f.log.Warn("request failed", zap.Stringer("op", op), zap.String("path", path), zap.Stringer("status", status), zap.Error(err))
	}
	return status
}

// panicked keeps one bad request from taking the mount down.
func (f *fileSystem) panicked(cause any) raw.Status {
	f.log.Error("request panicked", zap.Error(fmt.Errorf("%v", cause)), zap.ByteString("stack", debug.Stack()))
	return raw.EIO
}

func fillEntry(out *raw.EntryOut, a worktree.Attr) {
	out.NodeId = uint64(a.Node)
	out.SetEntryTimeout(forever)
	out.SetAttrTimeout(forever)
	fillAttr(&out.Attr, a)
}

func fillAttr(out *raw.Attr, a worktree.Attr) {
	*out = raw.Attr{
		Ino: uint64(a.Node), Size: uint64(a.Size), Blocks: uint64(a.Blocks), Mode: a.Mode, Nlink: a.Nlink,
		Owner: raw.Owner{Uid: a.UID, Gid: a.GID}, Rdev: a.Rdev,
	}
	out.Atime, out.Atimensec = stamp(a.Atime)
	out.Mtime, out.Mtimensec = stamp(a.Mtime)
	out.Ctime, out.Ctimensec = stamp(a.Ctime)
}

// stamp cuts nanoseconds since 1970, which may lie before, into what the protocol carries.
func stamp(ns int64) (sec uint64, nsec uint32) {
	t := time.Unix(0, ns)
	return uint64(t.Unix()), uint32(t.Nanosecond())
}
