package index

import (
	"encoding/binary"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/varint"
)

// Values of Untracked.Flags (git's dir.h). With ShowNormal, git lists a directory without tracked files as one name,
// and does not list empty directories. With ShowAll, git lists every file.
const (
	ShowAll    = 0
	ShowNormal = 1<<1 | 1<<2
)

// Ident returns the value of Untracked.Ident that git expects for a working tree on Linux. workTree is the path of the
// working tree, without symbolic links.
func Ident(workTree string) string { return "Location " + workTree + ", system Linux" }

// ExcludeID returns the id that git computes for a file with ignore rules: the id of a blob with the contents of the
// file, followed by a line feed unless the file is empty.
func ExcludeID(f object.Format, content []byte) object.ID {
	if len(content) > 0 {
		// The slice is limited to its length, so that append copies the contents instead of writing into the caller's array.
		content = append(content[:len(content):len(content)], '\n')
	}
	id, err := object.Hash(f, object.Blob, content)
	if err != nil { // with a zero id, git finds that the id is different and reads the file
		return object.ID{}
	}
	return id
}

// appendID appends an id, or zeros if id is zero.
func appendID(out []byte, id object.ID, f object.Format) []byte {
	if id.IsZero() {
		return append(out, make([]byte, f.Size())...)
	}
	return append(out, id.Bytes()...)
}

// appendTo appends the contents of the UNTR extension.
func (u *Untracked) appendTo(out []byte, f object.Format) []byte {
	out = varint.Append(out, uint64(len(u.Ident)+1))
	out = append(append(out, u.Ident...), 0)
	out = u.InfoExclude.Stat.appendTo(out, 0)
	out = u.ExcludesFile.Stat.appendTo(out, 0)
	out = binary.BigEndian.AppendUint32(out, u.Flags)
	out = appendID(out, u.InfoExclude.ID, f)
	out = appendID(out, u.ExcludesFile.ID, f)
	out = append(append(out, u.PerDirectory...), 0)
	if u.Root == nil {
		return append(out, 0)
	}
	var w directoryWriter
	w.directory(u.Root)
	out = varint.Append(out, uint64(w.n))
	out = append(out, w.names...)
	out = w.valid.appendTo(out)
	out = w.checkOnly.appendTo(out)
	out = w.ignored.appendTo(out)
	out = append(out, w.stats...)
	out = append(out, w.ids...)
	return append(out, 0)
}

// directoryWriter collects the parts of UNTR, which contains each field for all directories before the next field.
type directoryWriter struct {
	n                         int // number of directories
	names, stats, ids         []byte
	valid, checkOnly, ignored bitmap
}

// directory adds a directory and the directories below it, depth first.
func (w *directoryWriter) directory(d *Directory) {
	files := d.Files
	// git expects names of untracked files only in valid directories.
	if !d.Valid {
		files = nil
	}
	if d.Valid {
		w.valid.set(w.n)
		w.stats = d.Stat.appendTo(w.stats, 0)
		if d.CheckOnly {
			w.checkOnly.set(w.n)
		}
	}
	if !d.Ignore.IsZero() {
		w.ignored.set(w.n)
		w.ids = append(w.ids, d.Ignore.Bytes()...)
	}
	w.n++
	w.names = varint.Append(w.names, uint64(len(files)))
	w.names = varint.Append(w.names, uint64(len(d.Sub)))
	w.names = append(append(w.names, d.Name...), 0)
	for _, name := range files {
		w.names = append(append(w.names, name...), 0)
	}
	for _, s := range d.Sub {
		w.directory(s)
	}
}
