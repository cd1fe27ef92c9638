package odb

import (
	"bytes"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// Loose reads the loose objects of an `objects` directory: files named by their ids, in which git stores objects that
// are added or committed. It keeps no file open. It is safe for concurrent use.
type Loose struct {
	dir    string
	format object.Format
}

// NewLoose returns a reader for the loose objects in dir, which need not exist.
func NewLoose(dir string, f object.Format) *Loose { return &Loose{dir, f} }

// Get returns the type and the verified contents of an object. It returns ErrNotFound if the object does not exist,
// ErrTooLarge if the contents are larger than limit bytes, and ErrCorrupt if the hash of the contents is not id.
func (l *Loose) Get(id object.ID, limit int64) (t object.Type, content []byte, err error) {
	err = l.open(id, func(r *looseReader) error {
		if r.size > limit {
			return tooLarge(r.size, limit)
		}
		t = r.typ
		content, err = r.whole()
		if err != nil {
			return err
		}
		return verify(l.format, id, t, content)
	})
	if err != nil {
		return 0, nil, err
	}
	return t, content, nil
}

// Size returns the type of an object and its size in bytes, which the header of the file states. It does not read the
// contents.
func (l *Loose) Size(id object.ID) (t object.Type, size int64, err error) {
	err = l.open(id, func(r *looseReader) error {
		t, size = r.typ, r.size
		return nil
	})
	return t, size, err
}

// WriteTo writes the contents of an object of any size to w. As in Store.WriteTo, the bytes are valid only if the error
// is nil.
func (l *Loose) WriteTo(id object.ID, w io.Writer) error {
	return l.open(id, func(r *looseReader) error {
		sum := object.NewHasher(l.format, r.typ, r.size)
		if err := r.stream(io.MultiWriter(w, sum)); err != nil {
			return err
		}
		got, err := sum.Sum()
		return verifyHash(id, got, err)
	})
}

// open opens the object and calls the function use with a reader that is at the start of the contents.
func (l *Loose) open(id object.ID, use func(r *looseReader) error) error {
	if id.IsZero() || id.Format() != l.format {
		return fmt.Errorf("read loose object %s: %w", id, ErrNotFound)
	}
	name := id.String()
	f, err := disk.OpenRegular(filepath.Join(l.dir, name[:2], name[2:]), 0)
	if errors.Is(err, fs.ErrNotExist) {
		err = ErrNotFound
	}
	if err == nil {
		defer f.Close()
		var r *looseReader
		if r, err = readLoose(f); err == nil {
			err = use(r)
		}
	}
	if err != nil {
		return fmt.Errorf("read loose object %s: %w", id, err)
	}
	return nil
}

// looseReader reads one loose object: zlib data of "TYPE SIZE", a zero byte and the contents. This is the format that
// parse_loose_header in git's object-file.c reads.
type looseReader struct {
	typ  object.Type
	size int64 // size of the contents in bytes, as the header states it

	file readFault
	zip  io.ReadCloser
	rest []byte // contents that were read together with the header
}

// maxLooseHeader bounds the length of the header in bytes: type, size and separators.
const maxLooseHeader = 32

// readFault is a reader that records the error of the file, because zlib may return a different error.
type readFault struct {
	r   io.Reader
	err error
}

// Read reads from r and records its error.
func (f *readFault) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err != nil {
		f.err = err
	}
	return n, err
}

// readLoose reads the header of a loose object. It returns ErrCorrupt if git would not write such a header.
func readLoose(file io.Reader) (*looseReader, error) {
	r := &looseReader{file: readFault{r: file}}
	var err error
	if r.zip, err = zlib.NewReader(&r.file); err != nil {
		return nil, r.fail(err)
	}
	head := make([]byte, maxLooseHeader)
	n, err := io.ReadFull(r.zip, head)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return nil, r.fail(err)
	}
	text, rest, ok := bytes.Cut(head[:n], []byte{0})
	if !ok {
		return nil, corrupt("object header %q has no end", head[:n])
	}
	r.rest = rest
	word, size, _ := bytes.Cut(text, []byte{' '})
	for _, t := range []object.Type{object.Commit, object.Tree, object.Blob, object.Tag} {
		if t.String() == string(word) {
			r.typ = t
		}
	}
	r.size, err = strconv.ParseInt(string(size), 10, 64)
	// git writes a size without a sign and without leading zeros, and refuses any other form.
	if r.typ == 0 || err != nil || len(size) == 0 || size[0] < '0' || size[0] > '9' || len(size) > 1 && size[0] == '0' {
		return nil, corrupt("invalid object header %q", text)
	}
	return r, nil
}

// fail returns the cause of err, an error that occurred while inflating.
func (r *looseReader) fail(err error) error { return diagnose(err, r.file.err) }

// whole returns the contents. It allocates memory as the bytes arrive, and does not rely on the stated size.
func (r *looseReader) whole() ([]byte, error) {
	var b bytes.Buffer
	b.Grow(int(min(r.size, firstAlloc)))
	if err := r.stream(&b); err != nil {
		return nil, err
	}
	return append(make([]byte, 0, b.Len()), b.Bytes()...), nil
}

// stream writes the contents to w and returns an error if their size differs from the size that the header states.
func (r *looseReader) stream(w io.Writer) error {
	if int64(len(r.rest)) > r.size {
		return corrupt("more data than the header states")
	}
	in := io.MultiReader(bytes.NewReader(r.rest), r.zip)
	for left := r.size; left > 0; {
		n, err := io.CopyN(elsewhereWriter{w}, in, min(left, copyBuffer))
		if left -= n; err != nil {
			return r.fail(short(err))
		}
	}
	// zlib verifies the checksum only when a read reaches the end of its data. This read also detects data beyond the size
	// that the header states.
	var one [1]byte
	n, err := io.ReadFull(r.zip, one[:]) // the read that returns io.EOF verifies the checksum
	switch {
	case n > 0:
		return corrupt("more data than the header states")
	case err != io.EOF:
		return r.fail(err)
	}
	return nil
}

// elsewhereWriter wraps each error of w in the type elsewhere, so that the error does not count as damage of the
// object.
type elsewhereWriter struct{ w io.Writer }

// Write writes p to w and marks an error of w with elsewhere.
func (w elsewhereWriter) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	if err != nil {
		err = elsewhere{err}
	}
	return n, err
}
