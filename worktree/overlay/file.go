package overlay

import (
	"container/list"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/worktree/overlay/state"
)

// File gives access to the contents of a node while they are in use. All users of a node share one File. A File opens a
// descriptor when its data is first used, and keeps the descriptor open until the File leaves the idle list.
type File struct {
	l    *Layer
	node Node

	// files.mu protects the fields below.
	users   int           // number of calls of Layer.File without a matching Done
	idle    *list.Element // element of files.idle; nil while the File has users
	retired bool          // whether the node was dropped, so that the last Done closes the File

	// mu is held shared to read and write data, and exclusively to change place, number or data.
	mu     sync.RWMutex
	place  place
	number uint64    // number of the contents file, if place is inContent
	data   disk.File // open contents file, if place is inContent

	size   atomic.Int64 // size of the contents file in bytes
	marked atomic.Bool  // whether the inode is marked dirty in the log
	synced atomic.Bool  // whether the directory entry of the contents file is on disk
	writes atomic.Int64 // monotonic time of the last write, in nanoseconds
	copied atomic.Int64 // monotonic time of the last KeepCopy, in nanoseconds; 0 if there was none

	separating sync.Mutex // held by Separate; taken before all other locks, except that of a Sealing
}

// place is the location of a file's bytes.
type place uint8

const (
	unknown   place = iota // the location is not known yet
	inBase                 // the bytes are in the base tree
	nowhere                // the file is empty and has no contents file
	inContent              // the bytes are in a contents file
)

// files holds the Files in use and the idle ones. Idle Files keep their contents files open for the next use, because
// this package does not learn when a program opens or closes a file.
type files struct {
	mu     sync.Mutex
	byNode map[Node]*File // Files in use, and idle ones
	idle   *list.List     // idle *File, the most recently used in front
	limit  int            // maximum length of idle
}

// maxIdle is the maximum number of idle Files of one layer. Each of them has an open descriptor.
const maxIdle = 1024

// unused counts the idle Files of all layers in the process, because the descriptor limit applies to the process.
var unused atomic.Int64

// fileLimit returns the maximum number of idle Files of all layers: a quarter of RLIMIT_NOFILE, but at least 16 and at
// most 16384.
var fileLimit = sync.OnceValue(func() int64 {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) != nil {
		return 256
	}
	return int64(min(max(r.Cur/4, 16), 16384))
})

// park makes a File idle. If there are now too many idle Files, it removes the least recently used one and returns it
// for the caller to close. The caller holds fs.mu.
func (fs *files) park(f *File) (closing *File) {
	f.idle = fs.idle.PushFront(f)
	if unused.Add(1) <= fileLimit() && fs.idle.Len() <= fs.limit {
		return nil
	}
	closing = fs.idle.Back().Value.(*File)
	fs.unpark(closing)
	delete(fs.byNode, closing.node)
	return closing
}

// unpark removes a File from the idle list. The caller holds fs.mu.
func (fs *files) unpark(f *File) {
	fs.idle.Remove(f.idle)
	f.idle = nil
	unused.Add(-1)
}

// File returns a node's File without blocking. The first access to the data opens the contents file. The caller must
// call Done when it no longer uses the File.
func (l *Layer) File(n Node) *File {
	fs := &l.files
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f := fs.byNode[n]
	if f == nil {
		f = &File{l: l, node: n}
		fs.byNode[n] = f
	}
	if f.idle != nil {
		fs.unpark(f)
	}
	f.users++
	return f
}

// Done ends one use of the File.
func (f *File) Done() {
	fs := &f.l.files
	fs.mu.Lock()
	f.users--
	var closing *File
	switch {
	case f.users > 0:
	case f.data == nil || f.retired: // a File without users is not locked by any goroutine, so data can be read without mu
		delete(fs.byNode, f.node)
		closing = f
	default:
		closing = fs.park(f)
	}
	fs.mu.Unlock()
	if closing != nil {
		closing.close()
	}
}

// close closes the contents file, if it is open. The File must have no users, or the caller holds f.mu exclusively.
func (f *File) close() {
	if f.data != nil {
		// an error of close is not returned: fsync returns write errors, and without an fsync the data need not be
		// durable
		_ = f.data.Close()
		f.data = nil
	}
}

// retire closes the File of a dropped node: at once if the File is idle, otherwise with the last Done.
func (fs *files) retire(n Node) {
	fs.mu.Lock()
	f := fs.byNode[n]
	if f == nil {
		fs.mu.Unlock()
		return
	}
	f.retired = true
	if f.idle == nil {
		fs.mu.Unlock()
		return
	}
	fs.unpark(f)
	delete(fs.byNode, n)
	fs.mu.Unlock()
	f.close()
}

// unmark records in a node's File that the node is no longer marked dirty in the log.
func (fs *files) unmark(n Node) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f := fs.byNode[n]; f != nil {
		f.marked.Store(false)
	}
}

// spare closes all idle Files, and reports whether there were any.
func (fs *files) spare() bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	n := fs.idle.Len()
	for e := fs.idle.Front(); e != nil; e = fs.idle.Front() {
		f := e.Value.(*File)
		fs.unpark(f)
		delete(fs.byNode, f.node)
		f.close()
	}
	return n > 0
}

// closeAll closes all Files. No File may be in use.
func (fs *files) closeAll() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for n, f := range fs.byNode {
		f.close()
		delete(fs.byNode, n)
	}
	unused.Add(-int64(fs.idle.Len()))
	fs.idle.Init()
}

// load determines the location of the file's bytes, and opens the contents file if there is one. The caller holds f.mu
// exclusively.
func (f *File) load() error {
	if f.place != unknown {
		return nil
	}
	in, ok := f.l.Inode(f.node)
	switch {
	case !ok && f.node.Own():
		return errGone(f.node)
	case !ok || in.Size == SizeOfBase:
		f.place = inBase
	case in.Content == 0:
		f.place = nowhere
	default:
		data, err := f.l.contents.open(in.Content)
		if err != nil {
			return err
		}
		f.install(in.Content, data, in.Size, in.Flags&state.FlagDirty != 0)
	}
	return nil
}

// install makes the File use a contents file that is already open, and closes the one that the File has used before.
// The caller holds f.mu exclusively.
func (f *File) install(number uint64, data disk.File, size int64, marked bool) {
	f.close()
	f.place, f.number, f.data = inContent, number, data
	f.size.Store(size)
	f.marked.Store(marked)
	f.synced.Store(false)
}

// rlock takes f.mu shared, after it has determined the location of the file's bytes. After an error f.mu is not held.
func (f *File) rlock() error {
	f.mu.RLock()
	if f.place != unknown {
		return nil
	}
	f.mu.RUnlock()
	f.mu.Lock()
	err := f.load()
	f.mu.Unlock()
	if err != nil {
		return err
	}
	f.mu.RLock() // f.load has determined the place, which does not become unknown again
	return nil
}
