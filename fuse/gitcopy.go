package fuse

import (
	"errors"
	"hash/fnv"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"

	raw "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// configName is the name of the file that gitCopy changes.
const configName = "config"

// gitCopy shows the present contents of a git directory as files that cannot be changed. It follows no symbolic link.
//
// The number of a node is a hash of its path, so a successor recognizes a node as soon as the kernel looks up its name.
// A file keeps its number when git replaces it, because a file system that is stacked on this one does not look up a
// name again. If a look-up or a request for attributes finds that the file was replaced, gitCopy makes the kernel drop
// the cached contents.
type gitCopy struct {
	fs  *fileSystem
	dir GitDir
	// inherited is set if a predecessor has served the mount, so that the kernel may have cached contents of a node
	// before its first look-up in this process.
	inherited bool

	mu    sync.Mutex
	nodes map[uint64]*copiedNode // nodes that the kernel knows, except the directory itself; protected by mu
}

// copiedNode is a file or directory in the git directory. The fields are protected by gitCopy.mu.
type copiedNode struct {
	path    string // relative to the git directory
	lookups uint64
	shown   identity // identity of the file whose attributes the kernel has received last
	file    *os.File // the file with that identity, opened by the first READ; nil if it is not open
}

// identity changes when a file is replaced or written.
type identity struct {
	ino          uint64
	size         int64
	mtime, ctime unix.Timespec
}

// errHidden means that gitCopy does not show a file.
var errHidden = os.ErrNotExist

// open opens a file of the git directory. The flags are those of open(2).
func (c *gitCopy) open(name string, flags uint64) (*os.File, error) {
	root, err := unix.Open(c.dir.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: c.dir.Path, Err: err}
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, path.Join(".", name), &unix.OpenHow{
		Flags: flags | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// stat returns the attributes of a file. The error is errHidden for files that are neither regular files, directories
// nor symbolic links.
func (c *gitCopy) stat(name string) (st unix.Stat_t, err error) {
	if top, _, _ := strings.Cut(name, "/"); c.dir.Hides(top) {
		return st, errHidden
	}
	f, err := c.open(name, unix.O_PATH)
	if err != nil {
		return st, err
	}
	defer f.Close()
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return st, err
	}
	switch st.Mode & syscall.S_IFMT {
	case syscall.S_IFREG, syscall.S_IFDIR, syscall.S_IFLNK:
	default:
		return st, errHidden
	}
	if name == configName {
		text, err := c.config()
		if err != nil {
			return st, err
		}
		st.Size = int64(len(text))
	}
	return st, nil
}

// config returns the contents of the file config, as GitDir.Copied changes them.
func (c *gitCopy) config() ([]byte, error) {
	f, err := c.open(configName, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := disk.ReadLimited(f, disk.SmallFile)
	if err != nil {
		return nil, err
	}
	return c.dir.Copied(text)
}

// numberOf returns the number of the node with this path.
func numberOf(name string) uint64 {
	if name == "" {
		return firstGit
	}
	h := fnv.New64a()
	io.WriteString(h, name)
	return firstCopied + h.Sum64()>>3
}

// pathOf returns the path of a node. ok is false if only a predecessor has told the kernel about the node, so that this
// process does not know its path.
func (c *gitCopy) pathOf(node uint64) (name string, ok bool) {
	if node == firstGit {
		return "", true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := c.nodes[node]
	if !ok {
		return "", false
	}
	return n.path, true
}

// attributes fills out with the attributes of a file. The directory itself gets the permissions of a private directory,
// because the parent of the git directory is private.
func (c *gitCopy) attributes(out *raw.Attr, node uint64, st unix.Stat_t) {
	*out = raw.Attr{
		Ino: node, Size: uint64(st.Size), Blocks: uint64(st.Blocks), Mode: st.Mode, Nlink: 1,
		Owner: raw.Owner{Uid: st.Uid, Gid: st.Gid},
		Mtime: uint64(st.Mtim.Sec), Mtimensec: uint32(st.Mtim.Nsec), Ctime: uint64(st.Ctim.Sec),
		Ctimensec: uint32(st.Ctim.Nsec),
		Atime:     uint64(st.Mtim.Sec), Atimensec: uint32(st.Mtim.Nsec),
	}
	if node == firstGit {
		out.Mode = syscall.S_IFDIR | 0o700
	}
}

// top answers the look-up of the directory itself.
func (c *gitCopy) top(out *raw.EntryOut) raw.Status {
	st, err := c.stat("")
	if err != nil {
		return c.status(err)
	}
	out.NodeId = firstGit
	c.attributes(&out.Attr, firstGit, st)
	return raw.OK
}

// status converts an error to a status. Errors that show no fault are not logged.
func (c *gitCopy) status(err error) raw.Status {
	// git may remove or replace files and directories at any time
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return raw.ENOENT
	}
	status, expected := statusOf(err)
	if !expected {
		c.fs.fail(opRead, &raw.InHeader{NodeId: firstGit}, err)
	}
	return status
}

func (c *gitCopy) lookup(dir uint64, name string, out *raw.EntryOut) raw.Status {
	in, ok := c.pathOf(dir)
	if !ok || name == "." || name == ".." {
		return raw.Status(syscall.ESTALE)
	}
	name = path.Join(in, name)
	st, err := c.stat(name)
	if err != nil {
		return c.status(err)
	}
	node := numberOf(name)
	c.mu.Lock()
	n, ok := c.nodes[node]
	if !ok {
		n = &copiedNode{path: name}
		if !c.inherited {
			n.shown = identityOf(st)
		}
		c.nodes[node] = n
	}
	same := n.path == name
	if same {
		n.lookups++
	}
	c.mu.Unlock()
	if !same { // another path has the same number
		return raw.ENOENT
	}
	c.show(node, st)
	out.NodeId = node
	c.attributes(&out.Attr, node, st)
	return raw.OK
}

func identityOf(st unix.Stat_t) identity { return identity{st.Ino, st.Size, st.Mtim, st.Ctim} }

// show makes the kernel drop the cached contents of a node if st is not of the file whose attributes the kernel has
// received before.
func (c *gitCopy) show(node uint64, st unix.Stat_t) {
	c.mu.Lock()
	n, ok := c.nodes[node]
	changed := ok && n.shown != identityOf(st)
	if changed {
		n.shown = identityOf(st)
		if n.file != nil {
			n.file.Close()
			n.file = nil
		}
	}
	c.mu.Unlock()
	if changed {
		c.fs.device.notifyKernel(func() raw.Status { return c.fs.server.InodeNotify(node, 0, 0) })
	}
}

func (c *gitCopy) getAttr(node uint64, out *raw.AttrOut) raw.Status {
	name, ok := c.pathOf(node)
	if !ok {
		return raw.Status(syscall.ESTALE)
	}
	st, err := c.stat(name)
	if errors.Is(err, os.ErrNotExist) { // git has removed the file
		return raw.Status(syscall.ESTALE)
	}
	if err != nil {
		return c.status(err)
	}
	c.show(node, st)
	c.attributes(&out.Attr, node, st)
	return raw.OK
}

func (c *gitCopy) readlink(node uint64) ([]byte, raw.Status) {
	name, ok := c.pathOf(node)
	if !ok {
		return nil, raw.Status(syscall.ESTALE)
	}
	f, err := c.open(name, unix.O_PATH)
	if err != nil {
		return nil, c.status(err)
	}
	defer f.Close()
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(f.Fd()), "", buf)
	return buf[:max(n, 0)], c.status(err)
}

func (c *gitCopy) read(in *raw.ReadIn, buf []byte) (raw.ReadResult, raw.Status) {
	name, ok := c.pathOf(in.NodeId)
	if !ok {
		return nil, raw.Status(syscall.ESTALE)
	}
	if name == configName {
		text, err := c.config()
		if err != nil {
			return nil, c.status(err)
		}
		text = text[min(in.Offset, uint64(len(text))):]
		return raw.ReadResultData(buf[:copy(buf, text)]), raw.OK
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := c.nodes[in.NodeId]
	if !ok {
		return nil, raw.Status(syscall.ESTALE)
	}
	if n.file == nil {
		f, err := c.open(name, unix.O_RDONLY|unix.O_NONBLOCK)
		if err != nil {
			return nil, c.status(err)
		}
		n.file = f
	}
	k, err := n.file.ReadAt(buf, int64(in.Offset))
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return raw.ReadResultData(buf[:k]), c.status(err)
}

// list calls emit for the entries of a directory from in.Offset on, until emit returns false.
func (c *gitCopy) list(in *raw.ReadIn, emit func(raw.DirEntry) bool) raw.Status {
	name, ok := c.pathOf(in.NodeId)
	if !ok {
		return raw.Status(syscall.ESTALE)
	}
	f, err := c.open(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return c.status(err)
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return c.status(err)
	}
	slices.Sort(names)
	for i := in.Offset; i < uint64(len(names)); i++ {
		at := path.Join(name, names[i])
		if st, err := c.stat(at); err == nil &&
			!emit(raw.DirEntry{Name: names[i], Ino: numberOf(at), Mode: st.Mode, Off: i + 1}) {
			break
		}
	}
	return raw.OK
}

func (c *gitCopy) forget(node, lookups uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := c.nodes[node]
	if !ok {
		return
	}
	if n.lookups -= min(lookups, n.lookups); n.lookups == 0 {
		if n.file != nil {
			n.file.Close()
		}
		delete(c.nodes, node)
	}
}

// close closes all open files.
func (c *gitCopy) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		if n.file != nil {
			n.file.Close()
			n.file = nil
		}
	}
}
