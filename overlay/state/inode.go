package state

// Node names a file for as long as the mount's work exists. Nodes below 1<<32 are the base's; the overlay's own are
// generation<<32 | slot, generation from 1, so that a number is never used twice although its memory is.
type Node uint64

// Own reports whether a node is not the base's.
func (n Node) Own() bool { return n>>32 != 0 }

// SizeOfBase as an inode's size says that its size and contents are the base's.
const SizeOfBase = -1

// Flags of an inode.
const (
	FlagDirty     uint32 = 1 << iota // size and times may be behind the content file
	FlagUnsettled                    // the content has taken the base's place and is not synced yet
)

// Inode is what is known of a node that differs from the base.
type Inode struct {
	Node                  Node
	Mode                  uint32 // with S_IFMT
	Nlink, UID, GID, Rdev uint32
	Size                  int64  // bytes, or SizeOfBase
	Atime, Mtime, Ctime   int64  // ns since 1970
	Content               uint64 // number of the content file; 0: none
	Flags                 uint32
	Parent                Node // of directories for "..", of files the last one, as a hint
}

// Presence is what the overlay has of a name.
type Presence uint8

const (
	Unknown Presence = iota // ask the base
	Hidden                  // the base may have it; it is gone
	Present
)

// Counter is a number that the table keeps for its owner.
type Counter uint8

const (
	CounterContents   Counter = iota // content numbers below it may be in use
	CounterGeneration                // generations up to it may have been used by slots that are free; the table's own
	CounterUser                      // this and those above are free for the owner
	maxCounter        = 8
)

// Totals of a table.
type Totals struct {
	Inodes, Entries, Hidden, Dead, Kept int64
	Bytes                               int64 // memory taken from the system
}
