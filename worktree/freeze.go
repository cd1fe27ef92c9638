package worktree

import (
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/object"
)

// FrozenKind is the kind of a FrozenEntry: the kind of file at its path.
type FrozenKind uint8

const (
	// FrozenGone is the kind of a path at which no file exists.
	FrozenGone FrozenKind = iota
	// FrozenBlob is an unchanged blob of some tree, FrozenEntry.ID, possibly with another mode.
	FrozenBlob
	// FrozenTree is a directory that equals the git tree FrozenEntry.ID, including everything below it.
	FrozenTree
	// FrozenContent is a regular file whose contents are stored in the overlay.
	FrozenContent
	// FrozenLink is a symbolic link whose target is stored in the overlay.
	FrozenLink
	// FrozenDir is a directory whose complete contents are the entries that follow it.
	FrozenDir
	// FrozenSkipped is a directory that FreezeOptions.Skip selected. Its contents are not listed.
	FrozenSkipped
	// FrozenOther is a file that git does not store: a fifo, a socket, a device, or a nested repository, whose files are
	// not listed. If it replaces a submodule of some tree, FrozenEntry.ID is the submodule's commit.
	FrozenOther
	// FrozenModule is an empty directory for a submodule of some tree, whose commit is FrozenEntry.ID.
	FrozenModule
)

// FrozenEntry describes completely what exists at one path.
type FrozenEntry struct {
	Path string // path relative to the root
	Kind FrozenKind
	ID   object.ID   // set for FrozenBlob, FrozenTree and FrozenModule
	Mode object.Mode // git's mode; 0: no file that git stores
	Size int64       // in bytes; set for FrozenContent and FrozenLink
	// Perm is the permissions of a FrozenDir or FrozenTree, as in st_mode without the type. For a FrozenGone it is the
	// permissions of the directory that lacks Path.
	Perm uint32
	// Target is the target of a FrozenLink.
	Target string
	// Content is the contents of a FrozenContent, readable until Release. It is nil if the file is larger than
	// FreezeOptions.MaxPinned, or with DryRun.
	Content io.ReaderAt
	// From is the path in its tree of the object that a FrozenBlob or FrozenTree shows, if it differs from Path. The
	// contents may depend on that path, because git attributes are selected by path.
	From string
	// Tree is the root tree that contains the object of a FrozenBlob or FrozenTree; its .gitattributes files apply.
	Tree object.ID
}

// FreezeOptions configure Freeze.
type FreezeOptions struct {
	// Skip, if not nil, reports whether the contents of a directory are to be left out, by its path relative to the root.
	// It is called for every directory that was created in the mount and for those above a changed path. It must not wait,
	// and must not call the Tree.
	Skip func(dir string) bool
	// MaxPinned is the size up to which contents are kept readable, in bytes; 0: unlimited.
	MaxPinned int64
	// DryRun lists the paths only: no contents are pinned, and no request has to wait.
	DryRun bool
}

// Frozen is the difference between the working tree at one moment and at an earlier journal position.
type Frozen struct {
	// Token is the journal position for the next Freeze.
	Token string
	// Whole reports that the entries describe the difference to the base tree, not to the position that was passed.
	Whole bool
	// Entries are sorted by the elements of their paths, so that the entries below a directory follow it. No entry is below
	// another one whose kind is not FrozenDir. Paths without an entry are unchanged. The directories above an entry exist.
	Entries []FrozenEntry
	// Paused is the longest time that a change had to wait.
	Paused time.Duration

	at      int64    // the moment, in nanoseconds since 1970 by CLOCK_REALTIME_COARSE; 0: a DryRun, or no overlay
	release []func() // functions that release the pins
}

// Moment returns the moment that the entries describe, in nanoseconds since 1970 by the clock that the kernel uses for the times
// of files. It is 0 for a DryRun and for a Tree without an overlay.
func (f *Frozen) Moment() int64 { return f.at }

// Release releases the contents of all entries. They must not be read after that.
func (f *Frozen) Release() {
	for _, release := range f.release {
		release()
	}
	f.release = nil
}

// coarseNow returns the time in nanoseconds since 1970 by the clock that the kernel uses for the times of files.
func coarseNow() int64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &ts) != nil {
		return time.Now().UnixNano()
	}
	return ts.Nano()
}
