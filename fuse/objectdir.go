package fuse

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	raw "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/proc"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/object/loose"
	"github.com/artifactfs/artifactfs/odb/named"
	"github.com/artifactfs/artifactfs/odb/namedset"
	"github.com/artifactfs/artifactfs/worktree"
)

// Objects supplies the blobs that the trees of the repository name (Options.Objects). A method that waits returns when ctx ends.
type Objects interface {
	Format() object.Format
	// Has reports whether a tree names the blob id.
	Has(ctx context.Context, id object.ID) (bool, error)
	// Prefixed returns the named blob whose id has this prefix (see named.Prefix).
	Prefixed(ctx context.Context, prefix uint64) (id object.ID, ok bool, err error)
	// From returns the named blobs whose ids have this first byte, in the order of their ids.
	From(first byte, after object.ID) iter.Seq[object.ID]
	// Opened is called before the thread tid opens the blob id. It returns true if the blob is in a pack that git reads. git then has to
	// read the list of packs again.
	Opened(ctx context.Context, tid uint32, id object.ID) (packed bool, err error)
	// Swept is called before a process that reads all blobs in the order of their ids opens the blob id.
	Swept(ctx context.Context, id object.ID) error
	// Size returns the size of a named blob in bytes, or -1 if it is not known. It does not wait. The size of a blob whose contents were
	// fetched is known.
	Size(id object.ID) int64
	// Content returns the contents of a named blob. It waits until they are fetched.
	Content(ctx context.Context, id object.ID) (worktree.Content, error)
	// Watch makes the function grown be called when trees have come that name more blobs.
	Watch(grown func()) (stop func())
}

// objectDir is the directory loose.DirName in the root of a mount. No listing contains it. git uses it as an alternate object directory
// (gitrepository-layout(5)). It contains the blobs that the trees of the repository name, although most of them are not on this host:
//
//	XX/REST      a symbolic link to ../contents/XXREST, for each named blob
//	contents/ID  the loose form of the blob (package loose)
//
// git finds out whether a blob exists by lstat on the link, or by access on the file. Both are answered at once. The kernel may cache
// entries of the directories XX, including negative ones, without limit: when names are added, grow invalidates these directories.
//
// To read a blob git opens the file. The look-up of the file fetches the contents and those that the command will need next. If these
// were put into a pack, the answer is that the file does not exist: git then lists the packs again and finds the blob there. Otherwise
// the GETATTR that precedes each open waits for the contents and tells the kernel the size of the file, as sizes explains.
//
// The number of a node contains the first bits of the id of its blob, so that a successor needs no table. Two bits state the kind of the
// node. Nodes of the working tree have zeros there.
type objectDir struct {
	raw.RawFileSystem // answers the requests for all other nodes

	f       *fileSystem
	objects Objects
	format  object.Format
	grown   atomic.Uint64  // number of times at which names were added
	notices sync.WaitGroup // notices that are sent in the background
	stop    func()         // ends the calls of grow
}

// OnUnmount ends the waits of all requests and returns when all notices to the kernel were sent.
func (o *objectDir) OnUnmount() {
	o.stop()
	o.RawFileSystem.OnUnmount()
	o.notices.Wait()
}

// begin makes the kernel learn of names that come from now on. If another process has served the mount before, names may have come
// meanwhile.
func (o *objectDir) begin(first bool) {
	if o.stop = o.objects.Watch(o.grow); !first {
		o.notices.Go(o.grow)
	}
}

// Kinds of nodes, as the two highest bits of a node's number.
const (
	kindDir     = 1 << named.PrefixBits // the other bits are one of the numbers below
	kindLink    = 2 << named.PrefixBits
	kindContent = 3 << named.PrefixBits
	kindMask    = 3 << named.PrefixBits

	objectsNode  = kindDir // the object directory
	contentsNode = kindDir + 1
	fanOutNode   = kindDir + 1<<8 // the first of 256 directories XX

	contentsName = "contents"
)

// isObject reports whether a node belongs to the object directory.
func isObject(node uint64) bool { return node&kindMask != 0 }

// lookup finds an entry of the object directory. It returns node 0 if there is none, and the time in which the kernel may cache the entry.
func (o *objectDir) lookup(w *waiter, dir uint64, name string) (node uint64, keep time.Duration, err error) {
	switch {
	case name == ".":
		return dir, forever, nil
	case name == "..":
		return o.parent(dir), forever, nil
	case dir == objectsNode && name == contentsName:
		return contentsNode, forever, nil
	case dir == objectsNode && len(name) == 2:
		if b, ok := hexByte(name); ok {
			return fanOutNode + uint64(b), forever, nil
		}
	case dir == contentsNode:
		return o.lookupContent(w, name)
	case dir >= fanOutNode && dir < fanOutNode+256:
		return o.lookupLink(w, byte(dir-fanOutNode), name)
	}
	return 0, forever, nil
}

// parent returns the directory that contains a node.
func (o *objectDir) parent(node uint64) uint64 {
	switch {
	case node&kindMask == kindContent:
		return contentsNode
	case node&kindMask == kindLink:
		return fanOutNode + node<<2>>56
	case node == objectsNode:
		return uint64(worktree.Root)
	}
	return objectsNode
}

// hexByte parses two hexadecimal digits in lower case.
func hexByte(s string) (b byte, ok bool) {
	for i := range 2 {
		d := strings.IndexByte("0123456789abcdef", s[i])
		if d < 0 {
			return 0, false
		}
		b = b<<4 | byte(d)
	}
	return b, true
}

// lookupLink finds the link to a blob in the directory of the ids that begin with first.
func (o *objectDir) lookupLink(w *waiter, first byte, rest string) (node uint64, keep time.Duration, err error) {
	id, err := object.ParseID(fmt.Sprintf("%02x%s", first, rest))
	if err != nil {
		return 0, forever, nil
	}
	before := o.grown.Load()
	ok, err := o.objects.Has(w, id)
	if err != nil || !ok {
		if o.grown.Load() == before {
			keep = forever
		}
		return 0, keep, err
	}
	_, _, err = o.objects.Prefixed(w, named.Prefix(id))
	if errors.Is(err, namedset.ErrPrefixCollision) {
		// The number of a node cannot distinguish the two blobs, so git has to read this one from a pack.
		_, err = o.objects.Opened(w, 0, id)
		return 0, 0, err
	}
	return kindLink | named.Prefix(id), forever, err
}

// lookupContent finds the file of a blob. If the thread opens the file, it fetches the contents first.
func (o *objectDir) lookupContent(w *waiter, name string) (node uint64, keep time.Duration, err error) {
	id, err := object.ParseID(name)
	if err != nil {
		return 0, 0, nil
	}
	if ok, err := o.objects.Has(w, id); err != nil || !ok {
		return 0, 0, err
	}
	switch {
	case !opens(w.pid):
	case lists(w.pid):
		// The program has found the file in a listing, and does not look for the blob in packs.
		if err := o.objects.Swept(w, id); err != nil {
			return 0, 0, err
		}
	default:
		packed, err := o.objects.Opened(w, w.pid, id)
		if packed || err != nil {
			return 0, 0, err
		}
	}
	return kindContent | named.Prefix(id), 0, nil
}

// opens reports whether a thread is in a system call that opens a file. It returns false if the system call cannot be read.
func opens(tid uint32) bool {
	c, ok := blockedIn(proc.Of(int(tid)))
	if !ok || c.Stack < 1<<32 { // see sysCall.use
		return false
	}
	return c.Number == unix.SYS_OPENAT || c.Number == unix.SYS_OPENAT2 || c.legacyOpens()
}

// blob returns the id of the blob to which a link or file belongs. If no tree names the blob any more, it returns ErrNoNode.
func (o *objectDir) blob(w *waiter, node uint64) (object.ID, error) {
	id, ok, err := o.objects.Prefixed(w, node&^kindMask)
	if err == nil && !ok {
		err = worktree.ErrNoNode
	}
	return id, err
}

// attr returns the attributes of a node, and whether the kernel may cache them. The size of a file is 0 if it is not known. With a
// writeback cache it is always 0, because the kernel then takes no size from a reply. Without, the kernel takes every size, so no reply
// may have the size 0 after another one had the right size: the kernel would cut the pages of a process that has mapped the file.
func (o *objectDir) attr(w *waiter, node uint64) (a raw.Attr, keep bool) {
	root, _ := o.f.tree.KnownAttr(worktree.Root)
	fillAttr(&a, root)
	a.Ino, a.Size, a.Blocks, a.Nlink, a.Rdev = node, 0, 0, 1, 0
	switch node & kindMask {
	case kindDir:
		a.Mode, a.Nlink = syscall.S_IFDIR|0o555, 2
		return a, true
	case kindLink:
		a.Mode = syscall.S_IFLNK | 0o777
		a.Size = uint64(len("../"+contentsName+"/") + 2*o.format.Size())
		return a, true
	}
	a.Mode = syscall.S_IFREG | 0o444
	if id, err := o.blob(w, node); err == nil && !o.f.cached {
		if size := o.objects.Size(id); size >= 0 {
			setSize(&a, loose.Size(size))
		}
	}
	return a, false
}

// setSize sets the size of a file in its attributes.
func setSize(a *raw.Attr, size int64) { a.Size, a.Blocks = uint64(size), uint64(size+511)/512 }

// open returns the loose form of the blob of a file, and the function that releases its contents.
func (o *objectDir) open(w *waiter, node uint64) (form *loose.Blob, release func(), err error) {
	id, err := o.blob(w, node)
	if err != nil {
		return nil, nil, err
	}
	c, err := o.objects.Content(w, id)
	if err != nil {
		return nil, nil, err
	}
	return loose.New(c, c.Size()), c.Release, nil
}

// sendSize waits for the contents of a file, makes the kernel know the size of the file, and returns the size.
func (o *objectDir) sendSize(w *waiter, node uint64) (int64, error) {
	form, release, err := o.open(w, node)
	if err != nil {
		return 0, err
	}
	defer release()
	if !o.f.cached {
		return form.Size(), nil // the reply makes the size known
	}
	end := make([]byte, 1)
	if _, err := form.ReadAt(end, form.Size()-1); err != nil {
		return 0, err
	}
	// If the kernel knows the size already, a READ in progress may have locked the page.
	status := o.f.device.tellKernel(func() raw.Status { return o.f.server.InodeNotifyStoreCache(node, form.Size()-1, end) })
	if status != raw.OK {
		return 0, fmt.Errorf("notify kernel of file size: %w", syscall.Errno(status))
	}
	return form.Size(), nil
}

// growAgain is the time after which grow invalidates the directories again.
const growAgain = 100 * time.Millisecond

// grow makes the kernel look up the entries of all directories XX again. It does not wait for a lock that is held while a request waits
// for objects: the notices need only the lock of the object directory itself, whose entries are found at once.
func (o *objectDir) grow() {
	o.grown.Add(1)
	o.invalidate()
	// A negative answer that was sent just before may reach the kernel's cache after the notice.
	o.notices.Go(func() {
		select {
		case <-time.After(growAgain):
			o.invalidate()
		case <-o.f.gone:
		}
	})
}

// invalidate sends the notices of grow. The kernel returns ENOENT for a directory that it does not know.
func (o *objectDir) invalidate() {
	o.f.device.tellKernel(func() raw.Status {
		for b := range uint64(256) {
			o.f.server.EntryNotify(objectsNode, fmt.Sprintf("%02x", b))
		}
		return raw.OK
	})
}
