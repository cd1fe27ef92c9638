package state

// Node identifies a file system object for the lifetime of the overlay. Nodes below 1<<32 belong to the base tree. The
// overlay's own nodes are generation<<32 | slot, with generations from 1: when a slot is used again, its generation
// rises, so no node number is used twice.
type Node uint64

// Own reports whether the node belongs to the overlay. It returns false for a node of the base tree.
func (n Node) Own() bool { return n>>32 != 0 }

// SizeOfBase is the Size of an inode whose size and contents are those of the base tree.
const SizeOfBase = -1

// Flags of an Inode.
const (
	FlagDirty     uint32 = 1 << iota // size and mtime may be older than those of the contents file
	FlagUnsettled                    // the contents file replaces contents of the base tree and was not synced yet
	FlagWritten                      // the inode is dirty, and its mtime is that of the contents file if that is later
	FlagTimes                        // a base node was stored for its times, and was not changed since
	FlagCarried                      // the node was adopted from another overlay, and has not changed since
)

// Inode holds the attributes of a node that were created or changed in the overlay.
type Inode struct {
	Node                  Node
	Mode                  uint32 // type and permissions, as in st_mode
	Nlink, UID, GID, Rdev uint32
	Size                  int64  // size in bytes, or SizeOfBase
	Atime, Mtime, Ctime   int64  // times in nanoseconds since 1970
	Content               uint64 // number of the contents file; 0 if there is none
	Flags                 uint32 // FlagDirty to FlagCarried
	// of a directory: the target of ".."; of a file: the directory of its latest name, used as a hint
	Parent Node
}

// Presence is the overlay's record about a name in a directory.
type Presence uint8

const (
	Unknown Presence = iota // nothing is recorded, so the name exists if the base tree has it
	Hidden                  // the name does not exist, even if the base tree has it
	Present                 // the overlay has an entry for the name
)

// Counter identifies a number that the table stores on behalf of its owner.
type Counter uint8

const (
	CounterContents   Counter = iota // upper bound of the numbers of contents files in use
	CounterGeneration                // highest generation that free slots may have used; the table itself sets it
	CounterUser                      // first of the counters that the owner can use freely
	maxCounter                = 8

	// CounterLast is a counter for the owner that Dump adds behind everything else. If a damaged log is cut, and the
	// counter remains, all records of base nodes remain that were put before the counter was set.
	CounterLast Counter = maxCounter - 1
)

// Totals holds the numbers of objects in a table, and its memory use.
type Totals struct {
	Inodes, Entries, Hidden, Dead, Kept int64
	Bytes                               int64 // memory allocated from the system
}
