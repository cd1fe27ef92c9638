package worktree

import (
	"context"
	"syscall"
)

// Cred is whose request it is: who owns what it makes.
type Cred struct{ UID, GID uint32 }

// Field is a set of attributes.
type Field uint32

const (
	SetMode Field = 1 << iota
	SetUID
	SetGID
	SetSize
	SetAtime
	SetMtime
	SetCtime // else it becomes now, as with any change
	KillPriv // set-user-ID goes, and set-group-ID where the group may execute
)

// Change says what SetAttr changes.
type Change struct {
	Set                 Field
	Mode                uint32 // permission bits
	UID, GID            uint32
	Size                int64
	Atime, Mtime, Ctime int64 // nanoseconds since 1970; NowTime: the time of the change
}

// NowTime as a time of a Change is the time of the change.
const NowTime = -1 << 63

// Mknod makes a file, fifo, socket or device; mode carries the type.
func (t *Tree) Mknod(ctx context.Context, dir Node, name string, mode, rdev uint32, c Cred) (Attr, error) {
	return Attr{}, syscall.EROFS
}

// Mkdir makes a directory.
func (t *Tree) Mkdir(ctx context.Context, dir Node, name string, mode uint32, c Cred) (Attr, error) {
	return Attr{}, syscall.EROFS
}

// Symlink makes a symbolic link.
func (t *Tree) Symlink(ctx context.Context, dir Node, name, target string, c Cred) (Attr, error) {
	return Attr{}, syscall.EROFS
}

// Link gives a node another name. The attributes may lack a size.
func (t *Tree) Link(ctx context.Context, n, dir Node, name string) (Attr, error) {
	return Attr{}, syscall.EROFS
}

// Unlink takes a name from what is no directory.
func (t *Tree) Unlink(ctx context.Context, dir Node, name string) error { return syscall.EROFS }

// Rmdir removes an empty directory.
func (t *Tree) Rmdir(ctx context.Context, dir Node, name string) error { return syscall.EROFS }

// Rename moves a name. Flags are RENAME_NOREPLACE or RENAME_EXCHANGE of renameat2(2).
func (t *Tree) Rename(ctx context.Context, dir Node, name string, newDir Node, newName string, flags uint32) error {
	return syscall.EROFS
}

// Tmpfile makes a file without a name.
func (t *Tree) Tmpfile(ctx context.Context, dir Node, mode uint32, c Cred) (Attr, error) {
	return Attr{}, syscall.EROFS
}

// SetAttr changes attributes. What it gives may lack a size.
func (t *Tree) SetAttr(ctx context.Context, n Node, c Change) (Attr, error) {
	return Attr{}, syscall.EROFS
}

// Read reads a file's contents; less than len(p) only at their end. If a size that was told before turns out
// wrong, the right one is noted and the error is ErrResized.
func (t *Tree) Read(ctx context.Context, n Node, p []byte, off int64) (int, error) {
	return 0, syscall.EROFS
}

// Write writes all of p. killPriv drops set-user-ID and set-group-ID as KillPriv does.
func (t *Tree) Write(ctx context.Context, n Node, p []byte, off int64, killPriv bool) (int, error) {
	return 0, syscall.EROFS
}

// Fallocate is fallocate(2).
func (t *Tree) Fallocate(ctx context.Context, n Node, mode uint32, off, length int64) error {
	return syscall.EROFS
}

// Seek finds data or a hole (SEEK_DATA, SEEK_HOLE); where there is none it is ENXIO.
func (t *Tree) Seek(ctx context.Context, n Node, off int64, whence int) (int64, error) {
	return 0, syscall.EROFS
}

// CopyRange copies within the tree and says how much, which may be less than asked.
func (t *Tree) CopyRange(ctx context.Context, from Node, fromOff int64, to Node, toOff, length int64) (int64, error) {
	return 0, syscall.EROFS
}

// Fsync returns when a file's contents and attributes would survive a power cut.
func (t *Tree) Fsync(ctx context.Context, n Node, dataOnly bool) error { return nil }

// FsyncDir returns when a directory's entries would survive a power cut.
func (t *Tree) FsyncDir(ctx context.Context, n Node) error { return nil }

// GetXattr gives an extended attribute; one that is not there is ENODATA.
func (t *Tree) GetXattr(n Node, name string) ([]byte, error) { return nil, syscall.ENODATA }

// ListXattr gives the names of a node's extended attributes.
func (t *Tree) ListXattr(n Node) ([]string, error) { return nil, nil }

// SetXattr sets an extended attribute. Flags are XATTR_CREATE or XATTR_REPLACE of setxattr(2).
func (t *Tree) SetXattr(ctx context.Context, n Node, name string, value []byte, flags int) error {
	return syscall.EROFS
}

// RemoveXattr removes an extended attribute; one that is not there is ENODATA.
func (t *Tree) RemoveXattr(ctx context.Context, n Node, name string) error { return syscall.EROFS }

// Told gives a node's attributes, like Attr. If its contents are those of the base, it calls tell with their size
// while nothing can change them; last gives their last byte. Whatever tell does must not come back to the Tree.
func (t *Tree) Told(ctx context.Context, n Node, tell func(size int64, last func() (byte, error)) error) (Attr, error) {
	a, err := t.Attr(ctx, n)
	if err == nil {
		err = tell(a.Size, func() (byte, error) { return 0, syscall.EROFS })
	}
	return a, err
}

// Remember notes that the kernel was told of a node once more.
func (t *Tree) Remember(n Node) {}

// Forget notes that the kernel forgot what it was told of a node k times.
func (t *Tree) Forget(n Node, k uint64) {}

// Changed is how many paths differ from the base tree.
func (t *Tree) Changed() int64 { return 0 }
