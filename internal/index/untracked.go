package index

import (
	"encoding/binary"

	"github.com/artifactfs/artifactfs/internal/varint"
	"github.com/artifactfs/artifactfs/object"
)

// Flags of Untracked (git's dir.h): directories without tracked files are listed as one name, and empty ones not at all.
const (
	ShowAll    = 0
	ShowNormal = 1<<1 | 1<<2
)

// Ident is what Untracked.Ident has to be for a working tree, by its real path, on this system.
func Ident(workTree string) string { return "Location " + workTree + ", system Linux" }

// ExcludeID is the id that git gives the content of info/exclude or core.excludesFile: of the text as it reads it, with a
// line end of its own behind.
func ExcludeID(f object.Format, content []byte) object.ID {
	if len(content) > 0 {
		content = append(content[:len(content):len(content)], '\n')
	}
	id, err := object.Hash(f, object.Blob, content)
	if err != nil { // git reads the file all the same, and finds that this is not its id
		return object.ID{}
	}
	return id
}

// appendID writes an id; none is all zeros.
func appendID(out []byte, id object.ID, f object.Format) []byte {
	if id.IsZero() {
		return append(out, make([]byte, f.Size())...)
	}
	return append(out, id.Bytes()...)
}

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

// directoryWriter collects what UNTR keeps apart.
type directoryWriter struct {
	n                         int // directories so far
	names, stats, ids         []byte
	valid, checkOnly, ignored bitmap
}

func (w *directoryWriter) directory(d *Directory) {
	files := d.Files
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
