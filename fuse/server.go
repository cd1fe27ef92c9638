// Package fuse puts a working tree before the kernel. It promises:
//   - what the kernel was told once it need not ask again: names, attributes, contents, link targets and
//     listings stay in its caches, so that a warm read or walk makes no request here;
//   - a request that waits delays nobody else, and who waits can be interrupted;
//   - a size that stat tells is right, and only who may look at it waits for it (size.go, peek.go);
//   - an error has one number (errno.go); what has no number of its own is EIO and is logged with its cause.
//
// # No state for open files
//
// OPEN and OPENDIR are answered with ENOSYS, after which the kernel opens without asking and keeps pages and listings
// (fs/fuse/file.c, fuse_file_open). Offsets in a directory are therefore positions that stay those of an entry, good
// for any seek at any time, and a file without a name lives until the kernel forgets it (FORGET). O_TRUNC comes as a
// SETATTR, because CAP_ATOMIC_O_TRUNC is not asked for: with that it would be part of the OPEN that never comes.
// Locks are the kernel's own.
//
// # Writing
//
// A mount that can be changed has a writeback cache: small writes go into pages and come here when the file is closed
// or later. From then on the kernel is who knows the sizes and times of the files it has; it does not believe ours
// (fs/fuse/inode.c, fuse_get_cache_mask), and says its own by SETATTR. A file made and written within one tick of the
// kernel's coarse clock needs none, because new nodes get that clock's time. close(2) leaves the number of blocks
// uncertain, and a READ the access time, so the first stat behind either is a GETATTR (fuse_flush, fuse_invalidate_atime);
// a directory's attributes are asked for after every change of its entries, with the next path that leads through it
// (fuse_dir_changed).
//
// Of a write into the cache of a file that is kept open the only sign is a GETXATTR (xattr.go). It comes once, and again
// after the kernel has been given the file's attributes anew: Refresh makes it ask for them.
//
// WriteBack brings what is in that cache here at any time (writeback.go), before a freeze of the tree.
//
// A mount that is read-only is so for the kernel (MS_RDONLY), not only in our answers: an open for writing is then
// refused at open(2), of which we would never hear, access(2) says the same, and reading leaves attributes cached.
package fuse

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync/atomic"

	raw "github.com/hanwen/go-fuse/v2/fuse"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/worktree"
)

// Options are what a mount may choose.
type Options struct {
	FsName     string      // the source that mount(8) and df(1) show; without secrets
	AllowOther bool        // other users may look in
	ReadOnly   bool        // nothing can be changed through the mount
	ACL        bool        // POSIX access control lists count, on a mount that is not ReadOnly
	StatFS     string      // a path whose file system's space statfs tells; "" tells none
	Log        *zap.Logger // Sampled; nil: no log

	Latencies *Latencies // where it is measured how long requests take; nil: nowhere that others see

	// Through, if not "", is where Attach mounts: another way to the directory. Those who take the straight one wait until
	// somebody has heard of the mount (an automount), and so must nobody here before.
	Through string

	// Redirect, if not nil, is asked with the path of every directory that somebody makes, relative to the mount's
	// root. If it says ok, the directory is made, and bind is called to mount something over it, on a thread of its
	// own, which alone can reach the directory until bind returns. If bind fails the directory is an ordinary one.
	Redirect func(path string) (bind func() error, ok bool)

	// Unbound are directories that a process before this one has made, without having got to the end of bind. Nobody sees
	// one before bind was called again.
	Unbound []worktree.Place

	// Await, if not nil, is asked with every look-up of ".git" in the root, until it says that it is done. It may wait;
	// ctx ends when the look-up is interrupted. pid is the thread that looks it up.
	Await func(ctx context.Context, pid uint32) (done bool)

	wrap func(raw.RawFileSystem) raw.RawFileSystem // around who answers, if tests say so
}

// ErrNoFUSE says that this host has no /dev/fuse.
var ErrNoFUSE = errors.New("no /dev/fuse on this host")

// Server is one mount.
type Server struct {
	dir        string
	raw        *raw.Server
	fs         *fileSystem
	redirects  *redirects // nil on a read-only mount
	device     *Device
	writes     *writing
	sending    chan struct{} // has room for who calls syncfs(2)
	refreshing atomic.Bool   // see refreshBeside
	ended      chan struct{} // closed when the kernel has let go of the mount and no request is under way
}

const (
	// maxRequest is the most that one READ or WRITE carries, in bytes. The kernel would take a mebibyte, which is not
	// faster, and each reader of the device of each mount has memory for one request that is there all the time
	// (residentBuffers).
	maxRequest = 128 << 10
	// maxBackground is how many READs of readahead the kernel keeps under way. Each may wait for the network; at
	// the kernel's own 12 a dozen slow files would stall the reading of all others.
	maxBackground = 1024
)

// Mount shows t at dir, an existing directory, and serves it until it is unmounted.
func Mount(t *worktree.Tree, dir string, o Options) (*Server, error) {
	d, err := Attach(dir, o)
	if err != nil {
		return nil, err
	}
	return Serve(t, dir, d, o)
}

// Serve shows t at dir, where the device's mount is, until it is unmounted. Of a mount that another process served,
// requests that it left unanswered are answered too; t is then to be opened with TakeOver, and o is to be what it was.
// If a mount that was never served cannot be, it is taken away.
func Serve(t *worktree.Tree, dir string, d *Device, o Options) (*Server, error) {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	s := &Server{
		dir: dir, fs: newFileSystem(t, o), device: d, writes: new(writing), sending: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	s.fs.device = d
	var requests raw.RawFileSystem = s.fs
	var unbound []unfinished
	if !o.ReadOnly {
		w := &writable{
			fileSystem: s.fs, sizes: sizes{tree: t}, resized: resized{tree: t}, writes: s.writes, acl: o.ACL,
			redirects: redirects{hook: o.Redirect, dir: dir, log: o.Log},
		}
		requests, s.redirects = w, &w.redirects
		unbound = s.redirects.remember(t, o.Unbound)
	}
	if o.Latencies == nil {
		o.Latencies = new(Latencies)
	}
	requests = &observed{RawFileSystem: requests, ops: &s.fs.ops, latencies: o.Latencies, tracer: &s.fs.tracer}
	if o.wrap != nil {
		requests = o.wrap(requests)
	}
	first := len(d.answer) == 0
	var err error
	options := mountOptions(o, s.fs)
	if !d.agreed(raw.CAP_EXPORT_SUPPORT) {
		options.ExtraCapabilities &^= raw.CAP_EXPORT_SUPPORT
	}
	if s.raw, err = d.begin(requests, options); err != nil {
		err = fmt.Errorf("serve %s: %w", dir, err)
		if first {
			close(s.ended)
			err = errors.Join(err, s.detach(), d.file.Close())
		}
		return nil, err
	}
	if !first {
		// Before anybody here reads: it is everything read and not answered that comes again, by whomever it was read.
		err = d.resend()
	}
	go func() {
		defer close(s.ended)
		s.raw.Serve()
		d.file.Close()
	}()
	if !first {
		if s.redirects != nil {
			s.redirects.finish(unbound)
		}
		if err != nil {
			return s, fmt.Errorf("serve %s: %w", dir, err)
		}
		return s, nil
	}
	if o.Through != "" {
		go func() {
			if err := errors.Join(s.refusePoll(), s.fs.git.known(dir)); err != nil {
				o.Log.Warn("look into the mount", zap.Error(err))
			}
		}()
		return s, nil
	}
	if err := errors.Join(s.refusePoll(), s.fs.git.known(dir)); err != nil {
		return nil, errors.Join(fmt.Errorf("mount %s: %w", dir, err), s.Detach())
	}
	return s, nil
}

// refusePoll has the kernel told, by one poll of a name that go-fuse answers itself, that files here cannot be
// polled. Go's runtime registers every file it opens with epoll in a call that the scheduler does not see
// waiting; if that were a request to this same process, it could stop the process for good.
func (s *Server) refusePoll() error {
	return WithoutDevice(func() error {
		fd, err := unix.Open(filepath.Join(s.dir, pollName), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &fs.PathError{Op: "open", Path: s.dir, Err: err}
		}
		defer unix.Close(fd)
		// ENOSYS is kept by the kernel, and is no error of poll(2).
		unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return nil
	})
}

// pollName is a file in the root that the library has for those who want to poll it (fuse/poll.go there).
const pollName = ".go-fuse-epoll-hack"

// subtype makes the file system's type.
const (
	subtype = "artifactfs"
	fsType  = "fuse." + subtype
)

// mountOptions say how the library serves. What it answers to INIT follows from them, and a successor, perhaps of
// another version, can take a mount over only if it would answer the same (Device.begin).
func mountOptions(o Options, f *fileSystem) *raw.MountOptions {
	m := &raw.MountOptions{
		MaxWrite:      maxRequest,
		MaxBackground: maxBackground,
		// CAP_NO_OPEN_SUPPORT and CAP_PARALLEL_DIROPS are among go-fuse's own.
		// Not CAP_READDIRPLUS_AUTO: with it the kernel asks for attributes with the first buffer of a directory only,
		// and a find over 20,000 files makes 19,800 LOOKUPs; without it a bare ls -R costs half again as much.
		// CAP_EXPORT_SUPPORT has file handles (open_by_handle_at(2), NFS) asked for by node, see find.
		ExtraCapabilities:        raw.CAP_NO_OPENDIR_SUPPORT | raw.CAP_HAS_RESEND | raw.CAP_EXPORT_SUPPORT,
		EnableSymlinkCaching:     true,
		ExplicitDataCacheControl: true, // no GETATTR to see whether a file has changed behind the kernel's back
		DisableSplice:            true, // READs are copied; without this go-fuse tries a pipe first, three system calls for nothing

		Logger:       zap.NewStdLog(o.Log),
		PanicHandler: f.panicked,
	}
	if o.ReadOnly {
		m.DisableXAttrs = true  // ENOSYS once, EOPNOTSUPP for ever after without a request
		m.RememberInodes = true // nodes are never forgotten, FORGET means nothing
	} else {
		// Without CAP_HANDLE_KILLPRIV_V2 every write(2) would ask for "security.capability" (fs/fuse/inode.c,
		// process_init_reply sets SB_NOSEC with it), and drop set-user-ID by a SETATTR of its own.
		m.ExtraCapabilities |= raw.CAP_WRITEBACK_CACHE | raw.CAP_HANDLE_KILLPRIV_V2
		if m.EnableAcl = o.ACL; o.ACL {
			// The umask is left to us, since a default list takes its place; whether a list drops set-group-ID we are told.
			m.ExtraCapabilities |= raw.CAP_DONT_MASK | raw.CAP_SETXATTR_EXT
		}
	}
	return m
}

// Wait returns when nothing of the mount is left: it was unmounted, by whomever, and every request is answered.
func (s *Server) Wait() { <-s.ended }

// Stats gives the number of requests of each kind since the mount, by the kernel's name for it.
func (s *Server) Stats() map[string]uint64 { return s.fs.ops.snapshot() }

// Pending is how many requests are not answered yet; Fetched how many needed something that was not on this host.
func (s *Server) Pending() int64  { return s.fs.ops.pending.Load() }
func (s *Server) Fetched() uint64 { return s.fs.ops.fetched.Load() }
