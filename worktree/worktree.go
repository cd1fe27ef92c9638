// Package worktree implements the namespace of a mount: it maps paths to nodes, and nodes to attributes and contents.
// It does not know FUSE; package fuse connects it to the kernel.
//
// # Promises
//   - A node is the inode number of a file, and it stays the same as long as the session exists. The nodes of the base
//     tree are allocated in a table on disk that survives the process, so that a successor uses the same node for every
//     path.
//   - A size is exact, or the call waits until it is known; a directory is complete, or the call waits until its tree
//     is fetched.
//   - Nothing is fetched before it is needed: the tree of a directory when a name in it is first looked up, a size when
//     it is first requested, contents when they are read or partly overwritten. Renaming, linking, removing, truncating
//     to zero or changing the attributes of a file whose contents are missing fetches nothing.
//   - A change is atomic: it is made completely, or nothing is changed. The objects that are needed for a change are
//     fetched before the change starts.
//
// Terms: the base tree is the git tree that unchanged paths are read from. A block is the run of consecutive nodes that
// are the children of one directory of the base tree, in byte order of their names. The overlay stores everything that
// differs from the base tree (package overlay). A base node (a node of the base tree) is promoted when the overlay
// stores its inode. A promoted node keeps its number and its record in the table. While its contents are unchanged,
// they are read from the Source with the path in that record. An own node is a node that the overlay created. A graft
// is a path that shows a blob of another tree: its node is below a further root of the inode table, and is a base node
// in every other respect (Graft).
//
// # How base tree and overlay are merged
//
// Every name and every inode is looked up in the overlay first. If the overlay does not store it, it is looked up in
// the base tree. If a name of a block is removed, the overlay marks the name as hidden. If the name is created again,
// it is listed at its old position, so that positions in a listing stay valid across renames.
//
// # Changes
//
// Every change is recorded in the change journal (package journal), so that Monitor.Changes can return the paths that
// differ since a journal position. The record is written before the change is made: within the Update that makes the
// change or, if it changes contents, under Layer.View, because no path can change during a View. The file ".git" in the
// root is stored in the overlay and does not count as a change (gitfile.go).
//
// # Freeze
//
// A freeze returns the differences since a journal position. All differences describe one moment, and the contents of
// the files at that moment can be read while programs continue to change the files. It does most of the work before
// that moment, while requests continue: it lists one directory after the other, and pins the contents in the overlay.
// The change journal records every change that is made during this work behind the position at which the work began. At
// the moment of the freeze, under Layer.Freeze, only these paths are listed again and replace the earlier entries.
// Therefore requests have to wait while the changes of a few milliseconds are listed, and not longer, however many
// files differ.
//
// # Takeover
//
// The kernel may keep its mount when the process dies, and the next process then opens the Tree with Options.TakeOver.
// The state on which the kernel relies is stored in mapped files, which survive the dead process. The table contains
// the lookup counts of base nodes, and the overlay those of own nodes. The file of the kernel state contains four bits
// for each base node (Kernel.Shown) and the length of the table (kernelstate.go). Package writers stores the set of
// files to which programs are writing. Therefore nodes without a name that are still open stay valid, positions in
// listings stay valid, and a request that the kernel repeats is executed once (request.go). If the process died between
// the count and the reply, a lookup count may be too high, and the node stays until the mount ends. A lookup count is
// never too low. An Open without TakeOver discards all of that state.
//
// # Power cuts
//
// All files are accessed through disk.FS, so that a test can simulate a power cut at every operation. The table is
// synced before a log that refers to its nodes. The journal is closed last, so a journal that is marked as clean when
// the host has been restarted contains every change. The journal begins a new epoch if the overlay may have returned to
// an earlier state.
//
// # Parts
//
// A Tree is composed of parts with one job each. The parts with an exported type are returned by methods of the Tree:
//
//	gate       counts the calls in progress, for which Close waits
//	basetree   the base tree and the trees of grafts: nodes, attributes, contents (package basetree)
//	view       the working tree as it is now; merged is the working tree within one view or update
//	recorder   writes the paths of changes to the change journal
//	editor     changes names and attributes; edit is one change in progress
//	nameSearch finds the paths of a file whose contents are about to be lost
//	contents   reads and changes the contents of files
//	freezing   a freeze in progress (Tree.Freeze)
//	grafting   a graft in progress (Tree.Graft)
//	Kernel     counts the references that the kernel has to nodes
//	Monitor    reports changes to git and to the session agent
//	Base       shows the base tree without the changes
//	Overlay    reports how the working tree differs from the base tree, and the times of paths; carries files to a fork
//	Xattrs     reads and changes extended attributes
//
// A part calls only parts that stand above it in this list; Kernel, Monitor, Base, Overlay and Xattrs do not call each
// other.
//
// # Locks
//
// A change first reads the blocks that it needs, without a lock (blocks never change), and is then checked and made
// within one overlay.Layer.Update, which excludes all other updates. The lock of an overlay.File protects the contents
// of the file. No lock is held while a Source is called, so that one slow object delays only the requests that need it.
// Lock order:
//
//	overlay's cut -> overlay.File -> overlay.Layer
//	overlay.Layer -> journal.Journal
//	overlay.Layer -> removed.Set -> overlay.Pin
//	overlay.Layer -> nameSearch.mu
//	table.syncing -> table.append
//
// A goroutine that holds writers.Set, gate or table.append acquires no other lock. The overlay syncs the table before
// its log, and then holds no lock for which readers wait.
package worktree

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/worktree/basetree"
	"github.com/artifactfs/artifactfs/worktree/inode"
	"github.com/artifactfs/artifactfs/worktree/overlay"
	"github.com/artifactfs/artifactfs/worktree/removed"
)

// Node is the number of a file, directory or symbolic link of the mount; it is also its inode number. Zero stands for
// no node.
type Node = inode.Node

// Root is the node of the mount's root directory, in every mount.
const Root = inode.Root

// These types are declared by package basetree.
type (
	Blob      = basetree.Blob
	Content   = basetree.Content
	Source    = basetree.Source
	Attr      = basetree.Attr
	Modes     = basetree.Modes
	BaseEntry = basetree.Entry
)

// These errors are returned by the methods of a Tree, in addition to values of syscall.Errno.
var (
	ErrNotExist = fs.ErrNotExist
	ErrNotDir   = basetree.ErrNotDir
	ErrIsDir    = errors.New("is a directory")
	ErrNotLink  = errors.New("not a symbolic link")
	ErrNoNode   = basetree.ErrNoNode                   // neither the inode table nor the overlay has the node
	ErrClosed   = errors.New("working tree is closed") // returned by every method after Close
	ErrResized  = basetree.ErrResized
)

// Options configure Open.
type Options struct {
	Root     object.ID // base tree; the zero ID is an empty directory
	Time     time.Time // modification time of every unchanged path, unless SetTimes has set another one in the overlay
	UID, GID uint32    // owner and group of every unchanged path of the base tree
	Modes    Modes     // types and permissions of every unchanged path of the base tree

	// Overlay is the directory of the overlay, which stores all changes. If it is "", the Tree is read-only, and every
	// change fails with EROFS.
	Overlay string
	// Shares is the directory of the contents that several overlays use (overlay.Options.Shares), and Segments are the
	// contents that a new overlay uses in order to adopt files (Overlay.Adopt).
	Shares          string
	Segments        []overlay.Segment
	OverlayReadOnly bool // show the changes in the overlay, but do not write to the overlay
	// keep the contents of removed and overwritten files until a checkpoint contains them (see Removals)
	KeepRemoved bool
	ReadOnly    bool // let all changes fail with EROFS, except those of Graft
	// contents of the file ".git" in the root, which Open writes to the overlay; "": no such file
	GitFile string
	// make ".git" an empty directory, over which another directory is mounted, instead of a file
	GitDir  bool
	Journal string      // path of the change journal; "": no journal is kept, and Monitor.Changes returns All
	Log     *zap.Logger // nil: nothing is logged
	FS      disk.FS     // nil stands for disk.OS; tests use one that fails

	// TakeOver is true if the kernel still has the mount that a dead process has served. If so, the lookup counts of the
	// kernel remain valid, and the kernel may repeat requests (Request). If TakeOver is false, the kernel holds no
	// reference to any node.
	TakeOver bool
	// ForgetSizes is true if the Source may convert contents in another way than for the previous Tree, so that sizes in
	// the inode table may be wrong. It has no effect if TakeOver is true, because the kernel has these sizes.
	ForgetSizes bool
}

// Entry is one name in a directory, as ReadDir emits it.
type Entry struct {
	Name string // may be used only until the callback returns
	Node Node
	Mode uint32 // as in Attr
	Next uint64 // position from which ReadDir continues after this entry
}

// Tree is the namespace of one mount. It consists of the parts below and a gate, which refuses calls after Close. The
// methods of Tree serve the requests of the kernel for package fuse; packages checkout and session/capture call Graft
// and Freeze. Kernel, Monitor, Base, Overlay, Xattrs and Removals return parts for other callers. All methods may be
// called from any goroutine.
type Tree struct {
	gate     gate // counts the calls in progress, for which Close waits
	base     *basetree.Tree
	view     view
	changes  recorder
	editor   editor
	contents contents
	names    nameSearch   // finds the paths of files for removed.Set
	putGit   func() error // creates the file ".git" in the root if it is missing; nil if the Tree has no such file

	kernel    Kernel
	monitor   Monitor
	committed Base
	overlay   Overlay
	xattrs    Xattrs
}

// Open opens a Tree with the inode table at tablePath and the overlay. A second file, whose path is tablePath with the
// suffix .names, contains the names for the table. If the table exists, every path keeps its node. If the table belongs
// to another base tree, Open returns ErrTable. Open does not fetch anything. A table may be open in one Tree at a time.
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
	if o.ForgetSizes && !o.TakeOver {
		if err := table.ForgetSizes(); err != nil {
			return nil, errors.Join(fmt.Errorf("open inode table %s: %w", tablePath, err), table.Close())
		}
	}
	t := connect(basetree.New(src, table, basetree.Options{Root: o.Root, Time: o.Time, UID: o.UID, GID: o.GID,
		Modes: o.Modes}))
	if err := t.attach(o, tablePath); err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

// connect returns a Tree whose parts refer to each other. The Tree has the base tree, but no overlay and no journal
// yet.
func connect(base *basetree.Tree) *Tree {
	t := &Tree{base: base}
	t.view.base = base
	t.changes.view, t.changes.noticed = &t.view, make(chan struct{}, 1)
	t.editor.base, t.editor.view, t.editor.changes = base, &t.view, &t.changes
	t.contents.base, t.contents.view, t.contents.editor = base, &t.view, &t.editor
	t.names.view = &t.view
	t.kernel = Kernel{&t.gate, &t.view, &t.changes.writing}
	t.monitor = Monitor{&t.gate, &t.changes}
	t.overlay.full = make(chan struct{}, 1)
	t.committed = Base{&t.gate, &t.view}
	t.overlay.gate, t.overlay.view, t.overlay.changes = &t.gate, &t.view, &t.changes
	t.xattrs = Xattrs{&t.gate, &t.view, &t.editor}
	return t
}

// attach opens the overlay and the journal, and restores the state that the previous process has left in them.
func (t *Tree) attach(o Options, tablePath string) (err error) {
	table, recovery := t.base.Table, &t.overlay.recovery
	t.overlay.dir = o.Overlay
	t.editor.sealed = o.Overlay == "" || o.OverlayReadOnly
	t.editor.readOnly = t.editor.sealed || o.ReadOnly
	if o.Overlay == "" {
		recovery.TookOver = table.TookOver()
		t.keep(removed.Open(nil, removed.Options{}))
		return t.changes.open(o, tablePath, recovery, table.TookOver())
	}
	t.view.layer, *recovery, err = overlay.Open(o.Overlay, overlay.Options{
		FS: o.FS, Log: o.Log, ReadOnly: o.OverlayReadOnly, BeforeSync: table.Sync,
		Shares: o.Shares, Segments: o.Segments, Full: t.overlay.full,
		ValidBase: func(n Node) bool { _, ok := table.Record(n); return ok },
		TakeOver:  table.TookOver(), Seed: table.Seed(),
		Knows: func(n Node) bool { r, ok := table.Record(n); return ok && r.Known() },
	})
	if err != nil {
		return fmt.Errorf("open overlay %s: %w", o.Overlay, err)
	}
	t.view.look(func(m merged) {
		if at, ok := overlay.BaseTime(m); ok {
			t.base.SetTime(time.Unix(0, at))
		}
	})
	t.keep(removed.Open(t.view.layer, removed.Options{Keep: o.KeepRemoved, Kept: recovery.Kept,
		Find: t.names.find, Log: o.Log}))
	if o.TakeOver && !table.TookOver() {
		recovery.Problems = append(recovery.Problems, "the inode table does not know which inodes the kernel holds")
	}
	if (o.GitFile != "" || o.GitDir) && !o.OverlayReadOnly {
		if err := putGitFile(t.view.layer, o); err != nil {
			return err
		}
		if !o.GitDir && !o.ReadOnly {
			t.putGit = func() error { return putGitFile(t.view.layer, o) }
		}
	}
	return t.changes.open(o, tablePath, recovery, table.TookOver())
}

// keep sets the set that stores the contents of removed and overwritten files.
func (t *Tree) keep(s *removed.Set) { t.editor.removed, t.contents.removed, t.names.removed = s, s, s }

// Close waits until the calls in progress have returned, writes all changes to disk, and closes the table and the
// overlay, whose files remain. Later calls fail with ErrClosed. The calls in progress may wait until objects are
// fetched, so the caller of Close must first cancel the contexts of these calls.
func (t *Tree) Close() error {
	if !t.gate.close() {
		return nil
	}
	return t.close()
}

// close closes all files. The journal is closed last, because no change may be made after the journal is marked as
// clean.
func (t *Tree) close() error {
	var err error
	if layer := t.view.layer; layer != nil {
		t.editor.removed.Close()
		if err = layer.Close(); err != nil {
			err = fmt.Errorf("close overlay %s: %w", t.overlay.dir, err)
		}
	}
	return errors.Join(err, t.changes.writing.Close(), t.base.Table.Close(), t.changes.journal.Close())
}

// Kernel returns the counters of the references that the kernel has to nodes.
func (t *Tree) Kernel() *Kernel { return &t.kernel }

// Monitor returns the part that reports changes.
func (t *Tree) Monitor() *Monitor { return &t.monitor }

// Base returns the part that shows the base tree without the changes.
func (t *Tree) Base() *Base { return &t.committed }

// Overlay returns the part that reports how the working tree differs from the base tree.
func (t *Tree) Overlay() *Overlay { return &t.overlay }

// Xattrs returns the part that stores extended attributes.
func (t *Tree) Xattrs() *Xattrs { return &t.xattrs }

// Removals returns the set of removed and overwritten files that no checkpoint contains yet.
func (t *Tree) Removals() *removed.Set { return t.editor.removed }
