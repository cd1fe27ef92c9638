package worktree

import (
	"io"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
)

// FrozenKind states what exists at the path of a FrozenEntry.
type FrozenKind uint8

const (
	// FrozenGone means that no file exists at the path.
	FrozenGone FrozenKind = iota
	// FrozenBlob is a file with the contents of an unchanged blob of a tree. FrozenEntry.ID is the blob. The file may have
	// another mode than in the tree.
	FrozenBlob
	// FrozenTree is a directory that, with everything below it, equals the git tree FrozenEntry.ID.
	FrozenTree
	// FrozenContent is a regular file whose contents are stored in the overlay.
	FrozenContent
	// FrozenLink is a symbolic link whose target is stored in the overlay.
	FrozenLink
	// FrozenDir is a directory that has changed. The entries after this entry describe everything in the directory.
	FrozenDir
	// FrozenSkipped is a directory for which FreezeOptions.Skip has returned true, so that its contents are not listed.
	FrozenSkipped
	// FrozenOther is a file that git does not store: a fifo, a socket, a device, or a directory that contains another git
	// repository, whose files are not listed. If it replaces a submodule of a tree, FrozenEntry.ID is the submodule's
	// commit.
	FrozenOther
	// FrozenModule is an empty directory that stands for a submodule of a tree. FrozenEntry.ID is the submodule's commit.
	FrozenModule
)

// FrozenEntry describes what exists at one path at the moment of a freeze.
type FrozenEntry struct {
	Path string // path relative to the root
	Kind FrozenKind
	ID   object.ID   // id of the object, for FrozenBlob, FrozenTree and FrozenModule
	Mode object.Mode // mode in git's format; 0 if git cannot store the file
	Size int64       // size in bytes, for FrozenContent and FrozenLink
	// Perm is the permission bits of a FrozenDir or FrozenTree, without the file type. For a FrozenGone, Perm is the
	// permission bits of the nearest directory above Path that exists.
	Perm uint32
	// Target is the target of the symbolic link if Kind is FrozenLink.
	Target string
	// Content is the contents of a FrozenContent. Content can be read until Frozen.Release is called. It is nil if the
	// file is larger than FreezeOptions.MaxPinned, or if FreezeOptions.DryRun is set.
	Content io.ReaderAt
	// The field From is the path that the object of a FrozenBlob or FrozenTree has in its tree; "" if this path equals
	// Path. The contents of a file may depend on that path, because git attributes are selected by path.
	From string
	// Tree is the root tree that contains the object of a FrozenBlob or FrozenTree. The .gitattributes files of this tree
	// apply.
	Tree object.ID
}

// FreezeOptions configure Freeze.
type FreezeOptions struct {
	// Skip reports whether a freeze leaves out the contents of a directory. dir is the directory's path relative to the
	// root. If Skip is nil, no contents are left out. Skip is called for every directory that was created in the mount,
	// and for the directories above a changed path. It must not wait, and must not call the Tree.
	Skip func(dir string) bool
	// Enter reports whether a freeze lists the contents of a directory although it contains another git repository. dir is
	// the directory's path relative to the root. If Enter is nil, no such directory is listed. The rules for Skip apply.
	Enter func(dir string) bool
	// MaxPinned is the maximum size, in bytes, of files whose contents can be read from the result; 0 means no limit.
	MaxPinned int64
	// Seal is sealed at the moment of the freeze; nil if nothing is to be sealed. If that fails, the freeze succeeds, and
	// Seal.Take returns the error.
	Seal *Seal
	// If DryRun is true, Freeze lists the paths and does nothing else: it makes no contents readable, and no request has
	// to wait for it.
	DryRun bool
}

// Frozen describes how the working tree at one moment differs from its state at an earlier journal position.
type Frozen struct {
	// Token is the journal position to pass to the next Freeze.
	Token string
	// Whole is true if the entries describe the differences from the base tree, because the journal position that was
	// passed could not be used.
	Whole bool
	// Entries are sorted by the elements of their paths, so that the entries below a directory follow it. If an entry is
	// below another entry, the upper entry is a FrozenDir. Paths without an entry have not changed. The directories above
	// an entry exist.
	Entries []FrozenEntry
	// Paused is the longest time for which a change had to wait because of the freeze.
	Paused time.Duration

	// at is the moment that the entries describe, in nanoseconds since 1970 by CLOCK_REALTIME_COARSE. It is 0 for a
	// DryRun and for a Tree without an overlay.
	at      int64
	release []func() // functions that release the contents of the entries
}

// Moment returns the moment that the entries describe, in nanoseconds since 1970, by the clock that the kernel uses for
// file times. It returns 0 for a DryRun and for a Tree without an overlay.
func (f *Frozen) Moment() int64 { return f.at }

// Release releases the contents of all entries. The contents must not be read afterwards.
func (f *Frozen) Release() {
	for _, release := range f.release {
		release()
	}
	f.release = nil
}
