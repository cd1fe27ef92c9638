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

// The words of the namespace are those of package state.
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
	// ErrBase means that a file's contents are the base's: read them there, or copy them up before changing them.
	ErrBase = errors.New("contents are the base's")
	// ErrSourceBase is ErrBase of the file that CopyRange reads from.
	ErrSourceBase = errors.New("contents of the source are the base's")
	// ErrDamaged means that bytes are not what was written. Such an overlay can be opened for reading.
	ErrDamaged = errors.New("overlay is damaged")
	// ErrVersion means that another version of the program wrote the overlay.
	ErrVersion = wal.ErrVersion
	// ErrInUse means that another process has the overlay open.
	ErrInUse = errors.New("overlay is in use by another process")
)

// Options of Open.
type Options struct {
	Log *zap.Logger
	// ReadOnly opens what is there without writing anything, the good part of a damaged log too.
	ReadOnly bool
	// ValidBase reports whether the base has a node. After power loss the log ends at the first record that names one
	// which it has not.
	ValidBase func(Node) bool
	// BeforeSync is called before the log is synced: what records name must not be younger on disk than they are.
	BeforeSync func() error
	// TakeOver says that the kernel still has the mount that a dead process served with this overlay: nodes without a name
	// live on if it knows them, and requests may come again. False: no kernel knows anything.
	TakeOver bool
	// Knows reports whether the kernel knows a base node, for a TakeOver.
	Knows func(Node) bool
	// Seed makes the positions in directories; they stay good in another process that has the same. The zero Seed: any.
	Seed state.Seed
	// FS is replaced by tests.
	FS disk.FS

	boot  string        // id of the host's boot, if tests say so
	pause time.Duration // how long the janitor collects work; 0: a second
	quiet time.Duration // how long after the last write a file is settled; 0: three seconds
	still bool          // nothing is done in the background
	idle  int           // files kept open for the next user; 0: maxIdle
}

// Dirty reports whether the content file of an inode may have been written to at a later time than the inode says.
func Dirty(in Inode) bool { return in.Flags&state.FlagDirty != 0 }

// Layer is an open overlay. All methods may be called concurrently.
type Layer struct {
	dir    string
	o      Options
	log    *zap.Logger
	wal    *wal.Log      // nil once a read-only layer has been read
	lock   func()        // gives the directory free
	counts *lookupCounts // nil: lookups are counted in memory

	contents *contents
	files    files

	cut  sync.RWMutex // held shared while contents are changed, whole by Freeze; taken before a File's mu
	pins pins

	rotating sync.Mutex // one rotation at a time; taken before mu
	removing sync.Mutex // one removal of dead contents at a time; taken after a File's mu, before rotating

	mu sync.RWMutex
	// Guarded by mu.
	state    *state.Table
	tx       Tx                // the one update that is under way
	broken   error             // log and state differ: nothing is changed any more
	next     uint64            // the next content's number
	dead     []uint64          // contents to remove
	pinned   []uint64          // as dead, once their pins are released
	forsaken []Node            // nodes without name and look-up that could not be dropped yet
	due      map[Node]struct{} // files to settle
	faults   map[Node]error    // of syncs in the background: the next fsync of the file reports them

	searching atomic.Bool // orphans have not all been found

	wake chan struct{} // the janitor has something to do
	stop chan struct{}
	busy sync.WaitGroup // janitor and orphan search
}

// View calls f with the state as it is. f must not wait for anything, nor call the layer.
func (l *Layer) View(f func(r Reader)) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	f(Reader{l.state})
}

// Inode returns a node's inode if the layer has one.
func (l *Layer) Inode(n Node) (Inode, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.state.Inode(n)
}

// Entry returns what the layer knows of a name.
func (l *Layer) Entry(dir Node, name string) (Node, Presence) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.state.Entry(dir, name)
}

// Sync makes everything that was acknowledged survive a power cut, but for the contents of files.
func (l *Layer) Sync() error {
	if l.o.ReadOnly {
		return nil
	}
	if err := l.beforeSync(); err != nil {
		return err
	}
	err := l.wal.Sync()
	if errors.Is(err, wal.ErrUnsynced) {
		// What the kernel could not write then it may have given up, and would not say so again. A new log holds all.
		return l.compact()
	}
	return err
}

func (l *Layer) beforeSync() error {
	if l.o.BeforeSync == nil {
		return nil
	}
	return l.o.BeforeSync()
}
