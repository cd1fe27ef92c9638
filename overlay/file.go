package overlay

import (
	"container/list"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/overlay/state"
)

// File is the data of a node while somebody uses it. All users of a node share one File.
type File struct {
	l    *Layer
	node Node

	// Guarded by files.mu.
	users   int
	idle    *list.Element // place among the unused
	retired bool          // the node has ended: close with the last user

	// mu: data is read and written under the shared lock; whole, where contents begin, end or change place.
	mu     sync.RWMutex
	place  place
	number uint64    // of the content
	data   disk.File // the content, if place is inContent

	size   atomic.Int64 // of the content
	marked atomic.Bool  // the log says that the inode is dirty
	synced atomic.Bool  // the content's directory entry is on disk
	writes atomic.Int64 // monotonic time of the last write
	copied atomic.Int64 // monotonic time of the last KeepCopy; 0: never
}

// place is where a file's bytes are.
type place uint8

const (
	unknown   place = iota // not looked up yet
	inBase                 // the base's
	nowhere                // there are none
	inContent              // in a content
)

// files are the Files in use, and those kept open for the next use: there is no open and no close of a node.
type files struct {
	mu     sync.Mutex
	byNode map[Node]*File
	idle   *list.List // of *File, the last used in front
	limit  int        // of idle
}

// maxIdle is how many descriptors the unused Files of one layer may hold.
const maxIdle = 1024

// unused counts those of all layers of the process, which share what the process may have open.
var unused atomic.Int64

// fileLimit is how many descriptors the unused Files of all layers may hold.
var fileLimit = sync.OnceValue(func() int64 {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) != nil {
		return 256
	}
	return int64(min(max(r.Cur/4, 256), 16384))
})

// park puts a File among the unused, and gives one to close if there are too many. fs.mu is held.
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

// unpark takes a File from the unused. fs.mu is held.
func (fs *files) unpark(f *File) {
	fs.idle.Remove(f.idle)
	f.idle = nil
	unused.Add(-1)
}

// File returns a node's data. It waits for nothing; Done gives it back.
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

// Done ends a use of the File.
func (f *File) Done() {
	fs := &f.l.files
	fs.mu.Lock()
	f.users--
	var closing *File
	switch {
	case f.users > 0:
	case f.data == nil || f.retired: // without users mu is free: data may be read
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

// close closes the content. The File has no user any more.
func (f *File) close() {
	if f.data != nil {
		_ = f.data.Close() // nothing is promised here that fsync has not been asked for
		f.data = nil
	}
}

// retire closes the File of a node that has ended, now or when its last user is done.
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

// unmark notes that the log does not call a node dirty any more.
func (fs *files) unmark(n Node) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f := fs.byNode[n]; f != nil {
		f.marked.Store(false)
	}
}

// closeAll closes the unused Files; it is called when there are no others.
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

// load finds out where the bytes are. f.mu is held whole.
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

// install makes a content the file's. f.mu is held whole.
func (f *File) install(number uint64, data disk.File, size int64, marked bool) {
	f.place, f.number, f.data = inContent, number, data
	f.size.Store(size)
	f.marked.Store(marked)
	f.synced.Store(false)
}

// rlock takes the shared lock of a File whose place is known.
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
	f.mu.RLock() // a place never becomes unknown again
	return nil
}
