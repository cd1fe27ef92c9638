package fuse

import (
	"syscall"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/worktree"
)

// Lookup waits only for the tree of the directory (see sizes).
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

// ReadDirPlus leaves out the attributes of directories that are being redirected: with them the
// kernel would cache the directory below the mount.
func (f *writable) ReadDirPlus(cancel <-chan struct{}, in *raw.ReadIn, out *raw.DirEntryList) raw.Status {
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	return f.listPlus(w, in, out, func(entry *raw.EntryOut, a worktree.Attr) {
		if f.redirects.busy(a.Node) {
			return // a name without attributes
		}
		f.fillEntry(entry, a)
	})
}

// Create is sent once. After ENOSYS the kernel creates files with MKNOD and opens them without a
// request (fs/fuse/dir.c, fuse_atomic_open). It still knows that the file is new, so its creator
// may write to it whatever its mode is.
func (f *writable) Create(<-chan struct{}, *raw.CreateIn, string, *raw.CreateOut) raw.Status {
	return raw.ENOSYS
}

func (f *writable) Mknod(cancel <-chan struct{}, in *raw.MknodIn, name string, out *raw.EntryOut) raw.Status {
	return f.make(opMknod, cancel, &in.InHeader, in.Umask, name, out, func(w *waiter, c worktree.Cred) (worktree.Attr, error) {
		return f.tree.Mknod(w, worktree.Node(in.NodeId), name, in.Mode, in.Rdev, c)
	})
}

// Mkdir creates a directory. If it is to be redirected, mounting another one over it starts too.
func (f *writable) Mkdir(cancel <-chan struct{}, in *raw.MkdirIn, name string, out *raw.EntryOut) raw.Status {
	mkdir := func(w *waiter, c worktree.Cred) (worktree.Attr, error) {
		return f.tree.Mkdir(w, worktree.Node(in.NodeId), name, in.Mode, c)
	}
	if bind, path, ok := f.redirects.bindFor(f.tree, worktree.Node(in.NodeId), name); ok {
		return f.mkdirRedirected(cancel, in, name, out, mkdir, bind, path)
	}
	return f.make(opMkdir, cancel, &in.InHeader, in.Umask, name, out, mkdir)
}

func (f *writable) Symlink(cancel <-chan struct{}, h *raw.InHeader, target, name string, out *raw.EntryOut) raw.Status {
	return f.make(opSymlink, cancel, h, 0, name, out, func(w *waiter, c worktree.Cred) (worktree.Attr, error) {
		return f.tree.Symlink(w, worktree.Node(h.NodeId), name, target, c)
	})
}

func (f *writable) Link(cancel <-chan struct{}, in *raw.LinkIn, name string, out *raw.EntryOut) raw.Status {
	return f.make(opLink, cancel, &in.InHeader, 0, name, out, func(w *waiter, _ worktree.Cred) (worktree.Attr, error) {
		return f.tree.Link(w, worktree.Node(in.Oldnodeid), worktree.Node(in.NodeId), name)
	})
}

// make answers requests that create an entry.
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

// cred returns the credentials of a request that creates an entry. Without access control lists the
// kernel has applied the umask already.
func cred(h *raw.InHeader, umask uint32) worktree.Cred {
	return worktree.Cred{UID: h.Uid, GID: h.Gid, Umask: umask}
}

// Tmpfile creates and opens a file without a name. This is the only open for which the kernel sends
// a request; the reply has the flags that it uses for opens without one (fs/fuse/file.c,
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

// Release does nothing: files live until the kernel forgets them.
func (f *writable) Release(<-chan struct{}, *raw.ReleaseIn) {}

func (f *writable) Unlink(cancel <-chan struct{}, h *raw.InHeader, name string) raw.Status {
	w := f.wait(cancel, h)
	defer w.finish()
	return f.fail(opUnlink, h, f.tree.Unlink(w, worktree.Node(h.NodeId), name))
}

func (f *writable) Rmdir(cancel <-chan struct{}, h *raw.InHeader, name string) raw.Status {
	w := f.wait(cancel, h)
	defer w.finish()
	return f.fail(opRmdir, h, f.tree.Rmdir(w, worktree.Node(h.NodeId), name))
}

// Rename moves an entry, in the manner that renameat2(2) names in Flags.
func (f *writable) Rename(cancel <-chan struct{}, in *raw.RenameIn, name, newName string) raw.Status {
	if len(newName) > object.MaxNameLen {
		return raw.Status(syscall.ENAMETOOLONG)
	}
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	err := f.tree.Rename(w, worktree.Node(in.NodeId), name, worktree.Node(in.Newdir), newName, in.Flags)
	return f.fail(opRename, &in.InHeader, err)
}
