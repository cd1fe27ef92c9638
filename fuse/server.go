// Package fuse serves a working tree to the kernel. It promises:
//   - the kernel never requests the same thing twice: names, attributes, contents, link targets and listings stay in
//     its caches, so that reading or walking through the same files a second time sends no request;
//   - a request that waits does not delay other requests, and its wait can be interrupted;
//   - the sizes that stat returns are right, and a system call waits for a size only if it may use the size (size.go,
//     package caller);
//   - each known error has one errno (errno.go); all other errors become EIO and are logged with their cause.
//
// # Path of a READ
//
// A READ of a file whose contents are missing on this host calls, in this order: observed.Read (observed.go),
// writable.Read or fileSystem.Read (data.go, read.go), worktree.Tree.Read, then the daemon's source of contents of
// the base tree: fetch.View.Open, RawView.openStored, Pipeline.Wait. A sender of the pipeline calls fetcher.sendBlobs,
// transport.Remote.Fetch and odb.Unpack, which verifies and stores the blob and wakes the reader.
//
// # No state for open files
//
// OPEN and OPENDIR are answered with ENOSYS, after which the kernel opens without a request and keeps pages and
// listings (fs/fuse/file.c, fuse_file_open). There is no per-open state, which has three consequences. An offset in a
// directory is a position that belongs to its entry for good, so a program may seek to it at any time. A file whose
// last name was removed lives until the kernel forgets it (FORGET). O_TRUNC is sent as a SETATTR, because the mount
// does not request CAP_ATOMIC_O_TRUNC, with which the truncation would be part of an OPEN that the kernel never
// sends. File locks are handled by the kernel alone.
//
// # Writing
//
// Each write(2) is a WRITE of its own, which sets the times of the file and waits for the reply; only pages of mappings
// are sent later. The kernel keeps attributes until a WRITE, a change of the file or the first READ of a page
// invalidates them (fuse_write_update_attr, fuse_invalidate_atime), so programs that read unchanged files again send
// no requests. The attributes of a directory are requested after every change of its entries, when the next path
// that leads through the directory is looked up (fuse_dir_changed).
//
// WriteBack makes the kernel send the dirty pages of mappings (writeback.go). A checkpoint calls it before the tree is
// frozen.
//
// A mount requests no writeback cache (doc/decisions/0020).
//
// A read-only mount is mounted with MS_RDONLY, so the kernel itself refuses changes. Replies with EROFS would not
// suffice: an open for writing sends no request, and access(2) would allow writing. Also, on a mount with MS_RDONLY
// reading does not invalidate cached attributes.
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
	FsName     string // source of the mount, which mount(8) and df(1) show to every user, so it must contain no secrets
	AllowOther bool   // whether other users than the user who mounts may use the mount
	ReadOnly   bool   // whether the mount has the flag MS_RDONLY
	ACL        bool   // whether POSIX access control lists apply; used only on writable mounts
	// IDMap permits idmapped mounts of the file system, as of containers in user namespaces (Linux 6.12). The kernel then
	// sends the user only with requests that create an entry.
	IDMap bool
	// path on the file system whose free space statfs(2) reports for the mount; "": no free space is reported
	StatFS string
	Log    *zap.Logger // log returned by Sampled; if nil, nothing is logged

	// records the durations of requests; several mounts may share one; if nil, the mount has a separate one
	Latencies *Latencies

	// Through, if not "", is another path to the directory, which Attach uses to mount. It is needed below an
	// automount: every process that uses the ordinary path waits until the automount daemon knows that the mount
	// exists, and this process must not wait for itself.
	Through string

	// Redirect, if not nil, is called for every directory that is created, with the path relative to the root of the
	// mount. If it returns ok, bind is called to mount another directory over the new one. bind runs in a separate thread,
	// and until it returns only that thread can enter the directory. If bind fails, the directory remains an ordinary
	// directory.
	Redirect func(path string) (bind func() error, ok bool)

	// Unbound lists the directories that a previous process created and for which bind had not returned when that
	// process ended. Serve calls bind for each of them again; look-ups of these directories wait until bind returns.
	Unbound []worktree.Place

	// Await, if not nil, is called for every look-up of ".git" in the root until it returns true. Await may wait; ctx ends
	// when the look-up is interrupted. pid is the id of the thread that looks the name up.
	Await func(ctx context.Context, pid uint32) (done bool)

	// Guard, if not nil, decides which paths programs must not change. It is used only on writable mounts.
	Guard Guard

	// Objects, if not nil, supplies the objects in the subdirectory objects of the directory Hidden in the root, which no
	// listing shows.
	Objects Objects
	Hidden  string

	// EventProcess is the event process that the predecessor has started; the zero value means none.
	EventProcess EventProcess

	// Git, if not nil, makes ".git" in the root have different forms for different programs (gitForms). Objects must
	// not be nil if Git is set.
	Git *GitDir

	wrap func(raw.RawFileSystem) raw.RawFileSystem // wraps the file system in tests
}

// ErrNoFUSE means that this host has no /dev/fuse.
var ErrNoFUSE = errors.New("/dev/fuse does not exist on this host")

// Server serves the requests of one mount.
type Server struct {
	dir        string
	raw        *raw.Server
	fs         *fileSystem
	redirects  *redirects // nil on a read-only mount
	events     *eventFS   // nil on a read-only mount
	device     *Device
	writes     *writing
	sending    chan struct{} // semaphore of capacity 1, which is held during syncfs(2)
	refreshing atomic.Bool   // true while refreshInBackground runs
	ended      chan struct{} // closed when the kernel has ended the mount and all requests are answered
}

const (
	// maxRequest is the maximum size of one READ or WRITE, in bytes. The kernel allows one mebibyte, but measurements
	// showed no gain, and for each mount every thread that reads requests holds a buffer of this size in resident memory
	// (residentBuffers).
	maxRequest = 128 << 10
	// maxBackground is the maximum number of READs for readahead that the kernel keeps in flight. Each READ may wait
	// for the network; with the kernel's default of 12, a dozen slow files would delay the reading of all other
	// files.
	maxBackground = 1024
)

// Mount mounts t at dir, an existing directory, and serves the mount until it is unmounted. It returns when the mount
// can be used.
func Mount(t *worktree.Tree, dir string, o Options) (*Server, error) {
	d, err := Attach(dir, o)
	if err != nil {
		return nil, err
	}
	return Serve(t, dir, d, o)
}

// Serve serves t at dir, where the device is mounted, until the mount ends. If another process has served the mount
// before, Serve also answers the requests that the other process left unanswered; t must then have been opened with
// TakeOver, and o must be the same as in the other process. If Serve fails for a mount that no process has served yet,
// it unmounts the mount.
func Serve(t *worktree.Tree, dir string, d *Device, o Options) (*Server, error) {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	s := &Server{
		dir: dir, fs: newFileSystem(t, o), device: d, writes: new(writing), sending: make(chan struct{}, 1),
		ended: make(chan struct{}),
	}
	s.fs.device = d
	var requests raw.RawFileSystem = s.fs
	var unbound []unfinished
	var w *writable
	if !o.ReadOnly {
		w = &writable{
			fileSystem: s.fs, writes: s.writes, acl: o.ACL, guard: o.Guard,
			redirects: redirects{hook: o.Redirect, dir: dir, log: o.Log},
		}
		requests, s.redirects = w, &w.redirects
		if o.Guard != nil {
			requests = guarded{w, w}
		}
		unbound = s.redirects.remember(t, o.Unbound)
	}
	if o.Objects != nil {
		hidden := objectDir{RawFileSystem: requests, fs: s.fs, name: o.Hidden, objects: o.Objects}
		if w != nil && o.Through == "" {
			hidden.fill = newFiller(w, dir, o.Hidden)
		}
		requests = hidden
		if o.Git != nil {
			requests = newGitForms(hidden, s.fs, dir, o.Hidden, len(d.answer) > 0, o.Git)
			s.fs.git.varies = true
		}
	}
	if w != nil {
		s.events = &eventFS{RawFileSystem: requests, w: w}
		s.events.begin(o.EventProcess)
		requests = s.events
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
	if s.raw, err = d.begin(requests, options); err != nil {
		err = fmt.Errorf("serve %s: %w", dir, err)
		if first {
			close(s.ended)
			err = errors.Join(err, s.detach(), d.file.Close())
		}
		return nil, err
	}
	if !first {
		// Call resend before this process reads its first request, because the kernel resends every request that was read and
		// not answered, including those that this process has read.
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
				o.Log.Warn("read the mount's root directory", zap.Error(err))
			}
		}()
		return s, nil
	}
	if err := errors.Join(s.refusePoll(), s.fs.git.known(dir)); err != nil {
		return nil, errors.Join(fmt.Errorf("mount %s: %w", dir, err), s.Detach())
	}
	return s, nil
}

// refusePoll makes the kernel remember that files of the mount cannot be polled, by polling one name for which go-fuse
// itself answers. Go's runtime registers every file that it opens with epoll, and Go's scheduler does not notice when a
// thread waits in that system call. If the kernel sent a poll request to this same process, the process could stop
// forever.
func (s *Server) refusePoll() error {
	return WithoutDevice(func() error {
		fd, err := unix.Open(filepath.Join(s.dir, pollName), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &fs.PathError{Op: "open", Path: s.dir, Err: err}
		}
		defer unix.Close(fd)
		// The kernel remembers that the answer was ENOSYS. poll(2) does not report that as an error.
		unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return nil
	})
}

// pollName is a file in the root that go-fuse reserves for polling (its fuse/poll.go).
const pollName = ".go-fuse-epoll-hack"

// fsType is the type of the file system in the kernel's table of mounts. subtype is the part of fsType that is passed
// as a mount option.
const (
	subtype = "artifactfs"
	fsType  = "fuse." + subtype
)

// mountOptions returns go-fuse's options for a mount. go-fuse derives the reply to INIT from these options. A
// successor, perhaps of another version, can take a mount over only if it would send the same reply (Device.begin).
func mountOptions(o Options, f *fileSystem) *raw.MountOptions {
	m := &raw.MountOptions{
		MaxWrite:      maxRequest,
		MaxBackground: maxBackground,
		// go-fuse requests CAP_NO_OPEN_SUPPORT and CAP_PARALLEL_DIROPS by default. CAP_READDIRPLUS_AUTO is not requested:
		// with it the kernel requests attributes only with the first buffer of a directory, so that a find over 20,000 files
		// sends 19,800 LOOKUPs. The price is that a plain ls -R takes 50 % longer. CAP_EXPORT_SUPPORT makes the kernel look
		// up file handles (open_by_handle_at(2), NFS) by node id (find in lookup.go).
		ExtraCapabilities:    raw.CAP_NO_OPENDIR_SUPPORT | raw.CAP_HAS_RESEND | raw.CAP_EXPORT_SUPPORT,
		EnableSymlinkCaching: true,
		// the kernel sends no GETATTR before reads to check whether another host has changed the file
		ExplicitDataCacheControl: true,
		// READs copy their data, so go-fuse would use three more system calls to try a pipe first
		DisableSplice: true,

		IDMappedMount: o.IDMap,
		Logger:        zap.NewStdLog(o.Log),
		PanicHandler:  f.panicked,
	}
	if o.ReadOnly {
		m.DisableXAttrs = true  // go-fuse answers ENOSYS once; then the kernel returns EOPNOTSUPP without a request
		m.RememberInodes = true // the tree keeps all nodes, so FORGET is ignored
	} else {
		// Without CAP_HANDLE_KILLPRIV_V2 the kernel would request "security.capability" for every write(2) (fs/fuse/inode.c,
		// process_init_reply sets SB_NOSEC only with this capability), and would send an additional SETATTR to drop
		// set-user-ID.
		m.ExtraCapabilities |= raw.CAP_HANDLE_KILLPRIV_V2
		if m.EnableAcl = o.ACL; o.ACL {
			// With CAP_DONT_MASK the tree applies the umask instead of the kernel, because a default access control list of
			// the directory replaces the umask. With CAP_SETXATTR_EXT a SETXATTR states whether setting a list drops
			// set-group-ID.
			m.ExtraCapabilities |= raw.CAP_DONT_MASK | raw.CAP_SETXATTR_EXT
		}
	}
	return m
}

// Wait blocks until the mount has ended, for any reason, and all requests are answered.
func (s *Server) Wait() { <-s.ended }

// Ended reports whether the server has ended, because the file system was unmounted.
func (s *Server) Ended() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// Stats returns the number of requests of each kind since Serve was called. The keys are the kernel's names, such as
// LOOKUP.
func (s *Server) Stats() map[string]uint64 { return s.fs.ops.snapshot() }

// Pending returns the number of requests that are not answered yet. Fetched returns the number of requests since
// Serve was called that waited for data from the remote.
func (s *Server) Pending() int64  { return s.fs.ops.pending.Load() }
func (s *Server) Fetched() uint64 { return s.fs.ops.fetched.Load() }

// Failures returns, by the names of the errnos, the number of requests since Serve was called that failed because of
// the host or the remote. It contains every such errno, also those that did not occur.
func (s *Server) Failures() map[string]uint64 {
	all := make(map[string]uint64, len(failures))
	for i, f := range failures {
		all[f.name] = s.fs.ops.failed[i].Load()
	}
	return all
}
