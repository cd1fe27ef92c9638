package inode

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
)

// check reads a table that another process has written, and prepares it for use. It checks every number in the file
// before it uses the number. Published records have a valid checksum. Parents have lower numbers than their children,
// so that no path contains a cycle. Records that were never published are not read. A power loss may have destroyed the
// records whose number is at least lossy. An invalid block that contains such a record is dropped; any other invalid
// block is an error. If lossy is maxNode, no record can be lost.
func (t *Table) check(root object.ID, lossy uint64) error {
	if err := t.checkStart(root); err != nil {
		return err
	}
	if err := t.checkRoots(lossy); err != nil {
		return err
	}
	blocks := []Block{{Root, 1}}
	queue := []Node{Root}
	for _, n := range t.roots {
		blocks, queue = append(blocks, Block{n, 1}), append(queue, n)
	}
	for ; len(queue) > 0; queue = queue[1:] {
		dir := queue[0]
		b, ok := t.At(dir).Block()
		if !ok {
			continue
		}
		if err := t.checkBlock(dir, b); err != nil {
			if uint64(b.First)+uint64(b.Count) <= lossy {
				return err
			}
			t.At(dir).state.Store(0)
			continue
		}
		blocks = append(blocks, b)
		for n := b.First; n < b.First+Node(b.Count); n++ {
			r := t.At(n)
			t.nextName = max(t.nextName, r.name>>8+r.name&maxName)
			if r.kind == KindDir {
				queue = append(queue, n)
			}
		}
	}
	return t.adopt(blocks, lossy)
}

// checkStart checks that the file is a table, and that it belongs to the base tree.
func (t *Table) checkStart(root object.ID) error {
	h := t.header()
	if h.magic != tableHeader.magic || h.version != tableHeader.version || h.size != tableHeader.size {
		return fmt.Errorf("check header %q of version %d: %w", h.magic, h.version, ErrTable)
	}
	r := t.At(Root)
	if err := t.checkRecord(Root, r, Root); err != nil {
		return err
	}
	if r.kind != KindDir || r.name != 0 || r.ObjectID() != root {
		return fmt.Errorf("table is of tree %s, want %s: %w", r.ObjectID(), root, ErrTable)
	}
	return nil
}

// checkBlock checks the records of a directory's children. The field parent of each record must be the number of the
// directory, so two directories cannot share a record.
func (t *Table) checkBlock(dir Node, b Block) error {
	end := uint64(b.First) + uint64(b.Count)
	if b.First <= dir || end > uint64(t.records.Len())/recordSize {
		return fmt.Errorf("node %d: invalid range of children %d+%d: %w", dir, b.First, b.Count, ErrTable)
	}
	before := ""
	for n := b.First; uint64(n) < end; n++ {
		r := t.At(n)
		if err := t.checkRecord(n, r, dir); err != nil {
			return err
		}
		name := t.Name(r)
		if name <= before || CheckName(name) != nil {
			return fmt.Errorf("node %d: name %q is not sorted after %q: %w", n, name, before, ErrTable)
		}
		before = name
	}
	return nil
}

// adopt sets the length of the table to the end of the last valid block. It clears the records between valid blocks:
// their directory was lost in a power loss. Nodes with numbers below lossy were synced before, and if one of them has
// no directory, adopt returns ErrTable. Unless this process takes the mount over, adopt resets the lookup counts.
func (t *Table) adopt(blocks []Block, lossy uint64) error {
	slices.SortFunc(blocks, func(a, b Block) int { return cmp.Compare(a.First, b.First) })
	next, nodes := Root, 0
	for _, b := range blocks {
		for ; next < b.First; next++ {
			r := t.At(next)
			if r.kind != 0 && uint64(next) < lossy {
				return fmt.Errorf("node %d: no directory contains it: %w", next, ErrTable)
			}
			*r = Record{}
		}
		for ; next < b.First+Node(b.Count); next++ {
			// compare before the store, because a store makes the page dirty
			if r := t.At(next); !t.kernel.continued && r.lookups.Load() != 0 {
				r.lookups.Store(0)
			}
		}
		nodes += b.Count
	}
	t.next.Store(uint64(next))
	t.nodes.Store(int64(nodes))
	t.dirs.Store(int64(len(blocks) - 1 - len(t.roots)))
	return nil
}

// checkRecord checks that the numbers in a record refer to positions within the files, and that the checksum of the
// record is correct.
func (t *Table) checkRecord(n Node, r *Record, parent Node) error {
	off, length := r.name>>8, r.name&maxName
	if r.kind < KindFile || r.kind > KindGitlink || Node(r.parent) != parent || off%chunkSize+length > chunkSize ||
		off+length > uint64(t.names.Len()) {
		return fmt.Errorf("node %d: invalid kind %d, parent %d or name offset %d: %w", n, r.kind, r.parent, off, ErrTable)
	}
	id, err := object.FromBytes(r.id[:min(int(r.idLen), len(r.id))])
	if (err != nil || int(r.idLen) != len(id.Bytes())) && (n != Root || r.idLen != 0) {
		return fmt.Errorf("node %d: invalid object id of %d bytes: %w", n, r.idLen, ErrTable)
	}
	if size, ok := r.Size(); ok && !r.kind.IsDir() && size < 0 {
		return fmt.Errorf("node %d: invalid size %d: %w", n, size, ErrTable)
	}
	if sum := r.sum(t.Name(r)); sum != r.crc {
		return fmt.Errorf("node %d: checksum %08x, want %08x: %w", n, sum, r.crc, ErrTable)
	}
	return nil
}

// checkEntries checks that the entries of a tree can be added as a block: their names must be valid for a file system,
// sorted and unique, and their modes must correspond to a Kind. Trees from object.ParseTree satisfy these conditions,
// except that their order is different.
func checkEntries(entries []object.TreeEntry) error {
	for i, e := range entries {
		if err := CheckName(e.Name); err != nil {
			return err
		}
		if _, ok := KindOf(e.Mode); !ok {
			return fmt.Errorf("entry %q: unknown mode %o", e.Name, uint32(e.Mode))
		}
		if i > 0 && entries[i-1].Name >= e.Name {
			return fmt.Errorf("entry %q: occurs twice", e.Name)
		}
	}
	return nil
}

// CheckName returns an error if name is not valid as the name of a file.
func CheckName(name string) error {
	if name == "" || name == "." || name == ".." || len(name) > maxName || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("entry %.40q: no file can have this name", name)
	}
	return nil
}
