package worktree

import (
	"context"
	"io"
	"time"

	"github.com/artifactfs/artifactfs/object"
)

// FrozenKind is the kind of a FrozenEntry: what is at its path.
type FrozenKind uint8

const (
	// FrozenGone: nothing.
	FrozenGone FrozenKind = iota
	// FrozenBlob: an unchanged blob of some tree, ID, perhaps with another mode.
	FrozenBlob
	// FrozenTree: a directory that is the tree ID with all that is below it.
	FrozenTree
	// FrozenContent: a regular file with bytes of its own.
	FrozenContent
	// FrozenLink: a symbolic link with a target of its own.
	FrozenLink
	// FrozenDir: a directory. What is below it is told by the entries that follow, and nothing else is there.
	FrozenDir
	// FrozenSkipped: a directory that Skip named. What is in it is not told.
	FrozenSkipped
	// FrozenOther: what git does not keep, a fifo, a socket, a device, or a nested repository, whose files are not told. If
	// it stands where a tree has a submodule, ID is what the tree has.
	FrozenOther
	// FrozenModule: a submodule of some tree, ID, with nothing in it.
	FrozenModule
)

// FrozenEntry says wholly what is at a path.
type FrozenEntry struct {
	Path string // relative to the root
	Kind FrozenKind
	ID   object.ID   // of FrozenBlob, FrozenTree and FrozenModule
	Mode object.Mode // as git has it; 0: nothing that it has
	Size int64       // of FrozenContent and FrozenLink
	// Perm are the permissions, as in st_mode without the type, of a FrozenDir or FrozenTree; of a FrozenGone, those of the
	// directory that Path is missing in.
	Perm uint32
	// Target is where a FrozenLink points.
	Target string
	// Content is what a FrozenContent holds, until Release; nil of one that is longer than the limit, or with DryRun.
	Content io.ReaderAt
	// From is the path in its tree that a FrozenBlob or FrozenTree is shown of, if that is not Path: how contents look may
	// depend on the path.
	From string
	// Tree is the root tree in which a FrozenBlob is at that path, whose attributes count.
	Tree object.ID
}

// FreezeOptions of Freeze.
type FreezeOptions struct {
	// Skip, if not nil, says of a directory, by its path, that nobody wants to know what is in it. It is asked of every
	// directory that was made here and on the way to what changed; it must not wait, nor come back to the Tree.
	Skip func(dir string) bool
	// MaxPinned is how many bytes a file may have whose contents are wanted; 0: any number.
	MaxPinned int64
	// DryRun tells names: no contents are kept, and nobody has to wait.
	DryRun bool
}

// Frozen is the working tree at one moment, as far as it differs from what was known at a token.
type Frozen struct {
	// Token is to be asked with the next time.
	Token string
	// Whole says that the entries tell what differs from the base tree, not from what was known at the token.
	Whole bool
	// Entries are sorted by the elements of their paths, so that what is below a directory follows it. None is below
	// one that is wholly told by another kind than FrozenDir. What is not told is as it was; a directory above an entry
	// is there.
	Entries []FrozenEntry
	// Paused is the longest that a change had to wait.
	Paused time.Duration

	at      int64 // the moment, in nanoseconds since 1970 by the coarse clock; 0: there was none
	release []func()
}

// Release frees the contents. They must not be in use by a reader.
func (f *Frozen) Release() {
	for _, release := range f.release {
		release()
	}
	f.release = nil
}

// Freeze tells what differs since a token, "" or one that is not known: from the base tree. All of it is of one moment:
// every change that was acknowledged before the call is in it, and of those that come later none is if one is not that
// came before it. Contents can be read as they were then until Release, while programs go on changing them; only a change
// at that very moment waits. What programs have written and the kernel keeps is not in it (fuse.Server.WriteBack).
func (t *Tree) Freeze(ctx context.Context, token string, o FreezeOptions) (*Frozen, error) {
	if !t.gate.enter() {
		return nil, ErrClosed
	}
	defer t.gate.leave()
	return t.freeze(ctx, token, o)
}

// Noticed gets a value when something changes after it was emptied, contents that are written to too. Freeze empties it
// at its moment, unless it is a DryRun.
func (t *Tree) Noticed() <-chan struct{} { return t.noticed }

// LastChange is when something was changed last; the zero time: never since Open.
func (t *Tree) LastChange() time.Time {
	if at := t.lastChange.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// Writers are the files that programs may be writing to in the kernel's cache without our being told.
func (t *Tree) Writers() []Node {
	if t.journal == nil {
		return nil
	}
	return t.writing.list()
}

// notice tells who waits for changes.
func (t *Tree) notice() {
	t.lastChange.Store(time.Now().UnixNano())
	if len(t.noticed) == 0 {
		select {
		case t.noticed <- struct{}{}:
		default:
		}
	}
}
