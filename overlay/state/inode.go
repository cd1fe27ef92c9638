package state

// Node names a file system object for the lifetime of the overlay. Nodes below 1<<32 are the base tree's. Own nodes of
// the overlay are generation<<32 | slot with generations from 1, so a number is never used twice although its slot is
// reused.
type Node uint64

// Own reports whether the node belongs to the overlay and not to the base tree.
func (n Node) Own() bool { return n>>32 != 0 }

// SizeOfBase is the Size of an inode whose size and contents are the base tree's.
const SizeOfBase = -1

// Flags of an Inode.
const (
	FlagDirty     uint32 = 1 << iota // size and mtime may be older than those of the contents file
	FlagUnsettled                    // the contents file replaces contents of the base tree and was not synced yet
)

// Inode holds the attributes of a node that differs from the base tree.
type Inode struct {
	Node                  Node
	Mode                  uint32 // as st_mode, with S_IFMT
	Nlink, UID, GID, Rdev uint32
	Size                  int64  // in bytes, or SizeOfBase
	Atime, Mtime, Ctime   int64  // in nanoseconds since 1970
	Content               uint64 // number of the contents file; 0: none
	Flags                 uint32 // FlagDirty, FlagUnsettled
	Parent                Node   // for directories the target of "..", for files the directory of the latest name, as a hint
}

// Presence is the overlay's knowledge of a name.
type Presence uint8

const (
	Unknown Presence = iota // the base tree decides
	Hidden                  // absent, even if the base tree has the name
	Present                 // the overlay has an entry for the name
)

// Counter identifies a number that the table stores for its owner.
type Counter uint8

const (
	CounterContents   Counter = iota // upper bound of the contents file numbers in use
	CounterGeneration                // highest generation that free slots may have used; set by the table itself
	CounterUser                      // this counter and those above are free for the owner
	maxCounter        = 8
)

// Totals holds the sizes of a table.
type Totals struct {
	Inodes, Entries, Hidden, Dead, Kept int64
	Bytes                               int64 // memory allocated from the system
}
