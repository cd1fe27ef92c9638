// Package worktree implements the namespace of a mount: it maps paths to nodes, and nodes to attributes and contents. It does
// not know FUSE; package fuse connects it to the kernel.
//
// # Promises
//   - A node is the inode number of a file, and it stays the same as long as the session exists. The nodes of the base tree
//     are allocated in a table on disk that survives the process, so that a successor uses the same node for every path.
//   - A size is exact, or the call waits until it is known; a directory is complete, or the call waits until its tree is
//     fetched.
//   - Nothing is fetched before it is needed: the tree of a directory when a name in it is first looked up, a size when it is
//     first requested, contents when they are read or partly overwritten. Renaming, linking, removing, truncating to zero or
//     changing the attributes of a file whose contents are missing fetches nothing.
//   - A change is made completely or not at all. Objects that it needs are fetched before it starts.
//
// Terms: the base tree is the git tree that unchanged paths are read from. A block is the run of consecutive nodes that are
// the children of one directory of the base tree, in byte order of their names. The overlay stores everything that differs
// from the base tree (package overlay). A node of the base tree, a base node, is promoted when the overlay stores its inode;
// it keeps its number and its record in the table, and the Source is still asked for contents under the path of that record.
// An own node is a node that the overlay created. A graft is a path that shows a blob of another tree: its node is below a
// further root of the inode table, and is a base node in every other respect (Graft).
//
// # How base tree and overlay are merged
//
// Every lookup of a name or an inode asks the overlay first, and the base tree if the overlay does not store it. A name of a
// block that was removed is marked as hidden in the overlay. If a name of the block is created again, it is listed at its old
// position, so that positions in a listing stay valid across renames.
//
// # Changes
//
// Every change is recorded in the change journal (package journal), so that Changes can return the paths that differ since a
// journal position. The record is written before the change is made: within the Update that makes the change or, if it changes
// contents, under Layer.View, because no path can change during a View. The file ".git" in the root is stored in the overlay
// and does not count as a change (gitfile.go).
//
// # Freeze
//
// A freeze returns the differences since a journal position, all of them as of one moment, with contents that can be read
// while programs continue to change the files. Most of the work is done before that moment, while no request waits: listing
// one directory after the other and pinning the contents in the overlay. Every change made meanwhile is in the journal behind
// the position that was returned first. At the moment of the freeze, under Layer.Freeze, only these paths are listed again and
// replace the earlier entries. So requests wait for the changes of a few milliseconds, however many files differ.
//
// # Takeover
//
// The kernel may keep its mount when the process dies, and the next process then opens the Tree with Options.TakeOver. The
// state that the kernel relies on is stored in mapped files, which survive the dead process: the lookup counts of base nodes
// in the table and those of own nodes in the overlay; four bits for each base node (Shown) and the length of the table
// (kernelstate.go); and the set of files that programs are writing to (package writers). So nodes without a name that are still
// open stay valid, positions in listings stay valid, and a request that the kernel repeats is executed once (request.go). A
// lookup count may be too high, if the process died between the count and the reply: that node stays until the mount ends. It
// is never too low. An Open without TakeOver discards all of that state.
//
// # Power cuts
//
// All files are accessed through disk.FS, so that a test can cut the power at every operation. The table is synced before a
// log that refers to its nodes is. The journal is closed last: a clean journal that is found on another boot contains every
// change. The journal begins a new epoch if the overlay may have returned to an earlier state.
//
// # Locks
//
// A change first reads the blocks that it needs, without a lock (blocks never change), and is then checked and made within one
// overlay.Layer.Update, which excludes all others. Contents are guarded by their overlay.File. No lock is held while a
// Source is called, so that one slow object delays only the requests that need it. Lock order:
//
//	overlay's cut -> overlay.File -> overlay.Layer
//	overlay.Layer -> journal.Journal
//	overlay.Layer -> removed.Set
//	overlay.Layer -> nameSearch.mu
//	table.syncing -> table.append
//	writers.Set is a leaf
//	Tree.gate is a leaf, and so is table.append. The overlay syncs the table before its log, and holds no lock
//	that readers wait for while it does so
package worktree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/overlay"
	"github.com/artifactfs/artifactfs/worktree/inode"
	"github.com/artifactfs/artifactfs/worktree/journal"
	"github.com/artifactfs/artifactfs/worktree/removed"
	"github.com/artifactfs/artifactfs/worktree/writers"
)

// Node is the number of a file, directory or symbolic link of the mount; it is also its inode number. Zero stands for no node.
type Node = inode.Node

// Root is the node of the mount's root directory, in every mount.
const Root = inode.Root

// Blob is a blob together with the place where the mount shows it. The place matters because git attributes, which are
// selected by path, may convert the contents.
type Blob struct {
	ID   object.ID
	Path string    // path relative to the mount's root, without a leading slash
	Link bool      // whether the blob is the target of a symbolic link
	Tree object.ID // root tree that contains the blob at Path; its .gitattributes files apply
}

// Content is the contents of a blob as the mount shows them. They can be read until Release.
type Content interface {
	io.ReaderAt
	Size() int64
	Release()
}

// Source supplies the trees, sizes and contents of base nodes. All of its methods may be called concurrently.
type Source interface {
	// Tree returns the entries of a tree. It waits until the tree is fetched. The caller must not modify the slice.
	Tree(ctx context.Context, id object.ID) ([]object.TreeEntry, error)
	// Size returns the exact length of the contents that the mount shows for a blob, in bytes. It waits for the objects
	// from which the length is computed.
	Size(ctx context.Context, b Blob) (int64, error)
	// KnownSize returns the same length as Size, but never waits: ok is false if the length is not known on this host.
	KnownSize(b Blob) (size int64, ok bool)
	// Looked records that a reader looked up a file whose size the Tree does not know yet. From the sequence of lookups the
	// Source detects a program that walks through a directory.
	Looked(b Blob)
	// Open returns the contents that the mount shows for a blob, verified. It waits until the blob is fetched.
	Open(ctx context.Context, b Blob) (Content, error)
}

// Errors that the methods of a Tree return, besides values of syscall.Errno.
var (
	ErrNotExist = fs.ErrNotExist
	ErrNotDir   = errors.New("not a directory")
	ErrIsDir    = errors.New("is a directory")
	ErrNotLink  = errors.New("not a symbolic link")
	ErrNoNode   = errors.New("no such node")           // the table and the overlay know no such node
	ErrClosed   = errors.New("working tree is closed") // returned by every method after Close
	ErrResized  = errors.New("the content has another size than announced")
)

// Options configure Open.
type Options struct {
	Root     object.ID // base tree; the zero ID is an empty directory
	Time     time.Time // modification time of every unchanged path
	UID, GID uint32    // owner and group of every unchanged path of the base tree

	// Overlay is the directory of the overlay, which stores all changes. If it is empty, the Tree is read-only and every
	// change fails with EROFS.
	Overlay         string
	OverlayReadOnly bool        // show the changes that the overlay contains, but write nothing to it
	KeepRemoved     bool        // keep the contents of removed and overwritten files for a checkpoint (Removals)
	ReadOnly        bool        // fail all changes with EROFS, except those made by Graft
	GitFile         string      // contents of the file ".git" in the root, which Open writes to the overlay; "": no such file
	GitDir          bool        // make ".git" an empty directory instead, as the mount point of another mount
	Journal         string      // path of the change journal; "": none, and Changes returns All
	Log             *zap.Logger // nil: no log
	FS              disk.FS     // nil: disk.OS; tests pass one that fails

	// TakeOver states that the kernel still has the mount that a dead process served: the kernel's lookup counts remain
	// valid, and it may repeat requests (Request). Without TakeOver the kernel holds no reference to any node.
	TakeOver bool
}

// Attr is the attributes of a node, as stat(2) returns them.
type Attr struct {
	Node Node
	Mode uint32 // type and permissions as in st_mode
	// Nlink is 1 for a directory of the base tree. By that value programs such as find recognize that the link count does
	// not include subdirectories. Counting them would make a stat wait for the directory's tree.
	Nlink               uint32
	UID, GID            uint32
	Rdev                uint32
	Size                int64 // in bytes; negative: not known yet
	Blocks              int64 // allocated units of 512 bytes
	Atime, Mtime, Ctime int64 // nanoseconds since 1970
}

// Entry is one name in a directory, as ReadDir emits it.
type Entry struct {
	Name string // valid until the callback returns
	Node Node
	Mode uint32 // as in Attr
	Next uint64 // position from which ReadDir continues behind this entry
}

// dirSize is the st_size of every directory, in bytes. As on most file systems the value has no meaning.
const dirSize = 4096

// Tree is the namespace of one mount. Its methods may be called concurrently.
type Tree struct {
	src      Source
	options  Options
	Table    *inode.Table
	layer    *overlay.Layer // nil: the mount has no overlay
	recovery overlay.Recovery
	tookOver bool             // whether the state of the previous process was continued (Options.TakeOver)
	journal  *journal.Journal // nil: no journal is kept
	writing  writers.Set
	removed  *removed.Set // removed and overwritten files that no checkpoint contains yet
	names    nameSearch   // finds the paths of files for removed
	looked   atomic.Int64 // names of the overlay that noteNames searched since the last returned journal position
	gate     gate         // counts the calls in progress, for which Close waits

	noticed    chan struct{} // see Noticed; capacity 1
	lastChange atomic.Int64  // nanoseconds since 1970; 0: no change since Open
}

// Open opens the namespace over the inode table at tablePath (a second file, tablePath.names, stores the names) and over
// the overlay. An existing table is continued, and every path keeps its node. If the table belongs to another base tree,
// Open returns ErrTable. Open does not wait for objects. At most one Tree at a time can have a table open.
func Open(tablePath string, src Source, o Options) (*Tree, error) {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	if o.FS == nil {
		o.FS = disk.OS
	}
	table, err := inode.Open(o.FS, tablePath, o.Root, o.TakeOver)
	if err != nil {
		return nil, fmt.Errorf("open inode table %s: %w", tablePath, err)
	}
	t := &Tree{src: src, options: o, Table: table, tookOver: table.TookOver(), noticed: make(chan struct{}, 1)}
	t.names.tree = t
	if err := t.attach(o, tablePath); err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

// attach opens the overlay and the journal, and recovers the state that the previous process left in them.
func (t *Tree) attach(o Options, tablePath string) (err error) {
	table := t.Table
	if o.Overlay == "" {
		t.recovery.TookOver = t.tookOver
		t.removed = removed.Open(nil, removed.Options{})
		return t.openJournal(o, tablePath)
	}
	t.layer, t.recovery, err = overlay.Open(o.Overlay, overlay.Options{
		FS: o.FS, Log: o.Log, ReadOnly: o.OverlayReadOnly, BeforeSync: table.Sync,
		ValidBase: func(n Node) bool { _, ok := table.Record(n); return ok },
		TakeOver:  t.tookOver, Seed: table.Seed(),
		Knows: func(n Node) bool { r, ok := table.Record(n); return ok && r.Known() },
	})
	if err != nil {
		return fmt.Errorf("open overlay %s: %w", o.Overlay, err)
	}
	t.removed = removed.Open(t.layer, removed.Options{Keep: o.KeepRemoved, Kept: t.recovery.Kept, Find: t.names.find, Log: o.Log})
	if o.TakeOver && !t.tookOver {
		t.recovery.Problems = append(t.recovery.Problems, "the inode table does not know which inodes the kernel holds")
	}
	if (o.GitFile != "" || o.GitDir) && !o.OverlayReadOnly {
		if err := t.putGitFile(o); err != nil {
			return err
		}
	}
	return t.openJournal(o, tablePath)
}

// openJournal opens the change journal. Files whose size differs from their size when the overlay was closed (Recovery.Shrunk)
// are recorded in the journal as changed.
func (t *Tree) openJournal(o Options, tablePath string) error {
	if o.Journal == "" {
		return nil
	}
	boot, err := disk.BootUUID(o.FS)
	if err != nil {
		return err
	}
	if err := t.writing.Open(o.FS, tablePath+".writing", t.tookOver); err != nil {
		return err
	}
	shrunk := t.recovery.Shrunk
	t.journal, err = journal.Open(o.Journal, journal.Options{
		FS: o.FS, Boot: boot, ReadOnly: o.OverlayReadOnly, TakeOver: t.tookOver,
		// After a power loss the journal may contain records of changes that the overlay lost, because each is synced
		// separately.
		Anew:   t.recovery.Start == overlay.PowerLoss || len(shrunk) > 0 && o.OverlayReadOnly,
		Unused: func() bool { return t.layer == nil || t.layer.Changed() == 0 },
	})
	if err == nil && !o.OverlayReadOnly {
		t.noteAll(shrunk)
	}
	return err
}

// Close waits for the calls in progress, writes all changes to disk and closes the table and the overlay, whose files
// remain. Calls after Close fail with ErrClosed. A caller whose calls may wait for objects must cancel their contexts
// first.
func (t *Tree) Close() error {
	if !t.gate.close() {
		return nil
	}
	return t.close()
}

// close closes all files. The journal is closed last: no change may follow once it is marked as clean.
func (t *Tree) close() error {
	var err error
	if t.layer != nil {
		t.removed.Close()
		if err = t.layer.Close(); err != nil {
			err = fmt.Errorf("close overlay %s: %w", t.options.Overlay, err)
		}
	}
	return errors.Join(err, t.writing.Close(), t.Table.Close(), t.journal.Close())
}

// Recovery returns the state in which Open found the overlay, and the repairs that Open made.
func (t *Tree) Recovery() overlay.Recovery { return t.recovery }

// Changed returns how many paths differ from the base tree. A path that differs only in its times does not count.
func (t *Tree) Changed() int64 {
	if t.layer == nil || !t.gate.enter() {
		return 0
	}
	defer t.gate.leave()
	changed := t.layer.Changed()
	t.view(func(m merged) { changed -= m.younger() })
	return max(0, changed)
}

// Removals returns the set of removed and overwritten files that no checkpoint contains yet.
func (t *Tree) Removals() *removed.Set { return t.removed }

// Stats returns the size of the overlay.
func (t *Tree) Stats() overlay.Stats {
	if t.layer == nil || !t.gate.enter() {
		return overlay.Stats{}
	}
	defer t.gate.leave()
	return t.layer.Stats()
}

// Counts returns how much of the base tree the table contains.
func (t *Tree) Counts() inode.Counts { return t.Table.Counts() }
