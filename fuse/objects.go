package fuse

import (
	"os"
	"strconv"
	"syscall"
	"time"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/worktree"
)

// Objects reports to git which blobs exist in the repository, although they are not on this host. It answers for a directory below
// Options.Hidden.
type Objects interface {
	// Exists reports whether the process of the thread tid is to find an object. name is the object's id in hexadecimal digits.
	Exists(tid uint32, name string) bool
	// Opened is called when the process of the thread tid has opened the object for which Exists was called last for this thread.
	Opened(tid uint32)
	// Lists reports whether the process of the thread tid is to find objects when it lists a directory.
	Lists(tid uint32) bool
	// List returns the names of the objects in the listing of the directory of ids that begin with the byte first. The names lack
	// the first two digits.
	List(first byte) []string
}

// objectDir adds a directory to the root of a mount, with a directory of loose objects (gitrepository-layout(5), objects) in it. No
// listing of the root shows it. Each object is a symbolic link without a target: a process that only checks whether the object exists calls lstat,
// which finds the link, and a process that opens the object gets ENOENT, which for git means that it has to request the object
// from the promisor remote.
//
// The answers depend on the process, so the kernel must not cache them. It does cache a listing, and returns it to other processes
// until the modification time of the directory changes (fs/fuse/readdir.c, fuse_readdir_cached). So a directory of objects is two
// nodes: one that lists objects, and one that lists none. Its modification time is different in each reply, because the tree that the
// mount shows may change.
//
// The numbers of the nodes are constants, so they need no state and survive a takeover.
type objectDir struct {
	raw.RawFileSystem
	name    string // Options.Hidden
	objects Objects
}

// Nodes of an objectDir. The tree and the overlay do not use these numbers.
const (
	hiddenNode  = 1 << 62                 // the directory in the root
	objectsNode = hiddenNode + 1          // the directory of objects in it
	firstFanOut = objectsNode + 1         // directory of the objects whose ids begin with the byte 0, with an empty listing
	firstListed = firstFanOut + 256       // the same directory with a listing
	linkNode    = firstListed + 256       // every link
	linkTarget  = "fetched-by-git"        // a name that no directory with objects contains
	sizeOfLink  = uint64(len(linkTarget)) // size of a symbolic link is the length of its target
)

// isObjects reports whether a node belongs to an objectDir.
func isObjects(node uint64) bool { return node >= hiddenNode && node <= linkNode }

// isTop reports whether the name in the directory dir is that of the directory in the root.
func (f objectDir) isTop(dir uint64, name string) bool {
	return dir == uint64(worktree.Root) && name == f.name
}

// fanOut returns the first byte of the ids of the objects in a directory; ok is false for other nodes.
func fanOut(node uint64) (first byte, ok bool) {
	return byte((node - firstFanOut) % 256), node >= firstFanOut && node < linkNode
}

// attributes sets the attributes of a node of the directory.
func (f objectDir) attributes(out *raw.Attr, node uint64) {
	now := time.Now()
	*out = raw.Attr{Ino: node, Mode: syscall.S_IFDIR | 0o555, Nlink: 2, Mtime: uint64(now.Unix()), Mtimensec: uint32(now.Nanosecond()),
		Owner: raw.Owner{Uid: uint32(os.Getuid()), Gid: uint32(os.Getgid())}}
	if node == linkNode {
		out.Mode, out.Nlink, out.Size = syscall.S_IFLNK|0o777, 1, sizeOfLink
	}
}

func (f objectDir) Lookup(cancel <-chan struct{}, h *raw.InHeader, name string, out *raw.EntryOut) raw.Status {
	first, inFanOut := fanOut(h.NodeId)
	switch {
	case f.isTop(h.NodeId, name):
		out.NodeId = hiddenNode
		out.SetEntryTimeout(forever)
	case h.NodeId == hiddenNode && name == "objects":
		out.NodeId = objectsNode
		out.SetEntryTimeout(forever)
	case !isObjects(h.NodeId):
		return f.RawFileSystem.Lookup(cancel, h, name, out)
	case inFanOut && name == linkTarget: // the process follows the link
		f.objects.Opened(h.Pid)
		return raw.ENOENT
	case inFanOut && f.objects.Exists(h.Pid, hexDigits(first)+name):
		out.NodeId = linkNode
		out.SetAttrTimeout(forever)
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
	f.attributes(&out.Attr, in.NodeId)
	return raw.OK
}

func (f objectDir) Readlink(cancel <-chan struct{}, h *raw.InHeader) ([]byte, raw.Status) {
	if !isObjects(h.NodeId) {
		return f.RawFileSystem.Readlink(cancel, h)
	}
	return []byte(linkTarget), raw.OK
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
	if !isObjects(in.NodeId) {
		return f.RawFileSystem.ReadDirPlus(cancel, in, out)
	}
	f.list(in, func(e raw.DirEntry) bool { return out.AddDirLookupEntry(e) != nil })
	return raw.OK
}

// list calls emit for the entries of a directory from in.Offset on, until emit returns false. The directories of objects are not
// listed, because git looks them up by their names.
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
