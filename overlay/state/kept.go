package state

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Kept is a file or symbolic link that lost its name or its contents and that a checkpoint has yet to hold. The table
// stores it and gives it no meaning.
type Kept struct {
	ID       uint64 // never 0; the owner counts them
	Content  uint64 // number of a content that is dead, or whose node has no name; 0 of a symbolic link
	Size     int64  // bytes of it
	Mode     uint32 // as in st_mode
	At       int64  // when it happened, nanoseconds since 1970
	Unlinked bool   // it lost its name, and was not overwritten
	Copied   bool   // Content is a copy, which has not been synced
	Path     string // relative to the root
	Target   string // of a symbolic link
}

// MaxKeptPath is the length of the longest path of a Kept, in bytes.
const MaxKeptPath = 4096

const (
	keptUnlinked = 1 << iota
	keptCopied
	keptFlags = 1<<iota - 1
)

// Keep adds a Kept, or replaces the one with its ID.
func (b *Batch) Keep(k Kept) {
	b.number(putKept, k.ID)
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
		b.fail("kept file %d: %d bytes, path of %d bytes, target of %d", k.ID, k.Size, len(k.Path), len(k.Target))
	}
}

// Unkeep removes all Kept whose IDs are from first to last.
func (b *Batch) Unkeep(first, last uint64) {
	b.number(putUnkept, first)
	b.uint(last)
}

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

// Kept returns what is kept, in the order of IDs.
func (t *Table) Kept() []Kept {
	return slices.SortedFunc(maps.Values(t.kept), func(a, b Kept) int { return cmp.Compare(a.ID, b.ID) })
}

func (t *Table) keep(k Kept) {
	k.Path, k.Target = strings.Clone(k.Path), strings.Clone(k.Target) // they lie in the batch
	if t.kept == nil {
		t.kept = map[uint64]Kept{}
	}
	t.kept[k.ID] = k
}

func (t *Table) unkeep(first, last uint64) {
	if first == last {
		delete(t.kept, first)
		return
	}
	maps.DeleteFunc(t.kept, func(id uint64, _ Kept) bool { return first <= id && id <= last })
}
