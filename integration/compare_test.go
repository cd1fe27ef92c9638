package integration

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// differencesShown is the number of differences of two trees that are reported.
const differencesShown = 20

// compareTrees compares a mount with what stock git checked out: names, types, modes, sizes, targets of links, and
// every byte. Each file is read in one of several ways; files of more than a page in every way.
func (w *world) compareTrees(mount, clone string) {
	w.Helper()
	want, got := listTree(w, clone), listTree(w, mount)
	shown := 0
	differs := func(path, format string, args ...any) {
		w.Helper()
		if shown++; shown <= differencesShown {
			w.Errorf("%q: "+format, append([]any{path}, args...)...)
		}
	}
	for path := range got {
		if _, ok := want[path]; !ok {
			differs(path, "is only in the mount")
		}
	}
	for path, a := range want {
		b, ok := got[path]
		switch {
		case !ok:
			differs(path, "is missing in the mount")
		case a.Mode() != b.Mode():
			differs(path, "has mode %v, want %v", b.Mode(), a.Mode())
		case a.Mode().IsDir():
		case a.Size() != b.Size():
			differs(path, "has size %d, want %d", b.Size(), a.Size())
		case a.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(filepath.Join(mount, path))
			if real, _ := os.Readlink(filepath.Join(clone, path)); err != nil || target != real {
				differs(path, "links to %q, want %q (%v)", target, real, err)
			}
		default:
			content, err := os.ReadFile(filepath.Join(clone, path))
			if err != nil {
				w.Fatal(err)
			}
			if err := compareFile(filepath.Join(mount, path), content, len(path)%len(ways)); err != nil {
				differs(path, "%v", err)
			}
		}
	}
	if shown > differencesShown {
		w.Errorf("%d differences in all", shown)
	}
}

// listTree returns every path below dir but git's directory of a checkout, or the file that stands for it.
func listTree(w *world, dir string) map[string]fs.FileInfo {
	w.Helper()
	all := map[string]fs.FileInfo{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if rel == ".git" {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := os.Lstat(path)
		if err == nil && info.Mode().Type() != d.Type() {
			err = errors.New(path + ": readdir and lstat differ on the type")
		}
		all[rel] = info
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	return all
}

// ways are the ways to read a file.
var ways = []struct {
	name string
	read func(f *os.File, size int) ([]byte, error)
}{
	{"asking for all", func(f *os.File, size int) ([]byte, error) { return io.ReadAll(f) }},
	{"small pieces", func(f *os.File, size int) ([]byte, error) { return readPieces(f, 1021) }},
	{"large pieces", func(f *os.File, size int) ([]byte, error) { return readPieces(f, 130_001) }},
	{"huge pieces", func(f *os.File, size int) ([]byte, error) { return readPieces(f, 1<<20) }},
	{"mmap", readMapped},
	{"pread", readAtOddOffsets},
}

// compareFile reads path in the way'th way; a file of more than a page in every way.
func compareFile(path string, want []byte, way int) error {
	for i, v := range ways {
		if i != way && len(want) <= os.Getpagesize() {
			continue
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		// Drop the pages that the previous way left in the kernel's cache.
		unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
		got, err := v.read(f, len(want))
		f.Close()
		if err != nil {
			return errors.Join(errors.New("read by "+v.name), err)
		}
		if !bytes.Equal(got, want) {
			return errors.New("differs when read by " + v.name + where(got, want))
		}
	}
	return nil
}

// where describes the first difference of two texts and their lengths.
func where(got, want []byte) string {
	n := 0
	for n < len(got) && n < len(want) && got[n] == want[n] {
		n++
	}
	return ": " + strconv.Itoa(len(got)) + " bytes of " + strconv.Itoa(len(want)) + ", the first " +
		strconv.Itoa(n) + " agree"
}

// readPieces reads until the end of the file. A short read before the end is an error, because regular files have none.
func readPieces(f *os.File, size int) ([]byte, error) {
	var all []byte
	buf := make([]byte, size)
	for {
		n, err := unix.Read(int(f.Fd()), buf)
		if err != nil {
			return nil, err
		}
		all = append(all, buf[:n]...)
		if n < size {
			if n, err := unix.Read(int(f.Fd()), buf); n != 0 || err != nil {
				return nil, errors.New("a read was short before the end of the file")
			}
			return all, nil
		}
	}
}

// readMapped reads a file through memory. A byte is read before: Go cannot stop a thread that waits in a page fault, so
// a fault must not wait for the server, which lives in this process.
func readMapped(f *os.File, size int) ([]byte, error) {
	if size == 0 {
		return nil, nil
	}
	if _, err := f.ReadAt(make([]byte, 1), 0); err != nil {
		return nil, err
	}
	unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	m, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	defer unix.Munmap(m)
	page := os.Getpagesize()
	all := make([]byte, size)
	for at := (size - 1) / page * page; at >= 0; at -= page { // backwards, so that the kernel does not read ahead
		copy(all[at:min(at+page, size)], m[at:])
	}
	return all, nil
}

// readAtOddOffsets reads the file in pieces of odd size, the last first, and looks behind the end.
func readAtOddOffsets(f *os.File, size int) ([]byte, error) {
	all := make([]byte, size)
	const piece = 65_537
	for at := size / piece * piece; at >= 0; at -= piece {
		part := all[at:min(at+piece, size)]
		if n, err := unix.Pread(int(f.Fd()), part, int64(at)); n != len(part) {
			return nil, errors.Join(errors.New("a pread was short"), err)
		}
	}
	if n, err := f.ReadAt(make([]byte, 10), int64(size)); n != 0 || err != io.EOF {
		return nil, errors.New("there are unexpected bytes after the request")
	}
	return all, nil
}
