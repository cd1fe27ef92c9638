package overlay

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/worktree/overlay/state"
	"github.com/artifactfs/artifactfs/worktree/overlay/wal"
)

// The types and constants below belong to package state. Callers of the layer need them, and use these names for them.
type (
	Node     = state.Node
	Inode    = state.Inode
	Presence = state.Presence
)

const (
	Unknown    = state.Unknown
	Hidden     = state.Hidden
	Present    = state.Present
	SizeOfBase = state.SizeOfBase
)

var (
	// ErrBase means that the contents of a file are in the base tree: the caller must read them there, or call CopyUp
	// before it changes them.
	ErrBase = errors.New("file has the contents of the base tree")
	// ErrSourceBase means that the contents of the source file of CopyRange are in the base tree, so the caller must read
	// them there.
	ErrSourceBase = errors.New("source file has the contents of the base tree")
	// ErrDamaged means that stored bytes differ from the bytes that were written. A damaged overlay can still be opened
	// with Options.ReadOnly.
	ErrDamaged = errors.New("overlay is damaged")
	// ErrVersion means that an incompatible version of the program wrote the overlay.
	ErrVersion = wal.ErrVersion
	// ErrInUse means that another process has the overlay open.
	ErrInUse = errors.New("overlay is in use by another process")
	// ErrShares means that contents files of the overlay are in shares, but the directory of the shares is not known.
	ErrShares = errors.New("directory of shared contents is not known")
)

// Options configures Open.
type Options struct {
	// Log receives warnings. If Log is nil, the warnings are dropped.
	Log *zap.Logger
	// ReadOnly opens the overlay without writing anything. If the log is damaged, the records before the damage are used.
	ReadOnly bool
	// ValidBase reports whether the base tree has a node. After power loss, the log is cut before the first record that
	// names a base node that does not exist. A nil ValidBase accepts every node.
	ValidBase func(Node) bool
	// BeforeSync is called before each sync of the log. It syncs the data outside the overlay that log records refer to.
	BeforeSync func() error
	// TakeOver states that the kernel still has the mount of the dead process that served this overlay. With TakeOver, a
	// node without a name survives if the kernel holds a reference to the node, and unanswered requests may arrive again.
	// Without TakeOver, no kernel holds a reference to any node.
	TakeOver bool
	// Knows reports whether the kernel holds a reference to a base node; nil: it holds none.
	Knows func(Node) bool
	// Seed determines the cookies in directories. Cookies remain valid in another process that uses the same seed. The
	// zero Seed stands for a random one.
	Seed state.Seed
	// Shares is the directory of the shares, to which a Sealing moves contents files. It is on the file system of the
	// overlay. If it is "", BeginSeal fails, and so does Open if contents files of the overlay are sealed.
	Shares string
	// Segments are sealed contents files of another overlay. A new overlay uses them, so that Tx.Adopt can add nodes
	// with these contents. If the overlay exists already, its log states which ones it uses.
	Segments []Segment
	// Full is a channel with a buffer of one, which gets an element if a change finds no disk space and Reclaim may free
	// some; nil if nobody receives from it.
	Full chan<- struct{}
	// FS is the file system to use; nil stands for the file system of the operating system. Only tests set this field.
	FS disk.FS

	boot  string        // boot ID of the host; set by tests
	pause time.Duration // time for which the janitor collects work before it starts a round; 0 means one second
	quiet time.Duration // time from the last write to a dirty file until the janitor syncs it; 0 means three seconds
	still bool          // whether nothing runs in the background; set by Check
	idle  int           // maximum number of idle Files that stay open; 0 means maxIdle
}

// Dirty reports whether the contents file of an inode may be larger or have a later mtime than the inode records.
func Dirty(in Inode) bool { return in.Flags&state.FlagDirty != 0 }

// Unsettled reports whether the contents file of an inode, which replaces contents of the base tree, may not be on
// disk.
func Unsettled(in Inode) bool { return in.Flags&state.FlagUnsettled != 0 }

// Carried reports whether a node was adopted from another overlay (Tx.Adopt), and has not changed since.
func Carried(in Inode) bool { return in.Flags&state.FlagCarried != 0 }

// Layer is an open overlay. All methods may be called concurrently.
type Layer struct {
	dir    string
	o      Options
	log    *zap.Logger
	wal    *wal.Log      // write-ahead log; nil until open has opened it
	lock   func()        // releases the lock on the directory
	counts *lookupCounts // the file with the kernel's lookup counts; nil if lookups are counted in memory, without a file

	contents *contents
	files    files

	cut  sync.RWMutex // held shared while contents change, and exclusively by Freeze; taken before File.mu
	pins pins

	rotating sync.Mutex // held during a rotation; taken before mu
	removing sync.Mutex // held while dead contents files are removed; taken after File.mu and before rotating

	mu stateLock
	// mu protects the fields below.
	state  *state.Table
	tx     Tx       // the only update in progress, reused
	broken error    // error that all changes return after log and state have become different; nil before
	next   uint64   // number of the next contents file
	dead   []uint64 // contents files to remove
	pinned []uint64 // dead contents files that are pinned; removed after their last pin
	// nodes without names and lookups whose removal has failed, for the next round of the janitor
	forsaken []Node
	held     int               // number of calls of Hold that were not released; if it is not 0, no node is dropped
	due      map[Node]struct{} // dirty files that the janitor is to sync and mark clean
	faults   map[Node]error    // errors of background syncs; the next fsync of the file returns the error

	searching atomic.Bool // whether the search for orphaned contents files is not complete yet

	janitor janitor
}

// View calls the function f with a consistent state. The function must not block and must not call the layer. Updates
// wait until it returns; other calls of View run concurrently.
func (l *Layer) View(f func(r Reader)) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	f(l.state)
}

// Inode returns the layer's inode of a node, and false if the layer has none.
func (l *Layer) Inode(n Node) (Inode, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.state.Inode(n)
}

// Entry returns the layer's entry for a name in dir: unknown, hidden, or present with its node.
func (l *Layer) Entry(dir Node, name string) (Node, Presence) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.state.Entry(dir, name)
}

// Sync writes every acknowledged change to disk, so that it survives a power cut. It does not write the contents of
// files, which File.Sync does. Sync waits for the disk. In a read-only layer it does nothing.
func (l *Layer) Sync() error {
	if l.o.ReadOnly {
		return nil
	}
	if err := l.beforeSync(); err != nil {
		return err
	}
	err := l.wal.Sync()
	if errors.Is(err, wal.ErrUnsynced) {
		// The kernel reports a write error only once and may have dropped the pages that it could not write, so syncing the
		// same file again proves nothing. compact writes the whole state to a new log.
		return l.janitor.compact()
	}
	return err
}

// beforeSync calls Options.BeforeSync if it is set.
func (l *Layer) beforeSync() error {
	if l.o.BeforeSync == nil {
		return nil
	}
	return l.o.BeforeSync()
}
