package fuse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/worktree"
)

// Objects supplies the blobs of the repository, most of which are missing on this host, as files of a directory below
// Options.Hidden.
type Objects interface {
	// Find returns in which form the process of the thread tid finds an object, and the number of the object, which is
	// below 1<<62 and always the same for this object. name is the object's id in hexadecimal digits. If the form is
	// Contents, Find waits until the contents are on this host.
	Find(ctx context.Context, tid uint32, name string) (Finding, uint64, error)
	// Open returns the object with this number in the form of a loose object. It waits until the contents are on this
	// host.
	Open(ctx context.Context, number uint64) (Object, error)
	// Opened is called when the process of the thread tid has opened an object in the form Existence. The object is the
	// one for which Find was called last for this thread. The process gets the answer to its open when Opened returns.
	Opened(ctx context.Context, tid uint32)
	// Lists reports whether a listing of a directory of objects contains objects if the process of the thread tid
	// requests it.
	Lists(tid uint32) bool
	// List returns the names in the listing of the directory of the objects whose ids begin with the byte first. The
	// names do not contain the first two digits of the ids.
	List(first byte) []string
}

// Object is the contents of a file in a directory of objects. Release must be called after the last ReadAt.
type Object interface {
	io.ReaderAt
	Size() int64 // in bytes
	Release()
}

// Finding is the form in which a process finds an object.
type Finding int

const (
	Absent    Finding = iota
	Existence         // the process sees that the object exists, but cannot read its contents
	Contents          // the process can read the contents
)

// objectDir adds a directory to the root of a mount, with a directory of loose objects (gitrepository-layout(5),
// objects) in it. No listing of the root shows it. For git, each object is a symbolic link without a target: a process
// that only checks whether the object exists calls lstat, which finds the link, and a process that opens the object
// gets ENOENT, which for git means that it has to request the object from the promisor remote. For programs that cannot
// request objects, each object is a file with its contents.
//
// The answers depend on the process, so the kernel must not cache them. It does cache a listing, and returns it to
// other processes until the modification time of the directory changes (fs/fuse/readdir.c, fuse_readdir_cached). So a
// directory of objects is two nodes: one that lists objects, and one that lists none. Its modification time is
// different in each reply, because the tree that the mount shows may change.
//
// The numbers of the nodes are constants, or contain the number of the object, so they need no state and survive a
// takeover.
type objectDir struct {
	raw.RawFileSystem             // answers the requests for all other nodes
	fs                *fileSystem // counts requests that wait, and interrupts them (method wait)
	name              string      // Options.Hidden
	objects           Objects
	fill              *filler // nil on a read-only mount
}

// Nodes of an objectDir. The tree and the overlay do not use these numbers.
const (
	hiddenNode  = 1 << 62        // the hidden directory in the root
	objectsNode = hiddenNode + 1 // the directory "objects" in hiddenNode
	// directory of the objects whose ids begin with the byte 0, with an empty listing
	firstFanOut = objectsNode + 1
	firstListed = firstFanOut + 256 // the same directory with a listing
	// the symbolic link that stands for every object without contents if the thread 0 looks it up; that of the thread
	// tid is linkNode + tid
	linkNode  = firstListed + 256
	firstFile = 3 << 62 // the file of the object with the number 0
)

// linkTarget is the beginning of the targets of links. No name in a directory of objects begins so.
const linkTarget = "fetched-by-git"

// isLink reports whether a node is the link of a thread.
func isLink(node uint64) bool { return node >= linkNode && node < fillTop }

// target returns the target of a link. Each thread gets its own target, because the kernel looks up a name only once at
// a time: another thread that looks up the same name meanwhile waits, and cannot be killed (fs/dcache.c,
// d_alloc_parallel). Because the kernel caches the target of a node, each thread gets its own node.
func target(link uint64) string { return fmt.Sprintf("%s-%010d", linkTarget, link-linkNode) }

// isObjects reports whether a node belongs to an objectDir.
func isObjects(node uint64) bool { return node >= hiddenNode }

// isTop reports whether the name in the directory dir is that of the hidden directory in the root.
func (f objectDir) isTop(dir uint64, name string) bool {
	return dir == uint64(worktree.Root) && name == f.name
}

// fanOut returns the first byte of the ids of the objects in a directory; ok is false for other nodes.
func fanOut(node uint64) (first byte, ok bool) {
	return byte((node - firstFanOut) % 256), node >= firstFanOut && node < linkNode
}

// attributes sets the attributes of a node of the directory, except the size of a file.
func (f objectDir) attributes(out *raw.Attr, node uint64) {
	now := time.Now()
	*out = raw.Attr{Ino: node, Mode: syscall.S_IFDIR | 0o555, Nlink: 2, Mtime: uint64(now.Unix()),
		Mtimensec: uint32(now.Nanosecond()),
		Owner:     raw.Owner{Uid: uint32(os.Getuid()), Gid: uint32(os.Getgid())}}
	switch {
	case isLink(node):
		out.Mode, out.Nlink, out.Size = syscall.S_IFLNK|0o777, 1, uint64(len(target(node)))
	case node >= firstFile:
		out.Mode, out.Nlink, out.Mtime, out.Mtimensec = syscall.S_IFREG|0o444, 1, 0, 0
	}
}

// fileAttributes sets the attributes of a file. It waits for the contents.
func (f objectDir) fileAttributes(w *waiter, out *raw.Attr, node uint64) error {
	object, err := f.objects.Open(w, node-firstFile)
	if err != nil {
		return err
	}
	defer object.Release()
	f.attributes(out, node)
	out.Size, out.Blocks = uint64(object.Size()), uint64(object.Size()+511)/512
	return nil
}

func (f objectDir) Lookup(cancel <-chan struct{}, h *raw.InHeader, name string, out *raw.EntryOut) raw.Status {
	first, inFanOut := fanOut(h.NodeId)
	switch {
	case f.isTop(h.NodeId, name):
		out.NodeId = hiddenNode
		out.SetEntryTimeout(forever)
		out.SetAttrTimeout(forever)
	case h.NodeId == hiddenNode && name == "objects":
		out.NodeId = objectsNode
		out.SetEntryTimeout(forever)
	case !isObjects(h.NodeId):
		return f.lookupInTree(cancel, h, name, out)
	case f.fill != nil && (isFill(h.NodeId) || h.NodeId == hiddenNode && name == fillName):
		node, ok := f.fill.lookup(h.Pid, h.NodeId, name)
		if !ok {
			return raw.ENOENT
		}
		if out.NodeId = node; node == fillTop {
			out.SetEntryTimeout(forever)
		}
		out.SetAttrTimeout(forever)
	case inFanOut && strings.HasPrefix(name, linkTarget): // the kernel follows a link that a thread has opened
		w := f.fs.wait(cancel, h)
		f.objects.Opened(w, h.Pid)
		w.finish()
		return raw.ENOENT
	case inFanOut:
		return f.lookupObject(cancel, h, hexDigits(first)+name, out)
	case h.NodeId == objectsNode && len(name) == 2:
		n, err := strconv.ParseUint(name, 16, 8)
		if err != nil || hexDigits(byte(n)) != name {
			return raw.ENOENT
		}
		out.NodeId = firstFanOut + n
		if f.objects.Lists(h.Pid) {
			out.NodeId = firstListed + n
		}
	default:
		return raw.ENOENT
	}
	f.attributes(&out.Attr, out.NodeId)
	return raw.OK
}

// lookupInTree looks up a name in the working tree.
func (f objectDir) lookupInTree(cancel <-chan struct{}, h *raw.InHeader, name string, out *raw.EntryOut) raw.Status {
	switch {
	case f.fill == nil:
	case name == "." || name == "..": // the look-up is for a file handle (fileSystem.find)
		defer f.fill.enterAny()()
	default:
		defer f.fill.enter(worktree.Node(h.NodeId))()
	}
	return f.RawFileSystem.Lookup(cancel, h, name, out)
}

// lookupObject finds an object. The kernel must not cache the entry.
func (f objectDir) lookupObject(cancel <-chan struct{}, h *raw.InHeader, id string, out *raw.EntryOut) raw.Status {
	w := f.fs.wait(cancel, h)
	defer w.finish()
	finding, number, err := f.objects.Find(w, h.Pid, id)
	switch {
	case err != nil:
	case finding == Absent:
		return raw.ENOENT
	case finding == Existence:
		out.NodeId = linkNode + uint64(h.Pid)
		f.attributes(&out.Attr, out.NodeId)
	default:
		out.NodeId = firstFile + number
		err = f.fileAttributes(w, &out.Attr, out.NodeId)
	}
	if err != nil {
		return f.fs.fail(opRead, h, err)
	}
	out.SetAttrTimeout(forever)
	return raw.OK
}

// hexDigits returns the two hexadecimal digits of a byte.
func hexDigits(b byte) string {
	const digits = "0123456789abcdef"
	return string([]byte{digits[b>>4], digits[b&15]})
}

// Forget ignores the nodes of the directory, because they are constants.
func (f objectDir) Forget(node, lookups uint64) {
	if !isObjects(node) {
		f.RawFileSystem.Forget(node, lookups)
	}
}

func (f objectDir) GetAttr(cancel <-chan struct{}, in *raw.GetAttrIn, out *raw.AttrOut) raw.Status {
	if !isObjects(in.NodeId) {
		return f.RawFileSystem.GetAttr(cancel, in, out)
	}
	if in.NodeId < firstFile {
		f.attributes(&out.Attr, in.NodeId)
		return raw.OK
	}
	w := f.fs.wait(cancel, &in.InHeader)
	defer w.finish()
	out.SetTimeout(forever)
	return f.fs.fail(opRead, &in.InHeader, f.fileAttributes(w, &out.Attr, in.NodeId))
}

func (f objectDir) Read(cancel <-chan struct{}, in *raw.ReadIn, buf []byte) (raw.ReadResult, raw.Status) {
	if !isObjects(in.NodeId) {
		return f.RawFileSystem.Read(cancel, in, buf)
	}
	w := f.fs.wait(cancel, &in.InHeader)
	defer w.finish()
	object, err := f.objects.Open(w, in.NodeId-firstFile)
	if err != nil {
		return nil, f.fs.fail(opRead, &in.InHeader, err)
	}
	defer object.Release()
	n, err := object.ReadAt(buf, int64(in.Offset))
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return raw.ReadResultData(buf[:n]), f.fs.fail(opRead, &in.InHeader, err)
}

func (f objectDir) Readlink(cancel <-chan struct{}, h *raw.InHeader) ([]byte, raw.Status) {
	if !isObjects(h.NodeId) {
		return f.RawFileSystem.Readlink(cancel, h)
	}
	return []byte(target(h.NodeId)), raw.OK
}

func (f objectDir) ReadDir(cancel <-chan struct{}, in *raw.ReadIn, out *raw.DirEntryList) raw.Status {
	if !isObjects(in.NodeId) {
		return f.RawFileSystem.ReadDir(cancel, in, out)
	}
	f.list(in, out.AddDirEntry)
	return raw.OK
}

// ReadDirPlus lists names without attributes (node id 0), so the kernel creates no inode for a listed name.
func (f objectDir) ReadDirPlus(cancel <-chan struct{}, in *raw.ReadIn, out *raw.DirEntryList) raw.Status {
	switch {
	case !isObjects(in.NodeId) && f.fill == nil:
		return f.RawFileSystem.ReadDirPlus(cancel, in, out)
	case !isObjects(in.NodeId):
		if in.Offset == 0 {
			w := f.fs.wait(cancel, &in.InHeader)
			f.fill.noteListing(w, worktree.Node(in.NodeId))
			w.finish()
		}
		defer f.fill.enter(worktree.Node(in.NodeId))()
		return f.RawFileSystem.ReadDirPlus(cancel, in, out)
	case isFill(in.NodeId) && f.fill != nil:
		return f.fill.listPlus(in, out)
	}
	f.list(in, func(e raw.DirEntry) bool { return out.AddDirLookupEntry(e) != nil })
	return raw.OK
}

// list calls emit for the entries of a directory from in.Offset on, until emit returns false. The directories of
// objects are not listed, because git looks them up by their names.
func (f objectDir) list(in *raw.ReadIn, emit func(raw.DirEntry) bool) {
	first, ok := fanOut(in.NodeId)
	if !ok || in.NodeId < firstListed {
		return
	}
	names := f.objects.List(first)
	for i := in.Offset; i < uint64(len(names)); i++ {
		if !emit(raw.DirEntry{Name: names[i], Ino: linkNode, Mode: syscall.S_IFLNK, Off: i + 1}) {
			return
		}
	}
}
