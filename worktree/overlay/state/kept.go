package state

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Kept records a file or symbolic link that lost its name or its contents before a checkpoint stored it. The table
// stores the record, but does not act on it.
type Kept struct {
	ID       uint64 // assigned by the owner, never 0
	Content  uint64 // number of a contents file that is dead, or whose node has no name; 0 for a symbolic link
	Size     int64  // size of the contents in bytes
	Mode     uint32 // type and permissions, as in st_mode
	At       int64  // time of the removal or change, in nanoseconds since 1970
	Unlinked bool   // whether the file was removed, not overwritten
	Copied   bool   // whether Content is the number of a copy that was not synced
	Path     string // path relative to the root of the mount
	Target   string // target of a symbolic link
}

// MaxKeptPath is the maximum length in bytes of Kept.Path.
const MaxKeptPath = 4096

const (
	keptUnlinked = 1 << iota
	keptCopied
	keptFlags = 1<<iota - 1
)

// Keep adds a Kept record, or replaces the record with the same ID.
func (b *Batch) Keep(k Kept) {
	b.number(putPreserved, k.ID)
	b.uint(k.Content)
	b.uint(uint64(k.Size))
	b.uint(uint64(k.Mode))
	b.uint(uint64(k.At))
	flags := uint64(0)
	if k.Unlinked {
		flags |= keptUnlinked
	}
	if k.Copied {
		flags |= keptCopied
	}
	b.uint(flags)
	b.string(k.Path)
	b.string(k.Target)
	if k.Size < 0 || k.At < 0 || k.Path == "" || len(k.Path) > MaxKeptPath || len(k.Target) > maxTarget {
		b.fail("kept file %d: invalid length: size %d, path %d bytes, link target %d bytes", k.ID, k.Size, len(k.Path),
			len(k.Target))
	}
}

// Unkeep removes all Kept records with IDs from first to last, inclusive.
func (b *Batch) Unkeep(first, last uint64) {
	b.number(putReleased, first)
	b.uint(last)
}

// kept decodes a Kept record, whose strings point into the batch.
func (d *decoder) kept() (k Kept) {
	k.ID = d.uint(1<<64 - 1)
	k.Content = d.uint(1<<64 - 1)
	k.Size = int64(d.uint(1<<63 - 1))
	k.Mode = uint32(d.uint(1<<32 - 1))
	k.At = int64(d.uint(1<<63 - 1))
	flags := d.uint(keptFlags)
	k.Unlinked, k.Copied = flags&keptUnlinked != 0, flags&keptCopied != 0
	k.Path, k.Target = d.text(MaxKeptPath), d.text(maxTarget)
	d.bad = d.bad || k.ID == 0 || k.Path == ""
	return k
}

// Kept returns the Kept records, sorted by ID.
func (t *Table) Kept() []Kept {
	return slices.SortedFunc(maps.Values(t.kept), func(a, b Kept) int { return cmp.Compare(a.ID, b.ID) })
}

// keptRecords holds the Kept records of a Table by their IDs. It has no lock: the rules of Table apply.
type keptRecords map[uint64]Kept

// add stores a Kept record, and replaces the record with the same ID.
func (m *keptRecords) add(k Kept) {
	// the strings point into the batch, whose memory is reused
	k.Path, k.Target = strings.Clone(k.Path), strings.Clone(k.Target)
	if *m == nil {
		*m = keptRecords{}
	}
	(*m)[k.ID] = k
}

// remove removes the Kept records with IDs from first to last, inclusive.
func (m *keptRecords) remove(first, last uint64) {
	if first == last {
		delete(*m, first)
		return
	}
	maps.DeleteFunc(*m, func(id uint64, _ Kept) bool { return first <= id && id <= last })
}
