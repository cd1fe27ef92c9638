package packedrefs

import (
	"bytes"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// File is the contents of a file whose refs are sorted by name. It is searched in place, because to parse a file of
// 100,000 refs takes tens of milliseconds.
type File []byte

// Map maps the packed-refs file of a git directory into memory. Other programs must only replace the file, and never
// modify it in place. The caller must call Unmap.
func Map(dir string) (File, error) {
	f, err := os.Open(filepath.Join(dir, "packed-refs"))
	if err != nil {
		return nil, fmt.Errorf("read refs: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read refs: %w", err)
	}
	if info.Size() == 0 {
		return nil, nil
	}
	text, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("read refs: %w", err)
	}
	return text, nil
}

// Unmap unmaps the file.
func (f File) Unmap() {
	if f != nil {
		_ = unix.Munmap(f)
	}
}

// ID returns the value of a ref, or "" if the ref does not exist.
func (f File) ID(name string) string {
	id, found, _ := f.line(f.search(name))
	if found != name {
		return ""
	}
	return id
}

// Below returns the names and values of the refs whose names begin with a prefix.
func (f File) Below(prefix string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for at := f.search(prefix); at < len(f); {
			id, name, next := f.line(at)
			if !strings.HasPrefix(name, prefix) || !yield(name, id) {
				return
			}
			at = next
		}
	}
}

// With returns the contents of the file after changes of refs. The changes are sorted by name and contain each ref
// once. A change without an ID removes the ref. If the tags in the file are peeled, the field Peeled of changed tags
// must be correct.
func (f File) With(changes []Ref) []byte {
	text, at := make([]byte, 0, len(f)+160*len(changes)), 0
	for _, c := range changes {
		i := f.search(c.Name)
		text, at = append(text, f[at:i]...), i
		if _, name, next := f.line(i); name == c.Name {
			at = next
		}
		if !c.ID.IsZero() {
			text = appendRef(text, c, TagsPeeled(f))
		}
	}
	return append(text, f[at:]...)
}

// search returns the offset of the first ref whose name is not less than name.
func (f File) search(name string) int {
	low, high := 0, len(f)
	if bytes.HasPrefix(f, []byte("#")) {
		low = f.after(0)
	}
	for low < high { // low and high are the offsets of lines with refs, or of the end.
		start := low + bytes.LastIndexByte(f[low:(low+high)/2], '\n') + 1
		if f[start] == '^' {
			start = low + bytes.LastIndexByte(f[low:start-1], '\n') + 1
		}
		if _, found, next := f.line(start); found < name {
			low = next
		} else {
			high = start
		}
	}
	return low
}

// line returns the ref at an offset and the offset of the next ref. At the end of the file, the name is "". A line that
// begins with "^" belongs to the preceding ref.
func (f File) line(at int) (id, name string, next int) {
	end := f.after(at)
	id, name, _ = strings.Cut(strings.TrimSuffix(string(f[at:end]), "\n"), " ")
	for next = end; next < len(f) && f[next] == '^'; {
		next = f.after(next)
	}
	return id, name, next
}

// after returns the offset after the line at an offset.
func (f File) after(at int) int {
	if i := bytes.IndexByte(f[at:], '\n'); i >= 0 {
		return at + i + 1
	}
	return len(f)
}
