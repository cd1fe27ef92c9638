// Package worktree is the namespace of a mount: it maps paths to nodes, and nodes to attributes and contents. It does not
// know FUSE; package fuse connects it to the kernel.
//
// # Promises
//   - A node is stable as long as the session lives and is the inode number. The nodes of the base tree are allocated in a
//     table on disk that survives the process, so that a successor gives every path the node it had.
//   - A size is right, or the call waits for it; a directory is complete, or the call waits for it.
//   - Nothing is read before it is wanted: the tree of a directory when it is first looked into, a size when it is first
//     asked for, contents when they are read or partly overwritten. To rename, link, remove, truncate to zero or change the
//     attributes of a file that was never read fetches nothing.
//   - A change has happened or has failed. Objects that it needs are fetched before it, never in its middle.
//
// Terms: the base tree is the git tree that unchanged paths are read from. A block is the run of consecutive nodes that are
// the children of a directory of the base tree, in byte order of their names. The overlay has everything that differs
// (package overlay). A base node is promoted when the overlay has its inode; it keeps its number and its record, and a
// Source is still asked for the record's path. A graft is a path that shows a blob of another tree: its node is below a
// further root of the inode table, and is a base node in everything else (Graft).
//
// # How base tree and overlay are merged
//
// The overlay is asked first, for a name and for an inode; if it has neither, the base tree is asked. A name of a block that
// was removed is hidden in the overlay. A name of the block that is created again is listed at its old position, so that
// positions in a listing stay valid across renames.
//
// # Changes
//
// Every change is recorded in the change journal (package journal), so that Changes can return what differs since a journal
// position. It is recorded before it is made: within the Update that makes it or, if it changes contents, under Layer.View,
// because no path changes meanwhile. The file ".git" in the root is in the overlay and counts as no change (gitfile.go).
//
// # Freeze
//
// A freeze returns the differences since a journal position, all of them as of one moment, with contents that can be read
// while programs change the files. Most of the work is done before the moment, while no request waits: listing directory
// after directory and pinning their contents in the overlay. Whatever changes meanwhile is in the journal behind the
// position that was returned first; at the moment, under Layer.Freeze, only that is listed again and replaces what was
// listed before. So requests wait for the changes of a few milliseconds, however many files differ.
//
// # Takeover
//
// The kernel may keep its mount when the process dies, and the next process opens the Tree with Options.TakeOver. The state
// that the kernel relies on is in mapped files, as the dead process left it: lookup counts of base nodes in the table, of
// own nodes in the overlay; the four bits of Shown and the length of the table (kernelstate.go); and which files programs
// are writing to (changes.go). So nodes without a name that are still open live on, positions in listings stay valid, and a
// request that is repeated is executed once (request.go). A lookup count may be too high, if the process died between the
// count and the reply: that node stays until the mount ends. It is never too low. An Open without TakeOver discards all of
// that state.
//
// # Power cuts
//
// All files go through disk.FS, and a test cuts the power at every operation. The table is synced before a log that names
// its nodes is. The journal is closed last: a clean journal on another boot means that no change is missing in it, and it
// begins anew if the overlay may have gone back to an earlier state.
//
// # Locks
//
// A change first gets the blocks that it needs, without a lock (they never change), and is then decided and made within one
// overlay.Layer.Update, which excludes all others. Contents are guarded by their overlay.File. No lock is held while a
// Source is asked, so that one slow object delays only the requests that need it. Lock order:
//
//	overlay's cut -> overlay.File -> overlay.Layer
//	overlay.Layer -> journal.Journal
//	table.syncing -> table.append
//	Tree.writing is a leaf
//	Tree.gate is a leaf, and so is table.append; the overlay syncs the table, before its log, under no lock of its own
//	that a reader waits for
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
	"github.com/artifactfs/artifactfs/worktree/journal"
)

// Node names a file, directory or link of the mount; it is also its inode number. Zero names nothing.
type Node = overlay.Node

// Root is the mount's root directory, whatever is mounted.
const Root Node = 1

// Blob is a blob where the mount shows it: how a file's content looks may depend on its path (attributes).
type Blob struct {
	ID   object.ID
	Path string    // relative to the mount's root, without a leading slash
	Link bool      // it is a symbolic link's target
	Tree object.ID // the root tree that has it there, whose attributes count
}

// Content is a blob's content, readable until Release.
type Content interface {
	io.ReaderAt
	Size() int64
	Release()
}

// Source returns what the nodes are made of. Every method may be called at the same time from many goroutines.
type Source interface {
	// Tree returns a tree's entries, waiting for it to arrive. The caller does not change them.
	Tree(ctx context.Context, id object.ID) ([]object.TreeEntry, error)
	// Size returns the exact length of what is shown of a blob, in bytes, waiting for whatever tells it.
	Size(ctx context.Context, b Blob) (int64, error)
	// KnownSize returns the length if it needs no waiting.
	KnownSize(b Blob) (size int64, ok bool)
	// Looked hears that a reader came upon a file whose size the Tree does not know yet: who walks on can be told from who
	// does not.
	Looked(b Blob)
	// Open returns what is shown of a blob, verified, waiting for it to arrive.
	Open(ctx context.Context, b Blob) (Content, error)
}

var (
	ErrNotExist = fs.ErrNotExist
	ErrNotDir   = errors.New("not a directory")
	ErrIsDir    = errors.New("is a directory")
	ErrNotLink  = errors.New("not a symbolic link")
	ErrNoNode   = errors.New("no such node")           // the node was never handed out
	ErrClosed   = errors.New("working tree is closed") // after Close
	ErrTable    = errors.New("bad inode table")        // the file read back is no table of this tree
	ErrResized  = errors.New("the content has another size than announced")
)

// Options describe what is mounted.
type Options struct {
	Root     object.ID // the base tree; the zero ID is an empty directory
	Time     time.Time // modification time of every path
	UID, GID uint32    // owner of every path of the base tree

	// Overlay is the directory that keeps what is changed. "": nothing can be changed, every attempt is EROFS.
	Overlay         string
	OverlayReadOnly bool        // what was changed is shown, and nothing can be changed any more
	KeepRemoved     bool        // what is removed or overwritten is kept for a checkpoint (MassRemoval)
	ReadOnly        bool        // nothing can be changed through the Tree, though it has an overlay
	GitFile         string      // the content of the file ".git" in the root, which Open puts into the overlay; "": there is none
	GitDir          bool        // ".git" is a directory instead, for something to be mounted over it
	Journal         string      // the file of the change journal; "": Changes does not know what changed
	Log             *zap.Logger // nil: no log
	FS              disk.FS     // nil: disk.OS; tests pass one that fails

	// TakeOver says that the kernel still has the mount that a process served which is dead: what it was told of nodes
	// counts, and its requests may come again (Request). False: a kernel that knows nothing yet.
	TakeOver bool
}

// Attr is what stat says of a node.
type Attr struct {
	Node Node
	Mode uint32 // type and permissions as in st_mode
	// Nlink is 1 for a directory of the base tree, which tells find and its like that it does not count
	// subdirectories: to know their number would mean to wait for the directory's tree only to stat it.
	Nlink               uint32
	UID, GID            uint32
	Rdev                uint32
	Size                int64 // in bytes; negative: not known yet
	Blocks              int64 // of 512 bytes
	Atime, Mtime, Ctime int64 // nanoseconds since 1970
}

// Entry is one name in a directory.
type Entry struct {
	Name string // valid until the callback returns
	Node Node
	Mode uint32 // as in Attr
	Next uint64 // where ReadDir goes on behind this entry
}

// Counts returns how much of the tree has been looked into. Directories that nobody read hide what is below them.
type Counts struct {
	Nodes int64 // paths that have a node, the root included
	Dirs  int64 // directories whose children are known
}

// dirSize is the size that directories report, in bytes; it means nothing, as on most file systems.
const dirSize = 4096

// Tree is the namespace. Its methods may be called from many goroutines.
type Tree struct {
	src      Source
	options  Options
	table    *table
	layer    *overlay.Layer // nil: there is nothing but the base tree
	recovery overlay.Recovery
	tookOver bool
	journal  *journal.Journal // nil: none is kept
	writing  writing
	removed  removals
	looked   atomic.Int64 // names of the overlay looked at since the last token, see noteNames
	gate     gate

	noticed    chan struct{} // see Noticed
	lastChange atomic.Int64  // nanoseconds since 1970; 0: never
}

// Open starts a namespace over the inode table at tablePath (a second file beside it, tablePath.names, holds
// names) and the overlay. An existing table is continued, with every node as it was; it must be of the same base
// tree, else the error is ErrTable. Open waits for no object. Only one Tree at a time can have a table open.
func Open(tablePath string, src Source, o Options) (*Tree, error) {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	if o.FS == nil {
		o.FS = disk.OS
	}
	table, err := openTable(o.FS, tablePath, o.Root, o.TakeOver)
	if err != nil {
		return nil, fmt.Errorf("open inode table %s: %w", tablePath, err)
	}
	t := &Tree{src: src, options: o, table: table, tookOver: table.kernel.continued, noticed: make(chan struct{}, 1)}
	t.removed.mass = make(chan struct{}, 1)
	t.removed.on.Store(o.KeepRemoved)
	if err := t.attach(o); err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

// attach opens what there is besides the table.
func (t *Tree) attach(o Options) (err error) {
	table := t.table
	if o.Overlay == "" {
		t.recovery.TookOver = t.tookOver
		return t.openJournal(o)
	}
	t.layer, t.recovery, err = overlay.Open(o.Overlay, overlay.Options{
		FS: o.FS, Log: o.Log, ReadOnly: o.OverlayReadOnly, BeforeSync: table.sync,
		ValidBase: func(n Node) bool { _, ok := table.record(n); return ok },
		TakeOver:  t.tookOver, Seed: table.kernel.header().seed,
		Knows: func(n Node) bool { r, ok := table.record(n); return ok && r.lookups.Load() > 0 },
	})
	if err != nil {
		return fmt.Errorf("open overlay %s: %w", o.Overlay, err)
	}
	t.recover(t.recovery.Kept)
	if o.TakeOver && !t.tookOver {
		t.recovery.Problems = append(t.recovery.Problems, "the inode table does not know which inodes the kernel holds")
	}
	if (o.GitFile != "" || o.GitDir) && !o.OverlayReadOnly {
		if err := t.putGitFile(o); err != nil {
			return err
		}
	}
	return t.openJournal(o)
}

func (t *Tree) openJournal(o Options) error {
	if o.Journal == "" {
		return nil
	}
	boot, err := disk.BootUUID(o.FS)
	if err != nil {
		return err
	}
	if err := t.writing.open(o.FS, t.table.records.Name()+".writing", t.tookOver); err != nil {
		return err
	}
	shrunk := t.recovery.Shrunk
	t.journal, err = journal.Open(o.Journal, journal.Options{
		FS: o.FS, Boot: boot, ReadOnly: o.OverlayReadOnly, TakeOver: t.tookOver,
		// The overlay may have lost what the journal knows: each is closed on its own, and the power may fail between.
		Anew:   t.recovery.Start == overlay.PowerLoss || len(shrunk) > 0 && o.OverlayReadOnly,
		Unused: func() bool { return t.layer == nil || t.layer.Changed() == 0 },
	})
	if err == nil && !o.OverlayReadOnly {
		t.noteAll(shrunk)
	}
	return err
}

// Close waits for calls under way, brings what was changed to the disk and gives up table and overlay, which stay
// there. Calls after it fail with ErrClosed. Whoever lets calls wait for objects ends them first, by their contexts.
func (t *Tree) Close() error {
	if !t.gate.close() {
		return nil
	}
	return t.close()
}

// close closes what is open. The journal comes last: once it is called whole nothing changes.
func (t *Tree) close() error {
	var err error
	if t.layer != nil {
		t.removed.forget(t)
		if err = t.layer.Close(); err != nil {
			err = fmt.Errorf("close overlay %s: %w", t.options.Overlay, err)
		}
	}
	return errors.Join(err, t.writing.close(), t.table.close(), t.journal.Close())
}

// Recovery returns what Open found and mended.
func (t *Tree) Recovery() overlay.Recovery { return t.recovery }

// Changed is how many paths differ from the base tree. One that is as it was, but younger, does not.
func (t *Tree) Changed() int64 {
	if t.layer == nil || !t.gate.enter() {
		return 0
	}
	defer t.gate.leave()
	changed := t.layer.Changed()
	t.view(func(m merged) { changed -= m.younger() })
	return max(0, changed)
}

// Stats returns how large the overlay is.
func (t *Tree) Stats() overlay.Stats {
	if t.layer == nil || !t.gate.enter() {
		return overlay.Stats{}
	}
	defer t.gate.leave()
	return t.layer.Stats()
}

// Counts returns how much of the base tree has been looked into.
func (t *Tree) Counts() Counts {
	return Counts{t.table.nodes.Load(), t.table.dirs.Load()}
}
