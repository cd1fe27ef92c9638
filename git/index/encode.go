package index

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"io"
	"strconv"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/varint"
)

// These are the bits of the flags of an entry (gitformat-index(5)).
const (
	flagAssumeValid  = 1 << 15
	flagExtended     = 1 << 14
	stageShift       = 12
	maxNameInFlags   = 1<<12 - 1
	flagSkipWorktree = 1 << 14 // part of the extended flags, which exist if flagExtended is set
	flagIntentToAdd  = 1 << 13 // part of the extended flags
)

const (
	headerSize = 12           // length of the file header in bytes
	statSize   = 36           // length of the stat data of an entry in bytes
	fixedSize  = statSize + 4 // length of stat data and mode in bytes
	// blockSize is the number of entries that one thread of git reads (IEOT).
	blockSize = 10_000
)

// checksum returns the hash for the end of an index file. It detects accidental damage and not attacks, so SHA-1
// without collision detection is sufficient.
func checksum(f object.Format) hash.Hash {
	if f == object.SHA256 {
		return sha256.New()
	}
	return sha1.New()
}

// WriteTo writes the index file. It returns an error if git would refuse to read the index.
func (x *Index) WriteTo(w io.Writer) (int64, error) {
	if err := x.check(); err != nil {
		return 0, fmt.Errorf("write index: %w", err)
	}
	version := x.version()
	e := encoder{format: x.Format, heads: checksum(x.Format)}
	path := 64 // estimated size of an entry in bytes: a path of average length, flags and padding
	if version == 4 {
		path = 32 // in version 4, an entry contains only the difference from the previous path
	}
	e.out = make([]byte, 0, headerSize+len(x.Entries)*(fixedSize+x.Format.Size()+path))
	e.out = append(e.out, "DIRC"...)
	e.out = binary.BigEndian.AppendUint32(e.out, version)
	e.out = binary.BigEndian.AppendUint32(e.out, uint32(len(x.Entries)))
	blocks := e.entries(x.Entries, version)
	end := len(e.out)
	// Several threads cannot read a single block, so IEOT is omitted.
	if len(blocks) > 1 {
		e.extension("IEOT", blocks.appendTo)
	}
	if x.Tree != nil {
		e.extension("TREE", x.Tree.appendTo)
	}
	if len(x.Undo) > 0 {
		e.extension("REUC", func(out []byte) []byte { return append(out, x.Undo...) })
	}
	if x.Untracked != nil {
		e.extension("UNTR", func(out []byte) []byte { return x.Untracked.appendTo(out, x.Format) })
	}
	if x.Token != "" {
		e.extension("FSMN", x.appendMonitor)
	}
	if x.Sparse {
		e.extension("sdir", func(out []byte) []byte { return out })
	}
	// EOIE is the last extension, because git looks for it at a fixed distance from the end of the file
	if len(blocks) > 1 {
		heads := e.heads.Sum(nil)
		e.extension("EOIE", func(out []byte) []byte {
			return append(binary.BigEndian.AppendUint32(out, uint32(end)), heads...)
		})
	}
	sum := checksum(x.Format)
	sum.Write(e.out)
	n, err := w.Write(sum.Sum(e.out))
	if err != nil {
		err = fmt.Errorf("write index: %w", err)
	}
	return int64(n), err
}

// version returns the version to write: 4 if Version is 4, otherwise the lowest version that can represent all entries.
func (x *Index) version() uint32 {
	if x.Version == 4 {
		return 4
	}
	for i := range x.Entries {
		if x.Entries[i].extended() != 0 {
			return 3
		}
	}
	return 2
}

// extended returns the extended flags of an entry, or 0 if no extended flag is set.
func (e *Entry) extended() uint16 {
	var f uint16
	if e.SkipWorktree {
		f |= flagSkipWorktree
	}
	if e.IntentToAdd {
		f |= flagIntentToAdd
	}
	return f
}

// check returns an error if git would refuse to read the index, because an entry has an invalid path or id, or because
// the entries are not sorted.
func (x *Index) check() error {
	for i := range x.Entries {
		e := &x.Entries[i]
		switch {
		case e.Path == "" || len(e.Path) > maxPath:
			return fmt.Errorf("path of an entry has %d bytes, want 1 to 4096", len(e.Path))
		case e.ID.Format() != x.Format || e.ID.IsZero():
			return fmt.Errorf("entry %q has no %s object ID", e.Path, x.Format)
		case i > 0 && compare(&x.Entries[i-1], e) >= 0:
			return fmt.Errorf("entry %q comes after %q, which is the wrong order", e.Path, x.Entries[i-1].Path)
		}
	}
	return nil
}

// compare compares two entries in git's order: by path, then by stage.
func compare(a, b *Entry) int {
	switch {
	case a.Path < b.Path:
		return -1
	case a.Path > b.Path:
		return 1
	}
	return int(a.Stage) - int(b.Stage)
}

// encoder appends the parts of an index file to the slice out.
type encoder struct {
	format object.Format
	out    []byte
	heads  hash.Hash // hash over the names and lengths of the extensions, for EOIE
}

// extension appends an extension: its name, its length, and the contents that body appends.
func (e *encoder) extension(name string, body func([]byte) []byte) {
	at := len(e.out)
	e.out = append(append(e.out, name...), 0, 0, 0, 0)
	e.out = body(e.out)
	// The length is known only after the contents were appended.
	binary.BigEndian.PutUint32(e.out[at+4:], uint32(len(e.out)-at-8))
	e.heads.Write(e.out[at : at+8])
}

// block is a range of entries that a thread can read without reading the entries before this range (IEOT).
// offset is the position in bytes of the first entry, and count is the number of entries
type block struct{ offset, count uint32 }

// blocks is the contents of the IEOT extension.
type blocks []block

// appendTo appends the contents of IEOT, version 1.
func (b blocks) appendTo(out []byte) []byte {
	out = binary.BigEndian.AppendUint32(out, 1)
	for _, k := range b {
		out = binary.BigEndian.AppendUint32(out, k.offset)
		out = binary.BigEndian.AppendUint32(out, k.count)
	}
	return out
}

// entries appends all entries and returns the blocks into which they are divided.
func (e *encoder) entries(entries []Entry, version uint32) blocks {
	var all blocks
	before := ""
	for i := range entries {
		alone := i%blockSize == 0 // a thread that starts at this entry does not know the path of the previous entry
		if alone {
			all = append(all, block{offset: uint32(len(e.out))})
		}
		all[len(all)-1].count++
		e.entry(&entries[i], version, before, alone)
		before = entries[i].Path
	}
	return all
}

// entry appends the entry n. The parameter before is the path of the previous entry. If alone is true, the path must be
// stored as a whole, because a thread may start to read at this entry.
func (e *encoder) entry(n *Entry, version uint32, before string, alone bool) {
	start := len(e.out)
	e.out = n.Stat.appendTo(e.out, uint32(n.Mode))
	e.out = append(e.out, n.ID.Bytes()...)
	// If a path is too long for the length field, the field contains the highest value that fits into it. Readers then
	// search for the NUL at the end of the path.
	flags := uint16(min(len(n.Path), maxNameInFlags)) | uint16(n.Stage)<<stageShift
	if n.AssumeValid {
		flags |= flagAssumeValid
	}
	extended := n.extended()
	if extended != 0 {
		flags |= flagExtended
	}
	e.out = binary.BigEndian.AppendUint16(e.out, flags)
	if extended != 0 {
		e.out = binary.BigEndian.AppendUint16(e.out, extended)
	}
	if version == 4 {
		same := 0
		for !alone && same < len(before) && same < len(n.Path) && before[same] == n.Path[same] {
			same++
		}
		e.out = varint.Append(e.out, uint64(len(before)-same))
		e.out = append(append(e.out, n.Path[same:]...), 0)
		return
	}
	e.out = append(e.out, n.Path...)
	for pad := 8 - (len(e.out)-start)%8; pad > 0; pad-- {
		e.out = append(e.out, 0)
	}
}

// appendTo appends stat data. If mode is not 0, appendTo inserts the mode after the inode number, as the format of an
// entry requires.
func (s *Stat) appendTo(out []byte, mode uint32) []byte {
	for _, t := range []int64{s.Ctime, s.Mtime} {
		out = binary.BigEndian.AppendUint32(out, uint32(t/1e9))
		out = binary.BigEndian.AppendUint32(out, uint32(t%1e9))
	}
	out = binary.BigEndian.AppendUint32(out, s.Dev)
	out = binary.BigEndian.AppendUint32(out, s.Ino)
	if mode != 0 {
		out = binary.BigEndian.AppendUint32(out, mode)
	}
	out = binary.BigEndian.AppendUint32(out, s.UID)
	out = binary.BigEndian.AppendUint32(out, s.GID)
	return binary.BigEndian.AppendUint32(out, s.Size)
}

// appendTo appends a tree and the trees below it. git reads them fastest if Sub is sorted by compareTrees.
func (t *Tree) appendTo(out []byte) []byte {
	out = append(append(out, t.Name...), 0)
	count := max(t.Count, -1)
	out = strconv.AppendInt(out, int64(count), 10)
	out = append(out, ' ')
	out = strconv.AppendInt(out, int64(len(t.Sub)), 10)
	out = append(out, '\n')
	if count >= 0 {
		out = append(out, t.ID.Bytes()...)
	}
	for _, s := range t.Sub {
		out = s.appendTo(out)
	}
	return out
}

// appendMonitor appends the contents of FSMN, version 2: the token, and a bitmap of the entries whose Valid is false.
func (x *Index) appendMonitor(out []byte) []byte {
	out = binary.BigEndian.AppendUint32(out, 2)
	out = append(append(out, x.Token...), 0)
	// The length of the bitmap is inserted when the bitmap is complete.
	at := len(out)
	out = append(out, 0, 0, 0, 0)
	var dirty bitmap
	for i := range x.Entries {
		// A submodule is never valid; see Entry.Valid.
		if e := &x.Entries[i]; !e.Valid || e.Mode == object.ModeGitlink {
			dirty.set(i)
		}
	}
	out = dirty.appendTo(out)
	binary.BigEndian.PutUint32(out[at:], uint32(len(out)-at-4))
	return out
}
