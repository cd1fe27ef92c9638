package overlay

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/overlay/state"
	"github.com/artifactfs/artifactfs/overlay/wal"
)

// These types and values are those of package state, under the names that callers of the layer use.
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
	// ErrBase means that a file has the base tree's contents: the caller must read them there, or call CopyUp before it
	// changes them.
	ErrBase = errors.New("contents are the base's")
	// ErrSourceBase is ErrBase for the file that CopyRange reads from.
	ErrSourceBase = errors.New("contents of the source are the base's")
	// ErrDamaged means that stored bytes differ from those that were written. Such an overlay can be opened with
	// Options.ReadOnly.
	ErrDamaged = errors.New("overlay is damaged")
	// ErrVersion means that an incompatible version of the program wrote the overlay.
	ErrVersion = wal.ErrVersion
	// ErrInUse means that another process has the overlay open.
	ErrInUse = errors.New("overlay is in use by another process")
)

// Options configures Open.
type Options struct {
	// Log receives warnings; nil: they are dropped.
	Log *zap.Logger
	// ReadOnly opens the overlay without writing anything; of a damaged log it uses the records before the damage.
	ReadOnly bool
	// ValidBase reports whether the base tree has a node. After power loss, the log ends before the first record that
	// names a base node which does not exist.
	ValidBase func(Node) bool
	// BeforeSync is called before the log is synced. It syncs the data outside the overlay that log records refer to.
	BeforeSync func() error
	// TakeOver states that the kernel still has the mount of the dead process that served this overlay: nodes without a
	// name survive if the kernel knows them, and unanswered requests may arrive again. Otherwise no kernel knows any
	// node.
	TakeOver bool
	// Knows reports whether the kernel knows a base node. It is used with TakeOver only.
	Knows func(Node) bool
	// Seed determines the cookies in directories. Cookies remain valid in another process with the same seed. The zero
	// Seed: a random one.
	Seed state.Seed
	// FS is the file system to use, replaced by tests; nil: that of the operating system.
	FS disk.FS

	boot  string        // boot ID of the host; tests set it
	pause time.Duration // how long the janitor collects work before a round; 0: one second
	quiet time.Duration // how long after its last write a dirty file is synced; 0: three seconds
	still bool          // no work in the background, for Check
	idle  int           // number of idle Files kept open; 0: maxIdle
}

// Dirty reports whether the contents file of an inode may be larger or younger than the inode records.
func Dirty(in Inode) bool { return in.Flags&state.FlagDirty != 0 }

// Layer is an open overlay. All methods may be called concurrently.
type Layer struct {
	dir    string
	o      Options
	log    *zap.Logger
	wal    *wal.Log      // nil after a read-only layer was read
	lock   func()        // releases the directory's lock
	counts *lookupCounts // nil: lookups are counted in memory

	contents *contents
	files    files

	cut  sync.RWMutex // held shared while contents change, exclusively by Freeze; taken before File.mu
	pins pins

	rotating sync.Mutex // held during a rotation; taken before mu
	removing sync.Mutex // held while dead contents files are removed; taken after File.mu, before rotating

	mu sync.RWMutex
	// Guarded by mu.
	state    *state.Table
	tx       Tx                // the only update in progress, reused
	broken   error             // set when log and state differ: all changes fail from then on
	next     uint64            // number of the next contents file
	dead     []uint64          // contents files to remove
	pinned   []uint64          // dead contents files that are pinned; removed after their last pin
	forsaken []Node            // nodes without name and lookups that could not be dropped yet
	due      map[Node]struct{} // dirty files to sync and clean
	faults   map[Node]error    // errors of background syncs; the next fsync of the file returns them

	searching atomic.Bool // the search for orphaned contents files has not completed

	wake chan struct{}  // wakes the janitor
	stop chan struct{}  // closed by Close
	busy sync.WaitGroup // janitor and findOrphans
}

// View calls f with a consistent state. f must not block and must not call the layer. Updates wait until f returns;
// other calls of View run concurrently.
func (l *Layer) View(f func(r Reader)) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	f(Reader{l.state})
}

// Inode returns a node's inode; false: the layer has none.
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

// Sync makes every acknowledged change survive a power cut, except the contents of files, which File.Sync writes. It
// waits for the disk. A read-only layer has nothing to sync.
func (l *Layer) Sync() error {
	if l.o.ReadOnly {
		return nil
	}
	if err := l.beforeSync(); err != nil {
		return err
	}
	err := l.wal.Sync()
	if errors.Is(err, wal.ErrUnsynced) {
		// The kernel may have dropped the pages that it could not write, and reports the error only once. A new log
		// contains everything.
		return l.compact()
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
