package worktree

import (
	"context"
	"syscall"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// Graft makes the paths in list show blobs of the given tree, without fetching the blobs. It waits until the trees of
// the directories that contain the paths are fetched. token is the journal position for GraftResult.Since. A path in
// list must not be below a file, unless the same call removes the file. If a path becomes a file, the same call must
// remove everything below it. A directory that becomes empty because paths are removed is also removed. If Graft
// returns an error, it may have changed some of the paths.
func (t *Tree) Graft(ctx context.Context, tree object.ID, list []Graft, token string) (r GraftResult, err error) {
	if !t.gate.enter() {
		return r, ErrClosed
	}
	defer t.gate.exit()
	return graft(ctx, &t.editor, tree, list, token)
}

// SetAttr changes attributes of a node, and returns all attributes after the change. The size in the result is negative
// if the size is not known and c does not set it.
func (t *Tree) SetAttr(ctx context.Context, n Node, c Change) (Attr, error) {
	if !t.gate.enter() {
		return Attr{}, ErrClosed
	}
	defer t.gate.exit()
	return t.contents.setAttr(ctx, n, c)
}

// Write writes all of p at the offset off. If Write returns an error, it also returns the number of bytes that were
// written. If killPriv is true, Write clears the set-user-ID and set-group-ID bits like the flag KillPriv of a Change.
// Write does not change times, because the kernel may write data back at any time, and sets the times with SetAttr.
func (t *Tree) Write(ctx context.Context, n Node, p []byte, off int64, killPriv bool) (int, error) {
	if !t.gate.enter() {
		return 0, ErrClosed
	}
	defer t.gate.exit()
	return t.contents.write(ctx, n, p, off, killPriv)
}

// Fallocate allocates or removes space of a file, as fallocate(2) does. Like Write, it does not change times. The
// kernel calls SetAttr before, to clear the set-user-ID bit.
func (t *Tree) Fallocate(ctx context.Context, n Node, mode uint32, off, length int64) error {
	if !t.gate.enter() {
		return ErrClosed
	}
	defer t.gate.exit()
	return t.contents.fallocate(ctx, n, mode, off, length)
}

// CopyRange copies bytes between two files of the tree, or within one file, and returns the number of bytes that it has
// copied. The number may be less than length. It is 0 at the end of the source. Like Fallocate, CopyRange does not
// change the times or the set-user-ID bit.
func (t *Tree) CopyRange(ctx context.Context, from Node, fromOff int64, to Node, toOff, length int64) (int64, error) {
	if !t.gate.enter() {
		return 0, ErrClosed
	}
	defer t.gate.exit()
	return t.contents.copyRange(ctx, from, fromOff, to, toOff, length)
}

// Fsync returns when the contents, attributes and names of a file are on disk. Contents, attributes and names are
// always synced together, so a request to sync the data alone (fdatasync) has the same effect.
func (t *Tree) Fsync(_ context.Context, n Node, _ bool) error {
	if !t.gate.enter() {
		return ErrClosed
	}
	defer t.gate.exit()
	return t.contents.sync(n)
}

// FsyncDir returns when the entries of a directory are on disk.
func (t *Tree) FsyncDir(_ context.Context, _ Node) error {
	if !t.gate.enter() {
		return ErrClosed
	}
	defer t.gate.exit()
	if t.view.layer == nil {
		return nil
	}
	return t.view.layer.Sync()
}

// Mknod creates a regular file, fifo, socket or device. mode includes the file type; without a type, a regular file is
// created.
func (t *Tree) Mknod(ctx context.Context, dir Node, name string, mode, rdev uint32, c Cred) (Attr, error) {
	switch mode & syscall.S_IFMT {
	case 0:
		mode |= syscall.S_IFREG
	case syscall.S_IFREG, syscall.S_IFIFO, syscall.S_IFSOCK, syscall.S_IFCHR, syscall.S_IFBLK:
	case syscall.S_IFDIR:
		return Attr{}, syscall.EPERM
	default:
		return Attr{}, syscall.EINVAL
	}
	return t.create(ctx, dir, name, overlay.Inode{Mode: mode, Rdev: rdev, Nlink: 1, UID: c.UID, GID: c.GID}, "", c.Umask)
}

// Mkdir creates a directory.
func (t *Tree) Mkdir(ctx context.Context, dir Node, name string, mode uint32, c Cred) (Attr, error) {
	mode = syscall.S_IFDIR | mode&0o7777
	return t.create(ctx, dir, name, overlay.Inode{Mode: mode, Nlink: 2, UID: c.UID, GID: c.GID}, "", c.Umask)
}

// Symlink creates a symbolic link. It returns ENAMETOOLONG for a target longer than maxTarget bytes.
func (t *Tree) Symlink(ctx context.Context, dir Node, name, target string, c Cred) (Attr, error) {
	switch {
	case target == "":
		return Attr{}, ErrNotExist
	case len(target) > maxTarget:
		return Attr{}, syscall.ENAMETOOLONG
	}
	in := overlay.Inode{Mode: syscall.S_IFLNK | 0o777, Nlink: 1, UID: c.UID, GID: c.GID, Size: int64(len(target))}
	return t.create(ctx, dir, name, in, target, 0)
}

// Tmpfile creates a file without a name. Link can give the file a name.
func (t *Tree) Tmpfile(ctx context.Context, dir Node, mode uint32, c Cred) (Attr, error) {
	return t.create(ctx, dir, "", overlay.Inode{Mode: syscall.S_IFREG | mode&0o7777, UID: c.UID, GID: c.GID}, "", c.Umask)
}

// create creates a node with the attributes in the parameter in. Unless in.Nlink is 0, create waits until the tree of
// the directory dir is fetched, and gives the node a name in this directory.
func (t *Tree) create(ctx context.Context, dir Node, name string, in overlay.Inode, target string,
	umask uint32) (Attr, error) {
	if !t.gate.enter() {
		return Attr{}, ErrClosed
	}
	defer t.gate.exit()
	return t.editor.create(ctx, dir, name, in, target, umask)
}

// Link gives a node, which must not be a directory, another name in the directory dir. The size in the result is
// negative if the size is not known.
func (t *Tree) Link(ctx context.Context, n, dir Node, name string) (Attr, error) {
	if !t.gate.enter() {
		return Attr{}, ErrClosed
	}
	defer t.gate.exit()
	return t.editor.link(ctx, n, dir, name)
}

// Unlink removes a name of a node that is not a directory.
func (t *Tree) Unlink(ctx context.Context, dir Node, name string) error {
	if !t.gate.enter() {
		return ErrClosed
	}
	defer t.gate.exit()
	return t.editor.unlink(ctx, dir, name)
}

// Rmdir removes an empty directory. It waits until the directory's tree is fetched, which shows whether the directory
// is empty.
func (t *Tree) Rmdir(ctx context.Context, dir Node, name string) error {
	if !t.gate.enter() {
		return ErrClosed
	}
	defer t.gate.exit()
	return t.editor.rmdir(ctx, dir, name)
}

// Rename moves a name. flags is 0, RENAME_NOREPLACE or RENAME_EXCHANGE of renameat2(2). If flags is 0, an existing
// entry with the new name is replaced. The node of the file stays the same. If a directory is renamed, the files below
// the directory move with it, and Rename does not access them.
func (t *Tree) Rename(ctx context.Context, dir Node, name string, newDir Node, newName string, flags uint32) error {
	if !t.gate.enter() {
		return ErrClosed
	}
	defer t.gate.exit()
	return t.editor.rename(ctx, dir, name, newDir, newName, flags)
}

// Freeze returns the differences since the journal position token. If token is "" or not valid, it returns the
// differences from the base tree. All differences describe the same moment. The result contains every change that was
// acknowledged before the call. If the result contains a change that was made later, it also contains all changes
// before that change. Until Release is called, the contents can be read as they were at that moment, while programs
// continue to change the files. Changes have to wait only at the moment itself. The result does not contain writes that
// are still in the kernel's cache, so the caller first writes them back with fuse.Server.WriteBack.
func (t *Tree) Freeze(ctx context.Context, token string, o FreezeOptions) (*Frozen, error) {
	if !t.gate.enter() {
		return nil, ErrClosed
	}
	defer t.gate.exit()
	return freeze(ctx, &t.changes, token, o)
}
