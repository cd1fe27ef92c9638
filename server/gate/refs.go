package gate

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/server/records"
)

// refFile is a file packed-refs, whose lines "ID NAME" are sorted by name. A line that begins with "^" belongs to the line before. The
// file is mapped into memory and searched, because to read and parse a file of 100,000 refs takes milliseconds. It never changes: package
// replica replaces it by another file.
type refFile []byte

func openRefs(dir string) (refFile, error) {
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

// close unmaps the file.
func (f refFile) close() {
	if f != nil {
		_ = unix.Munmap(f)
	}
}

// id returns the value of a ref, "" if the ref does not exist.
func (f refFile) id(name string) string {
	r, _ := f.line(f.search(name))
	if r.Name != name {
		return ""
	}
	return r.ID
}

// below returns the refs whose names begin with a prefix.
func (f refFile) below(prefix string) (found []records.Ref) {
	for at := f.search(prefix); ; {
		r, next := f.line(at)
		if !strings.HasPrefix(r.Name, prefix) {
			return found
		}
		found = append(found, r)
		at = next
	}
}

// search returns the offset of the first ref whose name is not less than name.
func (f refFile) search(name string) int {
	low, high := 0, len(f)
	if bytes.HasPrefix(f, []byte("#")) {
		low = f.after(0)
	}
	for low < high { // both are offsets of lines with refs, or the end
		start := low + bytes.LastIndexByte(f[low:(low+high)/2], '\n') + 1
		if f[start] == '^' {
			start = low + bytes.LastIndexByte(f[low:start-1], '\n') + 1
		}
		if r, next := f.line(start); r.Name < name {
			low = next
		} else {
			high = start
		}
	}
	return low
}

// line returns the ref at an offset and the offset of the next ref. The ref is zero at the end of the file.
func (f refFile) line(at int) (r records.Ref, next int) {
	end := f.after(at)
	id, name, _ := strings.Cut(strings.TrimSuffix(string(f[at:end]), "\n"), " ")
	for next = end; next < len(f) && f[next] == '^'; {
		next = f.after(next)
	}
	return records.Ref{Name: name, ID: id}, next
}

// after returns the offset after the line at an offset.
func (f refFile) after(at int) int {
	if i := bytes.IndexByte(f[at:], '\n'); i >= 0 {
		return at + i + 1
	}
	return len(f)
}
