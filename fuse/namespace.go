package fuse

import (
	"syscall"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/worktree"
)

// Lookup returns the entry of a name. It may wait until the directory's entries are fetched, but not for the size of
// the file (see the type sizes).
func (f *writable) Lookup(cancel <-chan struct{}, h *raw.InHeader, name string, out *raw.EntryOut) raw.Status {
	w := f.wait(cancel, h)
	defer w.finish()
	keep, err := f.git.pass(w, worktree.Node(h.NodeId), name)
	if err != nil {
		return f.fail(opLookup, h, err)
	}
	mounting, err := f.redirects.wait(w, worktree.Node(h.NodeId), name)
	if err != nil {
		return f.fail(opLookup, h, err)
	}
	a, err := f.find(w, h, name)
	if err != nil {
		return f.absent(h, err, out, keep)
	}
	f.fillEntry(out, a)
	if mounting || !keep {
		out.SetEntryTimeout(0)
	}
	return raw.OK
}

// ReadDirPlus lists names with the attributes that are known. A directory that is being redirected is listed without
// attributes: with attributes, the kernel would cache this directory, although another directory is about to be mounted
// over it.
func (f *writable) ReadDirPlus(cancel <-chan struct{}, in *raw.ReadIn, out *raw.DirEntryList) raw.Status {
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	return f.listPlus(w, in, out, func(entry *raw.EntryOut, a worktree.Attr) {
		if f.redirects.busy(a.Node) {
			return // node id 0: the entry has no attributes
		}
		f.fillEntry(entry, a)
	})
}

// Create answers the first creation with ENOSYS. From then on the kernel creates files with MKNOD and opens them
// without a request (fs/fuse/dir.c, fuse_atomic_open). In that open the kernel still knows that the file is new, so a
// program may write to the file that it has created even if the file's mode forbids it.
func (f *writable) Create(<-chan struct{}, *raw.CreateIn, string, *raw.CreateOut) raw.Status {
	return raw.ENOSYS
}

// Mknod creates a regular file, a device, a socket or a FIFO.
func (f *writable) Mknod(cancel <-chan struct{}, in *raw.MknodIn, name string, out *raw.EntryOut) raw.Status {
	return f.make(opMknod, cancel, &in.InHeader, in.Umask, name, out,
		func(w *waiter, c worktree.Cred) (worktree.Attr, error) {
			return f.tree.Mknod(w, worktree.Node(in.NodeId), name, in.Mode, in.Rdev, c)
		})
}

// Mkdir creates a directory. If the directory is to be redirected, Mkdir also starts to mount another directory over
// the new one.
func (f *writable) Mkdir(cancel <-chan struct{}, in *raw.MkdirIn, name string, out *raw.EntryOut) raw.Status {
	mkdir := func(w *waiter, c worktree.Cred) (worktree.Attr, error) {
		return f.tree.Mkdir(w, worktree.Node(in.NodeId), name, in.Mode, c)
	}
	if bind, path, ok := f.redirects.bindFor(f.tree, worktree.Node(in.NodeId), name); ok {
		return f.mkdirRedirected(cancel, in, name, out, mkdir, bind, path)
	}
	return f.make(opMkdir, cancel, &in.InHeader, in.Umask, name, out, mkdir)
}

// Symlink creates a symbolic link.
func (f *writable) Symlink(cancel <-chan struct{}, h *raw.InHeader, target, name string, out *raw.EntryOut) raw.Status {
	return f.make(opSymlink, cancel, h, 0, name, out, func(w *waiter, c worktree.Cred) (worktree.Attr, error) {
		return f.tree.Symlink(w, worktree.Node(h.NodeId), name, target, c)
	})
}

// Link creates another name for a file.
func (f *writable) Link(cancel <-chan struct{}, in *raw.LinkIn, name string, out *raw.EntryOut) raw.Status {
	return f.make(opLink, cancel, &in.InHeader, 0, name, out, func(w *waiter, _ worktree.Cred) (worktree.Attr, error) {
		return f.tree.Link(w, worktree.Node(in.Oldnodeid), worktree.Node(in.NodeId), name)
	})
}

// make answers a request that creates an entry. The function do creates the entry, and make fills in the reply.
func (f *writable) make(op op, cancel <-chan struct{}, h *raw.InHeader, umask uint32, name string, out *raw.EntryOut,
	do func(*waiter, worktree.Cred) (worktree.Attr, error)) raw.Status {
	if len(name) > object.MaxNameLen {
		return raw.Status(syscall.ENAMETOOLONG)
	}
	w := f.wait(cancel, h)
	defer w.finish()
	a, err := do(w, cred(h, umask))
	if err != nil {
		return f.fail(op, h, err)
	}
	f.fillEntry(out, a)
	return raw.OK
}

// cred returns the owner and the umask for a new entry. The umask matters only with access control lists; without
// access control lists the kernel has already applied the umask to the mode.
func cred(h *raw.InHeader, umask uint32) worktree.Cred {
	return worktree.Cred{UID: h.Uid, GID: h.Gid, Umask: umask}
}

// Tmpfile creates and opens a file without a name (O_TMPFILE). This is the only open for which the kernel sends a
// request, so the reply must contain the flags that the kernel assumes for all other opens (fs/fuse/file.c,
// fuse_file_open).
func (f *writable) Tmpfile(cancel <-chan struct{}, in *raw.CreateIn, out *raw.CreateOut) raw.Status {
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	a, err := f.tree.Tmpfile(w, worktree.Node(in.NodeId), in.Mode, cred(&in.InHeader, in.Umask))
	if err != nil {
		return f.fail(opTmpfile, &in.InHeader, err)
	}
	f.fillEntry(&out.EntryOut, a)
	out.OpenFlags = raw.FOPEN_KEEP_CACHE
	return raw.OK
}

// Release does nothing, because there is no state for open files; a file without a name lives until the kernel forgets
// it.
func (f *writable) Release(<-chan struct{}, *raw.ReleaseIn) {}

// Unlink removes an entry that is not a directory.
func (f *writable) Unlink(cancel <-chan struct{}, h *raw.InHeader, name string) raw.Status {
	w := f.wait(cancel, h)
	defer w.finish()
	return f.fail(opUnlink, h, f.tree.Unlink(w, worktree.Node(h.NodeId), name))
}

// Rmdir removes an empty directory.
func (f *writable) Rmdir(cancel <-chan struct{}, h *raw.InHeader, name string) raw.Status {
	w := f.wait(cancel, h)
	defer w.finish()
	return f.fail(opRmdir, h, f.tree.Rmdir(w, worktree.Node(h.NodeId), name))
}

// Rename moves an entry. in.Flags are the flags of renameat2(2).
func (f *writable) Rename(cancel <-chan struct{}, in *raw.RenameIn, name, newName string) raw.Status {
	if len(newName) > object.MaxNameLen {
		return raw.Status(syscall.ENAMETOOLONG)
	}
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	err := f.tree.Rename(w, worktree.Node(in.NodeId), name, worktree.Node(in.Newdir), newName, in.Flags)
	return f.fail(opRename, &in.InHeader, err)
}
