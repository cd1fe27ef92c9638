package worktree

import (
	"fmt"
	"strings"

	"github.com/artifactfs/artifactfs/object"
)

// check reads a table that another process wrote and makes it ready to be continued. It believes nothing: every
// number is bounded before it is used, every published record carries its checksum, parents stand before their
// children, so that no path is endless. What was never published is not looked at.
func (t *table) check(root object.ID) error {
	h := *t.header()
	if h != tableHeader {
		return fmt.Errorf("header %q version %d: %w", h.magic, h.version, ErrTable)
	}
	limit := uint64(t.records.len()) / recordSize
	r := t.rec(Root)
	if err := t.checkRecord(Root, r, Root); err != nil {
		return err
	}
	if r.kind != kindDir || r.name != 0 || r.objectID() != root {
		return fmt.Errorf("table is of tree %s, want %s: %w", r.objectID(), root, ErrTable)
	}
	next, nodes, dirs := uint64(Root)+1, int64(1), int64(0)
	for queue := []Node{Root}; len(queue) > 0; queue = queue[1:] {
		dir := queue[0]
		b, ok := t.rec(dir).block()
		if !ok {
			continue
		}
		end := uint64(b.first) + uint64(b.count)
		if b.first <= dir || end > limit {
			return fmt.Errorf("node %d: children %d+%d: %w", dir, b.first, b.count, ErrTable)
		}
		before := ""
		for n := b.first; uint64(n) < end; n++ {
			r := t.rec(n)
			// A record has one parent and is reached only through it, so no two directories share one.
			if err := t.checkRecord(n, r, dir); err != nil {
				return err
			}
			name := t.name(r)
			if name <= before || checkName(name) != nil {
				return fmt.Errorf("node %d: name %q behind %q: %w", n, name, before, ErrTable)
			}
			before = name
			t.nextName = max(t.nextName, r.name>>8+r.name&maxName)
			if r.kind == kindDir {
				queue = append(queue, n)
			}
		}
		next, nodes, dirs = max(next, end), nodes+int64(b.count), dirs+1
	}
	if uint64(nodes) != next-1 { // blocks follow each other without a gap, and a torn one was the last
		return fmt.Errorf("%d nodes below %d: %w", nodes, next, ErrTable)
	}
	t.next.Store(next)
	t.nodes.Store(nodes)
	t.dirs.Store(dirs)
	return nil
}

// checkRecord makes sure that a record can be used: its numbers point into the files, and its checksum is right.
func (t *table) checkRecord(n Node, r *record, parent Node) error {
	off, length := r.name>>8, r.name&maxName
	if r.kind < kindFile || r.kind > kindGitlink || Node(r.parent) != parent || off%chunkSize+length > chunkSize || off+length > uint64(t.names.len()) {
		return fmt.Errorf("node %d: kind %d, parent %d, name at %d: %w", n, r.kind, r.parent, off, ErrTable)
	}
	id, err := object.FromBytes(r.id[:min(int(r.idLen), len(r.id))])
	if (err != nil || int(r.idLen) != len(id.Bytes())) && (n != Root || r.idLen != 0) {
		return fmt.Errorf("node %d: object id of %d bytes: %w", n, r.idLen, ErrTable)
	}
	if size, ok := r.size(); ok && !r.kind.isDir() && size < 0 {
		return fmt.Errorf("node %d: size %d: %w", n, size, ErrTable)
	}
	if sum := r.sum(t.name(r)); sum != r.crc {
		return fmt.Errorf("node %d: checksum %08x, want %08x: %w", n, sum, r.crc, ErrTable)
	}
	return nil
}

// checkEntries makes sure that entries can be looked up: names that a file system can show, sorted and unique,
// and modes that have a kind. Parsed trees fulfil it but for the order.
func checkEntries(entries []object.TreeEntry) error {
	for i, e := range entries {
		if err := checkName(e.Name); err != nil {
			return err
		}
		if _, ok := kindOf(e.Mode); !ok {
			return fmt.Errorf("entry %q: unknown mode %o", e.Name, uint32(e.Mode))
		}
		if i > 0 && entries[i-1].Name >= e.Name {
			return fmt.Errorf("entry %q: duplicate", e.Name)
		}
	}
	return nil
}

func checkName(name string) error {
	if name == "" || name == "." || name == ".." || len(name) > maxName || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("entry %.40q: no file can have this name", name)
	}
	return nil
}
