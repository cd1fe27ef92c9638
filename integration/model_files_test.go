package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Ops on open files, ops on attributes, and ops that only read.

// someHandle returns an open file, preferably one that is open for writing; 0 if none is open.
func (m *model) someHandle(write bool) int {
	var all []int
	for h, w := range m.handles {
		if w || !write {
			all = append(all, h)
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all) // the same seed makes the same ops
	return all[m.rnd.IntN(len(all))]
}

// opOpen opens a file that stays open.
func (m *model) opOpen() *op {
	if len(m.handles) >= modelHandles {
		return m.opHandleClose()
	}
	m.lastHandle++
	h, p := m.lastHandle, m.file()
	flags := []int{unix.O_RDONLY, unix.O_RDWR, unix.O_RDWR, unix.O_RDWR | unix.O_APPEND, unix.O_WRONLY,
		unix.O_RDWR | unix.O_CREAT | unix.O_TRUNC}[m.rnd.IntN(6)]
	return &op{kind: "open", text: fmt.Sprintf("open %s as %d, flags %o", p, h, flags), paths: []string{p}, handle: h,
		writes: flags&unix.O_TRUNC != 0,
		do: func(s *side) string {
			fd, err := open(s.path(p), flags, 0o644)
			if err != nil {
				return outcome(err)
			}
			var st unix.Stat_t
			if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
				unix.Close(fd)
				return outcome(err, "no file")
			}
			s.open[h] = fd
			if s == m.plain {
				m.handles[h] = flags&(unix.O_WRONLY|unix.O_RDWR) != 0
			}
			return ""
		}}
}

// onHandle returns an op on an open file.
func (m *model) onHandle(kind, text string, h int, writes bool, do func(fd int) string) *op {
	return &op{kind: kind, text: fmt.Sprintf("handle %d: %s", h, text), handle: h, writes: writes,
		do: func(s *side) string { return do(s.open[h]) }}
}

func (m *model) handleSize(h int) int64 {
	var st unix.Stat_t
	unix.Fstat(m.plain.open[h], &st)
	return min(st.Size, 2<<20)
}

func (m *model) opHandleWrite() *op {
	h := m.someHandle(true)
	if h == 0 {
		return nil
	}
	data, off := m.data(m.size()), m.offset(m.handleSize(h))
	return m.onHandle("write open", fmt.Sprintf("write %d at %d", len(data), off), h, true,
		func(fd int) string { return pwrite(fd, data, off) })
}

func (m *model) opHandleRead() *op {
	h := m.someHandle(false)
	if h == 0 {
		return nil
	}
	n, off := m.size(), m.offset(m.handleSize(h))
	return m.onHandle("read open", fmt.Sprintf("read %d at %d", n, off), h, false, func(fd int) string {
		buf := make([]byte, n)
		var k int
		err := retry(func() (err error) { k, err = unix.Pread(fd, buf, off); return })
		return outcome(err, string(buf[:max(k, 0)]))
	})
}

func (m *model) opHandleTruncate() *op {
	h := m.someHandle(true)
	if h == 0 {
		return nil
	}
	size := m.offset(m.handleSize(h))
	if size == m.handleSize(h) {
		size++
	}
	return m.onHandle("truncate open", fmt.Sprintf("truncate to %d", size), h, false, func(fd int) string {
		return outcome(retry(func() error { return unix.Ftruncate(fd, size) }))
	})
}

func (m *model) opHandleClose() *op {
	h := m.someHandle(false)
	if h == 0 {
		return nil
	}
	return &op{kind: "close", text: fmt.Sprintf("handle %d: close", h),
		do: func(s *side) string {
			fd := s.open[h]
			delete(s.open, h)
			delete(m.handles, h)
			return outcome(unix.Close(fd))
		}}
}

// opSync calls fsync, after which the contents of the file must survive a crash.
func (m *model) opSync() *op {
	h := m.someHandle(false)
	if h == 0 {
		return nil
	}
	sync := []func(int) error{unix.Fsync, unix.Fdatasync}[m.rnd.IntN(2)]
	return m.onHandle("fsync", "fsync", h, false, func(fd int) string {
		out := outcome(retry(func() error { return sync(fd) }))
		if fd == m.plain.open[h] && out == "" {
			if id, err := identityOf("", fd); err == nil {
				delete(m.unsynced, id)
			}
		}
		return out
	})
}

func (m *model) opSyncDir() *op {
	p := m.directory()
	return &op{kind: "fsync directory", text: "fsync directory " + p,
		do: func(s *side) string {
			return with(s.path(p), unix.O_RDONLY|unix.O_DIRECTORY, 0,
				func(fd int) string { return outcome(retry(func() error { return unix.Fsync(fd) })) })
		}}
}

// mapped maps the contents of a file. It reads a byte of each page first, because a page fault must not wait for the
// git server: the server runs in this process, and a fault would stop its goroutines.
func mapped(path string, prot int, f func(mem []byte, fd int) string) string {
	flags := unix.O_RDONLY
	if prot&unix.PROT_WRITE != 0 {
		flags = unix.O_RDWR
	}
	return with(path, flags, 0, func(fd int) string {
		contents, err := readHandle(fd)
		if err != nil || len(contents) == 0 {
			return outcome(err, "empty")
		}
		mem, err := unix.Mmap(fd, 0, len(contents), prot, unix.MAP_SHARED)
		if err != nil {
			return "mmap: " + outcome(err)
		}
		defer unix.Munmap(mem)
		return f(mem, fd)
	})
}

func (m *model) opMapWrite() *op {
	p, data, sync := m.file(), m.data(m.size()), m.rnd.IntN(2) == 0
	at := m.rnd.Float64()
	return &op{kind: "write mapped", text: fmt.Sprintf("write %d through memory to %s, msync %v", len(data), p, sync),
		paths: []string{p}, writes: true,
		do: func(s *side) string {
			return mapped(s.path(p), unix.PROT_READ|unix.PROT_WRITE, func(mem []byte, _ int) string {
				n := copy(mem[int(at*float64(len(mem))):], data)
				if sync {
					return outcome(retry(func() error { return unix.Msync(mem, unix.MS_SYNC) }), n)
				}
				return fmt.Sprint(n)
			})
		}}
}

func (m *model) opMapRead() *op {
	p := m.file()
	return &op{kind: "read mapped", text: "read " + p + " through memory",
		do: func(s *side) string {
			return mapped(s.path(p), unix.PROT_READ, func(mem []byte, _ int) string { return string(mem) })
		}}
}

// opFallocate sets the mtime at the end, because file systems differ in which kinds of fallocate change it.
func (m *model) opFallocate() *op {
	p := m.file()
	mode := []uint32{0, unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_KEEP_SIZE | unix.FALLOC_FL_PUNCH_HOLE,
		unix.FALLOC_FL_ZERO_RANGE,
		unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE}[m.rnd.IntN(5)]
	off, n := m.offset(m.sizeOf(p)), int64(m.size())
	return &op{kind: "fallocate", text: fmt.Sprintf("fallocate %d at %d of %s, mode %d", n, off, p, mode),
		paths: []string{p}, writes: true,
		do: func(s *side) string {
			return with(s.path(p), unix.O_RDWR, 0, func(fd int) string {
				out := outcome(retry(func() error { return unix.Fallocate(fd, mode, off, n) }))
				return out + outcome(unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), nil, 0))
			})
		}}
}

func (m *model) opCopyRange() *op {
	from, to := m.file(), m.file()
	offIn, offOut, n := m.offset(m.sizeOf(from)), m.offset(m.sizeOf(to)), m.size()
	return &op{kind: "copy range", text: fmt.Sprintf("copy %d at %d of %s to %d of %s", n, offIn, from, offOut, to),
		paths: []string{from, to}, writes: true,
		do: func(s *side) string {
			return with(s.path(from), unix.O_RDONLY, 0, func(in int) string {
				return with(s.path(to), unix.O_WRONLY, 0, func(out int) string {
					a, b, left := offIn, offOut, n
					for left > 0 {
						var k int
						err := retry(func() (err error) { k, err = unix.CopyFileRange(in, &a, out, &b, left, 0); return })
						if err != nil {
							return outcome(err)
						}
						if k == 0 {
							break
						}
						left -= k
					}
					return fmt.Sprint("copied ", n-left)
				})
			})
		}}
}

// opTmpfile makes a file without a name and gives it one.
func (m *model) opTmpfile() *op {
	dir, p, data := m.directory(), m.fresh(), m.data(m.size())
	return &op{kind: "tmpfile", text: fmt.Sprintf("tmpfile in %s, write %d, link as %s", dir, len(data), p),
		paths: []string{p}, writes: true,
		do: func(s *side) string {
			return with(s.path(dir), unix.O_TMPFILE|unix.O_RDWR, 0o640, func(fd int) string {
				out := write(fd, data)
				return out + outcome(retry(func() error {
					return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, s.path(p),
						unix.AT_SYMLINK_FOLLOW)
				}))
			})
		}}
}

// opUnlinked creates a file, removes its name and continues to use it.
func (m *model) opUnlinked() *op {
	p, data, more := m.fresh(), m.data(m.size()), m.data(m.size())
	return &op{kind: "unlinked", text: fmt.Sprintf("create %s, write %d, unlink, write %d", p, len(data), len(more)),
		paths: []string{p},
		do: func(s *side) string {
			return with(s.path(p), unix.O_CREAT|unix.O_EXCL|unix.O_RDWR, 0o600, func(fd int) string {
				out := write(fd, data) + outcome(retry(func() error { return unix.Unlink(s.path(p)) })) + write(fd, more)
				contents, err := readHandle(fd)
				var st unix.Stat_t
				return out + outcome(err, string(contents)) + outcome(unix.Fstat(fd, &st), st.Nlink, st.Size)
			})
		}}
}

// someOrRoot returns some path, or the root directory.
func (m *model) someOrRoot() string {
	if m.rnd.IntN(30) == 0 {
		return "."
	}
	return m.some()
}

func (m *model) opChmod() *op {
	p, mode := m.someOrRoot(), uint32(m.rnd.IntN(0o10000))
	return &op{kind: "chmod", text: fmt.Sprintf("chmod %s %o", p, mode), paths: []string{p}, atomic: true,
		do: func(s *side) string { return outcome(retry(func() error { return unix.Chmod(s.path(p), mode) })) }}
}

func (m *model) opChown() *op {
	p, uid, gid := m.some(), m.rnd.IntN(4)-1, m.rnd.IntN(4)-1
	if uid < 0 && gid < 0 {
		return nil // other file systems clear the set-ID bits; the kernel does not report that to FUSE
	}
	return &op{kind: "chown", text: fmt.Sprintf("lchown %s %d:%d", p, uid, gid), paths: []string{p}, atomic: true,
		do: func(s *side) string { return outcome(retry(func() error { return unix.Lchown(s.path(p), uid, gid) })) }}
}

// opUtimes sets times before the present, and reads both of them at once, because a later read of the file may change
// the atime.
func (m *model) opUtimes() *op {
	p := m.some()
	at := unix.Timespec{Sec: 1 + m.rnd.Int64N(artificial-1), Nsec: m.rnd.Int64N(1e9)}
	mt := unix.Timespec{Sec: 1 + m.rnd.Int64N(artificial-1), Nsec: m.rnd.Int64N(1e9)}
	return &op{kind: "utimes", text: fmt.Sprintf("utimes %s %d.%09d %d.%09d", p, at.Sec, at.Nsec, mt.Sec, mt.Nsec),
		paths: []string{p}, atomic: true,
		do: func(s *side) string {
			var st unix.Stat_t
			err := retry(func() error {
				return unix.UtimesNanoAt(unix.AT_FDCWD, s.path(p), []unix.Timespec{at, mt}, unix.AT_SYMLINK_NOFOLLOW)
			})
			if err == nil {
				err = unix.Lstat(s.path(p), &st)
			}
			return outcome(err, st.Atim, st.Mtim)
		}}
}

// xattrName returns one of a few names, which fit together with their values into the one block that ext4 has for
// attributes.
func (m *model) xattrName() string {
	return []string{"user.a", "user.bb", "user.c." + strings.Repeat("c", 60), "user.none", "other.a"}[m.rnd.IntN(5)]
}

func (m *model) opSetXattr() *op {
	p, name, value, flags := m.someOrRoot(), m.xattrName(), m.data(m.rnd.IntN(400)), m.rnd.IntN(3)
	return &op{kind: "set xattr", text: fmt.Sprintf("set xattr %s of %s to %d, flags %d", name, p, len(value), flags),
		paths: []string{p}, atomic: true,
		do: func(s *side) string {
			return outcome(retry(func() error { return unix.Lsetxattr(s.path(p), name, value, flags) }))
		}}
}

func (m *model) opRemoveXattr() *op {
	p, name := m.some(), m.xattrName()
	return &op{kind: "remove xattr", text: "remove xattr " + name + " of " + p, paths: []string{p}, atomic: true,
		do: func(s *side) string {
			return outcome(retry(func() error { return unix.Lremovexattr(s.path(p), name) }))
		}}
}

func (m *model) opRead() *op {
	p := m.some()
	return &op{kind: "read", text: "read " + p,
		do: func(s *side) string {
			return with(s.path(p), unix.O_RDONLY, 0, func(fd int) string {
				contents, err := readHandle(fd)
				return outcome(err, string(contents))
			})
		}}
}

func (m *model) opReadDir() *op {
	p := m.directory()
	return &op{kind: "readdir", text: "readdir " + p, paths: []string{p}, do: func(s *side) string { return "" }}
}

func (m *model) opStat() *op {
	p := m.some()
	return &op{kind: "stat", text: "stat " + p, paths: []string{p},
		do: func(s *side) string {
			var st unix.Stat_t
			err := retry(func() error { return unix.Stat(s.path(p), &st) }) // through symbolic links
			return outcome(err, aboutStat(&st))
		}}
}

// opLongName uses the longest valid name, or a name that is too long.
func (m *model) opLongName() *op {
	p := filepath.Join(m.directory(), strings.Repeat("n", 255+m.rnd.IntN(2)))
	if m.rnd.IntN(3) == 0 {
		return &op{kind: "unlink long", text: "unlink " + p, paths: []string{p},
			do: func(s *side) string { return outcome(os.Remove(s.path(p))) }}
	}
	return &op{kind: "create long", text: "create " + p, paths: []string{p}, writes: true,
		do: func(s *side) string {
			return with(s.path(p), unix.O_CREAT|unix.O_WRONLY, 0o644, func(fd int) string { return write(fd, []byte("long")) })
		}}
}
