// Package fuse serves a working tree to the kernel. It promises:
//   - the kernel never requests the same fact twice: names, attributes, contents, link targets and
//     listings stay in its caches, so that a warm read or walk sends no request;
//   - a request that waits delays no other one, and its wait can be interrupted;
//   - sizes in stat are right, and only callers that may see a size wait for it (size.go, peek.go);
//   - each error has one number (errno.go); other errors are EIO and logged with their cause.
//
// # The way of a READ
//
// A READ of a file that was not fetched calls straight down: observed.Read (observed.go),
// writable.Read or fileSystem.Read (data.go, read.go), worktree.Tree.Read, then the contents of the
// base tree through the daemon's source: fetch.View.Open, RawView.openStored, Pipeline.Wait. A
// sender of the pipeline calls Store.sendBlobs, transport.Remote.Fetch and odb.Unpack, which
// verifies and stores the blob and wakes the reader.
//
// # No state for open files
//
// OPEN and OPENDIR are answered with ENOSYS, after which the kernel opens without a request and
// keeps pages and listings (fs/fuse/file.c, fuse_file_open). Offsets in a directory are therefore
// positions that remain those of an entry, valid for any seek at any time, and a file without a
// name lives until the kernel forgets it (FORGET). O_TRUNC is sent as a SETATTR, because
// CAP_ATOMIC_O_TRUNC is not requested: with that it would be part of an OPEN that is never sent.
// Locks are the kernel's own.
//
// # Writing
//
// A writable mount has a writeback cache: small writes go into pages and are sent when the file is
// closed or later. From then on only the kernel knows the sizes and times of files in its cache; it
// ignores those of replies (fs/fuse/inode.c, fuse_get_cache_mask) and sends its own by SETATTR. A
// file created and written within one tick of the kernel's coarse clock needs none, because new
// nodes get that clock's time. close(2) invalidates the number of blocks, and a READ the access
// time, so the first stat after either is a GETATTR (fuse_flush, fuse_invalidate_atime). A
// directory's attributes are requested after every change of its entries, with the next path that
// leads through it (fuse_dir_changed).
//
// The only sign of a write into the cache of an open file is a GETXATTR (xattr.go). It is sent
// once, and again after the kernel has fetched the file's attributes anew: Refresh makes it do so.
//
// WriteBack makes the kernel send the dirty pages of its cache (writeback.go), before the tree is
// frozen.
//
// A read-only mount is so for the kernel (MS_RDONLY), not only in replies: open(2) refuses to open
// for writing, which sends no request, access(2) agrees, and reading keeps attributes cached.
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

// Options configure a mount.
type Options struct {
	FsName     string      // the source that mount(8) and df(1) show; without secrets
	AllowOther bool        // other users may use the mount
	ReadOnly   bool        // nothing can be changed through the mount
	ACL        bool        // POSIX access control lists apply; on writable mounts only
	StatFS     string      // a path whose file system's space statfs reports; "" reports none
	Log        *zap.Logger // Sampled; nil: no log

	Latencies *Latencies // where the durations of requests are measured; nil: for this mount only

	// Through, if not "", is the path by which Attach mounts. Processes that use the ordinary path
	// to the directory wait until the mount is announced (an automount), and this process must not.
	Through string

	// Redirect, if not nil, is called with the path, relative to the root of the mount, of every
	// directory that is created. If it returns ok, bind is called to mount something over the new
	// directory, on a thread of its own, which alone can enter it until bind returns. If bind fails
	// the directory is an ordinary one.
	Redirect func(path string) (bind func() error, ok bool)

	// Unbound are directories that a previous process has created without completing bind. No
	// process sees one before bind was called again.
	Unbound []worktree.Place

	// Await, if not nil, is called with every look-up of ".git" in the root until it returns true.
	// It may wait; ctx ends when the look-up is interrupted. pid is the thread that looks the name
	// up.
	Await func(ctx context.Context, pid uint32) (done bool)

	wrap func(raw.RawFileSystem) raw.RawFileSystem // wraps the file system in tests
}

// ErrNoFUSE means that this host has no /dev/fuse.
var ErrNoFUSE = errors.New("no /dev/fuse on this host")

// Server is one mount.
type Server struct {
	dir        string
	raw        *raw.Server
	fs         *fileSystem
	redirects  *redirects // nil on a read-only mount
	device     *Device
	writes     *writing
	sending    chan struct{} // capacity 1: held during syncfs(2)
	refreshing atomic.Bool   // see refreshInBackground
	ended      chan struct{} // closed when the kernel has ended the mount and no request is in progress
}

const (
	// maxRequest bounds one READ or WRITE, in bytes. The kernel's limit, one mebibyte, is not
	// faster, and each reader of the device of each mount holds resident memory for one request
	// (residentBuffers).
	maxRequest = 128 << 10
	// maxBackground bounds the READs of readahead that the kernel keeps in flight. Each may wait
	// for the network; with the kernel's default of 12, a dozen slow files would delay the reading
	// of all others.
	maxBackground = 1024
)

// Mount mounts t at dir, an existing directory, and serves it until it is unmounted.
func Mount(t *worktree.Tree, dir string, o Options) (*Server, error) {
	d, err := Attach(dir, o)
	if err != nil {
		return nil, err
	}
	return Serve(t, dir, d, o)
}

// Serve serves t at dir, where the device is mounted, until it is unmounted. For a mount that
// another process served, it also answers the requests that were left unanswered; t must then have
// been opened with TakeOver, and o be the same. If a mount that was never served cannot be served,
// Serve unmounts it.
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
		// Before this process reads: all requests that were read and not answered are resent,
		// whichever process read them.
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

// refusePoll makes the kernel know, by one poll of a name that go-fuse answers itself, that files
// of the mount cannot be polled. Go's runtime registers every file that it opens with epoll, in a
// system call during which the scheduler does not know that the thread waits; a request to this
// same process could then stop the process forever.
func (s *Server) refusePoll() error {
	return WithoutDevice(func() error {
		fd, err := unix.Open(filepath.Join(s.dir, pollName), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &fs.PathError{Op: "open", Path: s.dir, Err: err}
		}
		defer unix.Close(fd)
		// The kernel remembers ENOSYS, which is no error of poll(2).
		unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return nil
	})
}

// pollName is a file in the root that the library reserves for polling (fuse/poll.go there).
const pollName = ".go-fuse-epoll-hack"

// type of the file system in the table of mounts
const (
	subtype = "artifactfs"
	fsType  = "fuse." + subtype
)

// mountOptions returns the options of the library. The reply to INIT follows from them, and a
// successor, perhaps of another version, can take a mount over only if it would reply the same
// (Device.begin).
func mountOptions(o Options, f *fileSystem) *raw.MountOptions {
	m := &raw.MountOptions{
		MaxWrite:      maxRequest,
		MaxBackground: maxBackground,
		// CAP_NO_OPEN_SUPPORT and CAP_PARALLEL_DIROPS are among go-fuse's own. Not
		// CAP_READDIRPLUS_AUTO: with it the kernel requests attributes only with the first buffer
		// of a directory, and a find over 20,000 files sends 19,800 LOOKUPs; without it a bare ls
		// -R costs half as much again. CAP_EXPORT_SUPPORT makes the kernel look up file handles
		// (open_by_handle_at(2), NFS) by node, see find.
		ExtraCapabilities:        raw.CAP_NO_OPENDIR_SUPPORT | raw.CAP_HAS_RESEND | raw.CAP_EXPORT_SUPPORT,
		EnableSymlinkCaching:     true,
		ExplicitDataCacheControl: true, // no GETATTR to check whether a file was changed by another host
		DisableSplice:            true, // READs are copied; without this go-fuse tries a pipe first, which costs three system calls

		Logger:       zap.NewStdLog(o.Log),
		PanicHandler: f.panicked,
	}
	if o.ReadOnly {
		m.DisableXAttrs = true  // ENOSYS once, then EOPNOTSUPP without a request
		m.RememberInodes = true // nodes are never forgotten, FORGET means nothing
	} else {
		// Without CAP_HANDLE_KILLPRIV_V2 every write(2) would request "security.capability"
		// (fs/fuse/inode.c, process_init_reply sets SB_NOSEC with it), and drop set-user-ID by a
		// SETATTR of its own.
		m.ExtraCapabilities |= raw.CAP_WRITEBACK_CACHE | raw.CAP_HANDLE_KILLPRIV_V2
		if m.EnableAcl = o.ACL; o.ACL {
			// The umask is applied here, since a default list replaces it; requests say whether a
			// list drops set-group-ID.
			m.ExtraCapabilities |= raw.CAP_DONT_MASK | raw.CAP_SETXATTR_EXT
		}
	}
	return m
}

// Wait returns when the mount has ended, for whatever reason, and every request is answered.
func (s *Server) Wait() { <-s.ended }

// Stats returns the number of requests of each kind since the mount, by the kernel's name for it.
func (s *Server) Stats() map[string]uint64 { return s.fs.ops.snapshot() }

// Pending returns the number of requests that are not answered yet, and Fetched the number of those
// that waited for the remote.
func (s *Server) Pending() int64  { return s.fs.ops.pending.Load() }
func (s *Server) Fetched() uint64 { return s.fs.ops.fetched.Load() }
