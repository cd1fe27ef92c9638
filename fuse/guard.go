package fuse

import (
	"path"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/fuse/caller"
	"github.com/artifactfs/artifactfs/worktree"
)

// Guard decides which paths programs must not change (Options.Guard). A request for such a change is answered with
// EACCES. Paths are relative to the root of the mount.
type Guard interface {
	// Active reports whether any path may be locked. It is called for every request, so it must be fast. If it returns
	// false, the other methods are not called.
	Active() bool
	// Locked reports whether programs must not change a path.
	Locked(path string) bool
	// Refuses is called when a program tries to change a path. It reports whether the program gets EACCES. below is set if
	// the path is moved together with everything below it.
	Refuses(path string, below bool) bool
}

// guarded is the file system of a writable mount with a Guard.
//
// The kernel sends no request when a program opens a file. So a locked file is shown without permission to write, and
// its attributes are not cached. The kernel then requests the attributes in every open(2) (fs/fuse/dir.c,
// fuse_permission), and refuses the open because of the permissions. Root may ignore the permissions; but if the
// GETATTR fails, the system call fails with the same error. So GetAttr determines from the system call whether the
// thread opens the file for writing (package caller). If the system call cannot be read, the WRITE is refused.
type guarded struct {
	raw.RawFileSystem
	f *writable
}

// refusal returns EACCES if a program must not change the entry with this name in a directory, and OK otherwise.
func (g guarded) refusal(dir uint64, name string, below bool) raw.Status {
	if !g.f.guard.Active() {
		return raw.OK
	}
	parent, err := g.f.tree.Path(worktree.Node(dir))
	if err == nil && g.f.guard.Refuses(path.Join(parent, name), below) {
		return raw.EACCES
	}
	return raw.OK
}

// refusalOf returns EACCES if a program must not change a node, and OK otherwise. A file without a name can be changed.
func (g guarded) refusalOf(node uint64) raw.Status {
	if !g.f.guard.Active() || node == uint64(worktree.Root) {
		return raw.OK
	}
	at, err := g.f.tree.Path(worktree.Node(node))
	if err == nil && g.f.guard.Refuses(at, false) {
		return raw.EACCES
	}
	return raw.OK
}

// The methods below return EACCES for changes of locked paths, and pass all other requests to the embedded file system.

func (g guarded) SetAttr(cancel <-chan struct{}, in *raw.SetAttrIn, out *raw.AttrOut) raw.Status {
	if status := g.refusalOf(in.NodeId); status != raw.OK {
		return status
	}
	return g.RawFileSystem.SetAttr(cancel, in, out)
}

func (g guarded) Mknod(cancel <-chan struct{}, in *raw.MknodIn, name string, out *raw.EntryOut) raw.Status {
	if status := g.refusal(in.NodeId, name, false); status != raw.OK {
		return status
	}
	return g.RawFileSystem.Mknod(cancel, in, name, out)
}

func (g guarded) Mkdir(cancel <-chan struct{}, in *raw.MkdirIn, name string, out *raw.EntryOut) raw.Status {
	if status := g.refusal(in.NodeId, name, false); status != raw.OK {
		return status
	}
	return g.RawFileSystem.Mkdir(cancel, in, name, out)
}

func (g guarded) Symlink(cancel <-chan struct{}, h *raw.InHeader, target, name string, out *raw.EntryOut) raw.Status {
	if status := g.refusal(h.NodeId, name, false); status != raw.OK {
		return status
	}
	return g.RawFileSystem.Symlink(cancel, h, target, name, out)
}

func (g guarded) Link(cancel <-chan struct{}, in *raw.LinkIn, name string, out *raw.EntryOut) raw.Status {
	status := g.refusalOf(in.Oldnodeid) // after the Link, a program could change the locked file by its new name
	if status == raw.OK {
		status = g.refusal(in.NodeId, name, false)
	}
	if status != raw.OK {
		return status
	}
	return g.RawFileSystem.Link(cancel, in, name, out)
}

func (g guarded) Unlink(cancel <-chan struct{}, h *raw.InHeader, name string) raw.Status {
	if status := g.refusal(h.NodeId, name, false); status != raw.OK {
		return status
	}
	return g.RawFileSystem.Unlink(cancel, h, name)
}

func (g guarded) Rmdir(cancel <-chan struct{}, h *raw.InHeader, name string) raw.Status {
	if status := g.refusal(h.NodeId, name, false); status != raw.OK {
		return status
	}
	return g.RawFileSystem.Rmdir(cancel, h, name)
}

func (g guarded) Rename(cancel <-chan struct{}, in *raw.RenameIn, name, newName string) raw.Status {
	status := g.refusal(in.NodeId, name, true)
	if status == raw.OK {
		status = g.refusal(in.Newdir, newName, true)
	}
	if status != raw.OK {
		return status
	}
	return g.RawFileSystem.Rename(cancel, in, name, newName)
}

func (g guarded) Fallocate(cancel <-chan struct{}, in *raw.FallocateIn) raw.Status {
	if status := g.refusalOf(in.NodeId); status != raw.OK {
		return status
	}
	return g.RawFileSystem.Fallocate(cancel, in)
}

func (g guarded) CopyFileRange(cancel <-chan struct{}, in *raw.CopyFileRangeIn) (uint32, raw.Status) {
	if status := g.refusalOf(in.NodeIdOut); status != raw.OK {
		return 0, status
	}
	return g.RawFileSystem.CopyFileRange(cancel, in)
}

func (g guarded) SetXAttr(cancel <-chan struct{}, in *raw.SetXAttrIn, name string, value []byte) raw.Status {
	if status := g.refusalOf(in.NodeId); status != raw.OK {
		return status
	}
	return g.RawFileSystem.SetXAttr(cancel, in, name, value)
}

func (g guarded) RemoveXAttr(cancel <-chan struct{}, h *raw.InHeader, name string) raw.Status {
	if status := g.refusalOf(h.NodeId); status != raw.OK {
		return status
	}
	return g.RawFileSystem.RemoveXAttr(cancel, h, name)
}

// GetAttr fails if a thread requests the attributes of a locked file because it opens the file for writing or writes to
// it.
func (g guarded) GetAttr(cancel <-chan struct{}, in *raw.GetAttrIn, out *raw.AttrOut) raw.Status {
	n := worktree.Node(in.NodeId)
	if g.f.guard.Active() && g.f.locked(n) {
		if a, _ := g.f.tree.KnownAttr(n); isFile(a.Mode) && caller.Changes(in.Pid) {
			if status := g.refusalOf(in.NodeId); status != raw.OK {
				return status
			}
		}
	}
	return g.RawFileSystem.GetAttr(cancel, in, out)
}

// Write refuses writes to a locked file and makes the kernel drop the pages. It is needed only for a write(2) that
// GetAttr could not refuse, and for a mapped file.
func (g guarded) Write(cancel <-chan struct{}, in *raw.WriteIn, data []byte) (uint32, raw.Status) {
	n := worktree.Node(in.NodeId)
	if status := g.refusalOf(in.NodeId); status != raw.OK {
		// The notice waits until the kernel has written back the pages, so it is sent in the background, after the
		// reply.
		g.f.notices.Go(func() {
			g.f.device.notifyKernel(func() raw.Status { return g.f.server.InodeNotify(uint64(n), 0, 0) })
		})
		return 0, status
	}
	return g.RawFileSystem.Write(cancel, in, data)
}

// locked reports whether programs must not change a node.
func (f *writable) locked(n worktree.Node) bool {
	if f.guard == nil || !f.guard.Active() {
		return false
	}
	at, err := f.tree.Path(n)
	return err == nil && f.guard.Locked(at)
}

// writeBits are the write permissions, which are removed from the mode of a locked file.
const writeBits = 0o222
