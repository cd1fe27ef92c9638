package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// makers are the functions from which next chooses, in proportion to their weights. A maker may return no op.
var makers = []struct {
	weight int
	make   func(m *model) *op
}{
	{8, (*model).opCreate}, {4, (*model).opReplace}, {12, (*model).opWrite}, {5, (*model).opAppend},
	{5, (*model).opTruncate},
	{6, (*model).opOpen}, {8, (*model).opHandleWrite}, {5, (*model).opHandleRead}, {3, (*model).opHandleTruncate},
	{4, (*model).opHandleClose},
	{3, (*model).opSync}, {4, (*model).opMapWrite}, {2, (*model).opMapRead}, {2, (*model).opFallocate},
	{3, (*model).opCopyRange},
	{9, (*model).opRename}, {2, (*model).opRenameDirectory}, {4, (*model).opRenameFlags}, {4, (*model).opLink},
	{6, (*model).opUnlink}, {4, (*model).opRmdir}, {6, (*model).opMkdir},
	{3, (*model).opSymlink}, {2, (*model).opMknod}, {2, (*model).opTmpfile}, {3, (*model).opUnlinked},
	{4, (*model).opChmod}, {2, (*model).opChown}, {3, (*model).opUtimes}, {4, (*model).opSetXattr},
	{2, (*model).opRemoveXattr},
	{3, (*model).opRead}, {3, (*model).opReadDir}, {3, (*model).opStat}, {1, (*model).opLongName}, {1, (*model).opSyncDir},
}

// next chooses an op.
func (m *model) next() *op {
	m.prune()
	if len(m.known) > modelPaths {
		return m.opRemoveAll()
	}
	total := 0
	for _, k := range makers {
		total += k.weight
	}
	for {
		n := m.rnd.IntN(total)
		for _, k := range makers {
			if n -= k.weight; n < 0 {
				if o := k.make(m); o != nil {
					return o
				}
				break
			}
		}
	}
}

// prune forgets some paths that do not exist any more.
func (m *model) prune() {
	for range min(len(m.known), 4) {
		i := m.rnd.IntN(len(m.known))
		if _, err := os.Lstat(m.plain.path(m.known[i])); err != nil {
			m.known[i] = m.known[len(m.known)-1]
			m.known = m.known[:len(m.known)-1]
		}
	}
}

// some returns a path that most likely exists.
func (m *model) some() string {
	if len(m.known) == 0 || m.rnd.IntN(20) == 0 {
		return m.fresh()
	}
	return m.known[m.rnd.IntN(len(m.known))]
}

// ofType returns a path of a file of that type, if a few tries find one.
func (m *model) ofType(t os.FileMode) string {
	for range 20 {
		p := m.some()
		if info, err := os.Lstat(m.plain.path(p)); err == nil && info.Mode().Type() == t {
			return p
		}
	}
	return m.some()
}

func (m *model) file() string      { return m.ofType(0) }
func (m *model) directory() string { return m.ofType(os.ModeDir) }

// fresh returns a path in some directory, which may exist already, because there are few names.
func (m *model) fresh() string {
	name := string("abcdefgh"[m.rnd.IntN(8)])
	if m.rnd.IntN(3) == 0 {
		name += fmt.Sprint(m.rnd.IntN(20))
	}
	if m.rnd.IntN(4) == 0 || len(m.known) == 0 {
		return name
	}
	p := m.known[m.rnd.IntN(len(m.known))]
	if info, err := os.Lstat(m.plain.path(p)); err != nil || !info.IsDir() && m.rnd.IntN(30) > 0 ||
		strings.Count(p, "/") > 6 {
		p = filepath.Dir(p)
	}
	return filepath.Join(p, name)
}

// size returns a file size: often small, often close to the size of a page or of a request.
func (m *model) size() int {
	switch m.rnd.IntN(10) {
	case 0:
		return 0
	case 1, 2, 3:
		return m.rnd.IntN(200)
	case 4, 5:
		return max(0, 4096*m.rnd.IntN(8)+m.rnd.IntN(3)-1)
	case 6:
		if m.rnd.IntN(12) == 0 {
			return 1<<20 + m.rnd.IntN(3) - 1 + m.rnd.IntN(2)*(1<<19)
		}
		return 131072 + m.rnd.IntN(3) - 1
	default:
		return m.rnd.IntN(70_000)
	}
}

// offset returns an offset in a file of the plain side, or a little behind its end.
func (m *model) offset(size int64) int64 {
	switch m.rnd.IntN(6) {
	case 0:
		return size
	case 1:
		return size + int64(m.rnd.IntN(10_000))
	case 2:
		return 0
	}
	return m.rnd.Int64N(size + 1)
}

func (m *model) sizeOf(p string) int64 {
	if info, err := os.Stat(m.plain.path(p)); err == nil {
		return min(info.Size(), 2<<20)
	}
	return 0
}

// data returns n bytes that differ from those of all other calls.
func (m *model) data(n int) []byte {
	b := make([]byte, n)
	a, c := m.rnd.Uint64(), m.rnd.Uint64()|1
	for i := range b {
		if i%8 == 0 {
			a = a*6364136223846793005 + c
		}
		b[i] = byte(a >> (8 * (i % 8)))
	}
	return b
}

// openFlags contain O_NONBLOCK, because the file may be a FIFO.
const openFlags = unix.O_NONBLOCK | unix.O_CLOEXEC | unix.O_NOCTTY

func open(path string, flags int, mode uint32) (fd int, err error) {
	err = retry(func() (err error) { fd, err = unix.Open(path, flags|openFlags, mode); return })
	return fd, err
}

// with opens a file, calls f with its descriptor and returns the outcome.
func with(path string, flags int, mode uint32, f func(fd int) string) string {
	fd, err := open(path, flags, mode)
	if err != nil {
		return "open: " + outcome(err)
	}
	out := f(fd)
	if err := unix.Close(fd); err != nil {
		out += " close: " + outcome(err)
	}
	return out
}

// pwrite writes all of data.
func pwrite(fd int, data []byte, off int64) string {
	for len(data) > 0 {
		var n int
		err := retry(func() (err error) { n, err = unix.Pwrite(fd, data, off); return })
		if err != nil {
			return outcome(err)
		}
		data, off = data[n:], off+int64(n)
	}
	return ""
}

func write(fd int, data []byte) string {
	for len(data) > 0 {
		var n int
		err := retry(func() (err error) { n, err = unix.Write(fd, data); return })
		if err != nil {
			return outcome(err)
		}
		data = data[n:]
	}
	return ""
}

func (m *model) opCreate() *op {
	p, mode, data := m.fresh(), uint32(m.rnd.IntN(0o1000))|0o600, m.data(m.size())
	return &op{kind: "create", text: fmt.Sprintf("create %s, mode %o, write %d", p, mode, len(data)),
		paths: []string{p}, writes: true,
		do: func(s *side) string {
			return with(s.path(p), unix.O_CREAT|unix.O_EXCL|unix.O_RDWR, mode, func(fd int) string { return write(fd, data) })
		}}
}

func (m *model) opReplace() *op {
	p, data := m.file(), m.data(m.size())
	return &op{kind: "replace", text: fmt.Sprintf("replace the contents of %s by %d", p, len(data)),
		paths: []string{p}, writes: true,
		do: func(s *side) string {
			return with(s.path(p), unix.O_CREAT|unix.O_TRUNC|unix.O_WRONLY, 0o644,
				func(fd int) string { return write(fd, data) })
		}}
}

func (m *model) opWrite() *op {
	p := m.file()
	data, off := m.data(m.size()), m.offset(m.sizeOf(p))
	flags := []int{unix.O_WRONLY, unix.O_RDWR}[m.rnd.IntN(2)]
	return &op{kind: "write", text: fmt.Sprintf("write %d at %d of %s", len(data), off, p),
		paths: []string{p}, writes: true,
		do: func(s *side) string {
			return with(s.path(p), flags, 0, func(fd int) string { return pwrite(fd, data, off) })
		}}
}

func (m *model) opAppend() *op {
	p, data := m.file(), m.data(m.size())
	if m.sizeOf(p) > 1<<20 {
		return nil
	}
	return &op{kind: "append", text: fmt.Sprintf("append %d to %s", len(data), p), paths: []string{p}, writes: true,
		do: func(s *side) string {
			return with(s.path(p), unix.O_WRONLY|unix.O_APPEND, 0, func(fd int) string {
				out := write(fd, data)
				at, err := unix.Seek(fd, 0, 1)
				return out + outcome(err, at)
			})
		}}
}

func (m *model) opTruncate() *op {
	p := m.some()
	size := int64(m.size())
	if m.rnd.IntN(2) == 0 {
		size = m.offset(m.sizeOf(p))
	}
	if size == m.sizeOf(p) { // file systems differ in whether a truncation to the same size changes the times
		size++
	}
	return &op{kind: "truncate", text: fmt.Sprintf("truncate %s to %d", p, size), paths: []string{p}, atomic: true,
		do: func(s *side) string { return outcome(retry(func() error { return unix.Truncate(s.path(p), size) })) }}
}

func (m *model) opRename() *op {
	from, to := m.some(), m.fresh()
	if m.rnd.IntN(3) == 0 {
		to = m.some()
	}
	return m.rename(from, to)
}

// opRenameDirectory moves a directory, at times over another.
func (m *model) opRenameDirectory() *op {
	from, to := m.directory(), m.fresh()
	if m.rnd.IntN(3) == 0 {
		to = m.directory()
	}
	return m.rename(from, to)
}

func (m *model) rename(from, to string) *op {
	return &op{kind: "rename", text: "rename " + from + " to " + to,
		paths: []string{from, to, filepath.Dir(from), filepath.Dir(to)}, atomic: true,
		do: func(s *side) string {
			out := outcome(retry(func() error { return unix.Rename(s.path(from), s.path(to)) }))
			if s == m.plain && out == "" {
				m.learn(to)
			}
			return out
		}}
}

func (m *model) opRenameFlags() *op {
	from, to := m.some(), m.some()
	flags, name := unix.RENAME_EXCHANGE, "exchange"
	if m.rnd.IntN(2) == 0 {
		flags, name = unix.RENAME_NOREPLACE, "noreplace"
		if m.rnd.IntN(3) > 0 {
			to = m.fresh()
		}
	}
	return &op{kind: name, text: "rename " + from + " to " + to + ", " + name,
		paths: []string{from, to, filepath.Dir(from), filepath.Dir(to)}, atomic: true,
		do: func(s *side) string {
			out := outcome(retry(func() error {
				return unix.Renameat2(unix.AT_FDCWD, s.path(from), unix.AT_FDCWD, s.path(to), uint(flags))
			}))
			if s == m.plain && out == "" {
				m.learn(to)
				m.learn(from)
			}
			return out
		}}
}

func (m *model) opLink() *op {
	from, to := m.file(), m.fresh()
	return &op{kind: "link", text: "link " + from + " as " + to, paths: []string{from, to}, atomic: true,
		do: func(s *side) string {
			return outcome(retry(func() error { return unix.Link(s.path(from), s.path(to)) }))
		}}
}

func (m *model) opUnlink() *op {
	p := m.some()
	return &op{kind: "unlink", text: "unlink " + p, paths: []string{p, filepath.Dir(p)}, atomic: true,
		do: func(s *side) string { return outcome(retry(func() error { return unix.Unlink(s.path(p)) })) }}
}

func (m *model) opRmdir() *op {
	p := m.directory()
	return &op{kind: "rmdir", text: "rmdir " + p, paths: []string{p, filepath.Dir(p)}, atomic: true,
		do: func(s *side) string { return outcome(retry(func() error { return unix.Rmdir(s.path(p)) })) }}
}

func (m *model) opMkdir() *op {
	p, mode := m.fresh(), uint32(m.rnd.IntN(0o1000))
	return &op{kind: "mkdir", text: fmt.Sprintf("mkdir %s, mode %o", p, mode),
		paths: []string{p, filepath.Dir(p)}, atomic: true,
		do: func(s *side) string { return outcome(retry(func() error { return unix.Mkdir(s.path(p), mode) })) }}
}

func (m *model) opSymlink() *op {
	p, target := m.fresh(), strings.Repeat("x/", m.rnd.IntN(30))+m.some() // the target never leaves the tree
	if m.rnd.IntN(2) == 0 && len(m.known) > 0 {
		target = filepath.Base(m.some())
	}
	return &op{kind: "symlink", text: "symlink " + p + " to " + target, paths: []string{p}, atomic: true,
		do: func(s *side) string { return outcome(retry(func() error { return unix.Symlink(target, s.path(p)) })) }}
}

func (m *model) opMknod() *op {
	p, kind := m.fresh(), []uint32{unix.S_IFIFO, unix.S_IFSOCK, unix.S_IFREG}[m.rnd.IntN(3)]
	mode := kind | uint32(m.rnd.IntN(0o1000))
	return &op{kind: "mknod", text: fmt.Sprintf("mknod %s %o", p, mode), paths: []string{p}, atomic: true,
		do: func(s *side) string { return outcome(retry(func() error { return unix.Mknod(s.path(p), mode, 0) })) }}
}

// opRemoveAll removes a whole directory.
func (m *model) opRemoveAll() *op {
	p := m.directory()
	m.known = slices.DeleteFunc(m.known, func(k string) bool { return k == p || strings.HasPrefix(k, p+"/") })
	return &op{kind: "remove all", text: "remove all of " + p, paths: []string{p, filepath.Dir(p)},
		do: func(s *side) string { return outcome(os.RemoveAll(s.path(p))) }}
}
