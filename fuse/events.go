package fuse

import (
	"context"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	raw "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/proc"
	"github.com/artifactfs/artifactfs/worktree"
)

// The kernel raises inotify events only in system calls: a name or file that has changed without a request raises none,
// and no notice makes the kernel raise one. So after such changes another process, the event process (package
// host/mount/inotify), makes system calls in the mount whose requests change nothing. The answers to its requests make
// the kernel raise the events that git would have caused:
//
//	change            system call   answers                                     events
//	name was created  mknod, mkdir  the name is absent; it is created           IN_CREATE in the directory
//	name was removed  unlink,rmdir  the name exists; it is removed              IN_DELETE in the directory, IN_DELETE_SELF
//	file was replaced utimensat     the name exists; its times were set         IN_MODIFY in the directory and of the old file
//
// The answer "the name exists" contains the node that the name had before the change, if the kernel still has a
// reference to that node, so that programs that watch the file itself also get the event. Otherwise, and for each name
// that is created or a directory, the answer contains a stand-in: a node without contents, whose number is not used for
// anything else. The kernel must not cache these entries (entry timeout 0), so it looks the name up again for every
// other process (fs/fuse/dir.c, fuse_dentry_revalidate).
//
// The old node has no name any more. When the kernel drops the last entry of the old node, it raises IN_DELETE_SELF, as
// it does after a rename over a file. EndEvents drops the entries.

// EventKind is the kind of the change that a NameEvent reports.
type EventKind byte

const (
	Created    EventKind = 'c' // a file was created
	CreatedDir EventKind = 'C'
	Removed    EventKind = 'r' // a file was removed
	RemovedDir EventKind = 'R'
	Replaced   EventKind = 'm' // a name shows another file
)

// NameEvent is a change of a name that inotify events are raised for.
type NameEvent struct {
	worktree.Place
	Kind EventKind
	Old  worktree.Node // node of a file that was removed or replaced; 0: none
	// Lookups is the number of references that the kernel had to the new node when the name was created.
	Lookups uint64

	given atomic.Bool // set when a reply to the event process has contained the node Old
}

// EventProbe is a name in the root that exists only for the event process.
const EventProbe = ".artifactfs-events"

const (
	firstStandIn = hiddenNode + 1<<56 // number of the first stand-in
	standIns     = 1 << 56            // number of inode numbers for stand-ins
)

// isStandIn reports whether a node is a stand-in.
func isStandIn(node uint64) bool { return node >= firstStandIn && node < firstStandIn+standIns }

// eventSet contains the names whose events one event process raises.
type eventSet struct {
	pid    uint32
	events map[worktree.Place]*NameEvent
}

// eventFS answers the requests of the event process, and passes all other requests to the wrapped file system.
type eventFS struct {
	raw.RawFileSystem
	w    *writable
	set  atomic.Pointer[eventSet] // nil while there is no event process
	last atomic.Uint64            // number of the last stand-in, without firstStandIn
	// orphan is the id of the event process of the predecessor, or 0 if that process has ended. All its changes fail.
	orphan atomic.Uint32
}

// BeginEvents makes the requests of the process pid raise the events in list without a change of the tree. The process
// must send its requests from its main thread. EndEvents must be called when the process has ended, but before its id
// can be used again (wait(2)).
func (s *Server) BeginEvents(pid int, list []*NameEvent) {
	set := &eventSet{uint32(pid), make(map[worktree.Place]*NameEvent, len(list))}
	for _, e := range list {
		set.events[e.Place] = e
	}
	s.events.set.Store(set)
	// Programs may have looked the names up since the change. The kernel would then answer the event process from its
	// cache, with the new state: an absent name, or the new file instead of the old one that a program watches.
	s.dropEntries(list, func(e *NameEvent) bool {
		return e.Kind == Removed || e.Kind == RemovedDir || e.Kind == Replaced && e.Old != 0 &&
			s.events.w.tree.Kernel().Lookups(e.Old) > 0
	})
}

// EndEvents removes the events that BeginEvents has set, so that the requests of all processes are handled normally.
func (s *Server) EndEvents() {
	set := s.events.set.Load()
	if set == nil {
		return
	}
	list := make([]*NameEvent, 0, len(set.events))
	for _, e := range set.events {
		list = append(list, e)
	}
	s.dropEntries(list, func(e *NameEvent) bool { return e.given.Load() })
	s.events.set.Store(nil)
}

// dropEntries makes the kernel drop the names in list for which the function which returns true.
func (s *Server) dropEntries(list []*NameEvent, which func(*NameEvent) bool) {
	select {
	case <-s.ended:
		return
	default:
	}
	s.device.notifyKernel(func() raw.Status {
		for _, e := range list {
			if which(e) {
				s.raw.EntryNotify(uint64(e.Dir), e.Name)
			}
		}
		return raw.OK
	})
}

// begin makes all changes of the predecessor's event process (Options.EventProcess) fail until that process has ended.
// It is called before the first request is answered.
func (f *eventFS) begin(p EventProcess) {
	f.last.Store(uint64(time.Now().UnixMicro())) // the kernel may still have stand-ins of the predecessor
	if p.PID == 0 {
		return
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return // the event process of the predecessor has ended
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	if stat, err := proc.Of(p.PID).Stat(); err != nil || stat.Start != p.Start {
		file.Close()
		return
	}
	f.orphan.Store(uint32(p.PID))
	unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	go func() {
		defer file.Close()
		// A pidfd becomes readable when the process has ended. A process that waits for a reply ends when it gets the reply.
		_, err :=
			retryEINTR(func() (int, error) { return unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1) })
		if err == nil {
			f.orphan.Store(0)
		}
	}()
}

// EventProcess identifies an event process. The zero value stands for none.
type EventProcess struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // start time of the process, as in proc.Stat
}

// eventOf returns the event of a name if the request h is from the event process. If it is, own is true.
func (f *eventFS) eventOf(h *raw.InHeader, name string) (e *NameEvent, own bool) {
	set := f.set.Load()
	if set == nil || set.pid != h.Pid {
		return nil, false
	}
	return set.events[worktree.Place{Dir: worktree.Node(h.NodeId), Name: name}], true
}

// isOrphan reports whether the request h is from the event process of the predecessor.
func (f *eventFS) isOrphan(h *raw.InHeader) bool { return h.Pid != 0 && h.Pid == f.orphan.Load() }

func (f *eventFS) Lookup(cancel <-chan struct{}, h *raw.InHeader, name string, out *raw.EntryOut) raw.Status {
	set := f.set.Load()
	if set == nil {
		return f.RawFileSystem.Lookup(cancel, h, name, out)
	}
	e := set.events[worktree.Place{Dir: worktree.Node(h.NodeId), Name: name}]
	switch {
	case h.Pid != set.pid:
		status := f.RawFileSystem.Lookup(cancel, h, name, out)
		if e != nil && (out.NodeId == 0 || e.Kind == Replaced) {
			out.SetEntryTimeout(0) // with a cached entry, the event process would not look the name up again
		}
		return status
	case h.NodeId == uint64(worktree.Root) && name == EventProbe:
		f.standIn(out, syscall.S_IFREG)
		return raw.OK
	case e == nil:
		return f.RawFileSystem.Lookup(cancel, h, name, out)
	}
	present, lookups := f.now(e.Place)
	switch e.Kind {
	case Created, CreatedDir:
		// If a program has looked the name up since the change, the answer that the name is absent would make the kernel
		// drop the entry of that program, which may be its working directory.
		if !present || lookups <= e.Lookups {
			return raw.ENOENT
		}
	case Removed, RemovedDir:
		if !present {
			f.before(e, out)
			return raw.OK
		}
	case Replaced:
		if present {
			f.before(e, out)
			return raw.OK
		}
	}
	// No event is necessary: a later change has made this one obsolete, or a program has already looked the name up.
	return f.RawFileSystem.Lookup(cancel, h, name, out)
}

// now reports whether a name exists in the tree at this time, and how many references the kernel has to its node.
func (f *eventFS) now(p worktree.Place) (present bool, lookups uint64) {
	// never waits, because the entries of a changed directory are on this host
	a, err := f.w.tree.Lookup(context.Background(), p.Dir, p.Name)
	if err != nil {
		return false, 0
	}
	return true, f.w.tree.Kernel().Lookups(a.Node)
}

// before fills the reply to a look-up with the state of a name before the change.
func (f *eventFS) before(e *NameEvent, out *raw.EntryOut) {
	a, _ := f.w.tree.KnownAttr(e.Old)
	if e.Kind == RemovedDir || e.Old == 0 || a.Node != e.Old || a.Nlink != 0 || f.w.tree.Kernel().Lookups(e.Old) == 0 {
		mode := uint32(syscall.S_IFREG)
		if e.Kind == RemovedDir {
			mode = syscall.S_IFDIR
		}
		f.standIn(out, mode)
		return
	}
	e.given.Store(true)
	f.w.fillEntry(out, a)
	out.SetEntryTimeout(0)
	out.SetAttrTimeout(0)
}

// standIn fills the reply to a look-up with a new stand-in. mode is its type.
func (f *eventFS) standIn(out *raw.EntryOut, mode uint32) {
	out.NodeId = firstStandIn + f.last.Add(1)%standIns
	out.SetAttrTimeout(forever)
	standInAttr(&out.Attr, out.NodeId, mode)
}

func standInAttr(out *raw.Attr, node uint64, mode uint32) {
	*out = raw.Attr{Ino: node, Mode: mode | 0o700, Nlink: 1,
		Owner: raw.Owner{Uid: uint32(os.Geteuid()), Gid: uint32(os.Getegid())}}
}

func (f *eventFS) SetAttr(cancel <-chan struct{}, in *raw.SetAttrIn, out *raw.AttrOut) raw.Status {
	switch _, own := f.eventOf(&in.InHeader, ""); {
	case f.isOrphan(&in.InHeader):
		return raw.EIO
	case isStandIn(in.NodeId):
		out.SetTimeout(forever)
		standInAttr(&out.Attr, in.NodeId, syscall.S_IFREG)
		return raw.OK
	case own:
		a, _ := f.w.tree.KnownAttr(worktree.Node(in.NodeId))
		if uint64(a.Node) != in.NodeId {
			return raw.ENOENT
		}
		fillAttr(&out.Attr, a) // the kernel does not cache the attributes
		return raw.OK
	}
	return f.RawFileSystem.SetAttr(cancel, in, out)
}

func (f *eventFS) GetAttr(cancel <-chan struct{}, in *raw.GetAttrIn, out *raw.AttrOut) raw.Status {
	if isStandIn(in.NodeId) {
		return raw.Status(syscall.ESTALE)
	}
	return f.RawFileSystem.GetAttr(cancel, in, out)
}

func (f *eventFS) Forget(node, lookups uint64) {
	if !isStandIn(node) {
		f.RawFileSystem.Forget(node, lookups)
	}
}

// noChange answers a request of the event process to create or remove a name, without a change of the tree. ok is false
// for requests of other processes. out is the reply to a creation.
func (f *eventFS) noChange(h *raw.InHeader, name string, kind EventKind,
	out *raw.EntryOut) (status raw.Status, ok bool) {
	e, own := f.eventOf(h, name)
	switch {
	case f.isOrphan(h):
		return raw.EIO, true
	case !own:
		return raw.OK, false
	case e == nil || e.Kind != kind:
		return raw.EROFS, true
	}
	// The request succeeds only if the tree is still in the state after the change that the event reports.
	switch present, _ := f.now(e.Place); {
	case out == nil && present:
		return raw.EBUSY, true
	case out != nil && !present:
		return raw.Status(syscall.EEXIST), true
	case kind == Created:
		f.standIn(out, syscall.S_IFREG)
	case kind == CreatedDir:
		f.standIn(out, syscall.S_IFDIR)
	}
	return raw.OK, true
}

func (f *eventFS) Mknod(cancel <-chan struct{}, in *raw.MknodIn, name string, out *raw.EntryOut) raw.Status {
	if status, ok := f.noChange(&in.InHeader, name, Created, out); ok {
		return status
	}
	return f.RawFileSystem.Mknod(cancel, in, name, out)
}

func (f *eventFS) Mkdir(cancel <-chan struct{}, in *raw.MkdirIn, name string, out *raw.EntryOut) raw.Status {
	if status, ok := f.noChange(&in.InHeader, name, CreatedDir, out); ok {
		return status
	}
	return f.RawFileSystem.Mkdir(cancel, in, name, out)
}

func (f *eventFS) Unlink(cancel <-chan struct{}, h *raw.InHeader, name string) raw.Status {
	if status, ok := f.noChange(h, name, Removed, nil); ok {
		return status
	}
	return f.RawFileSystem.Unlink(cancel, h, name)
}

func (f *eventFS) Rmdir(cancel <-chan struct{}, h *raw.InHeader, name string) raw.Status {
	if status, ok := f.noChange(h, name, RemovedDir, nil); ok {
		return status
	}
	return f.RawFileSystem.Rmdir(cancel, h, name)
}
