package integration

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

// artificial is the upper limit of the times that utimensat ops set; the clock is later. Times below it must be equal
// on both sides. Later times were set by the clock, and are not compared.
const artificial = 1_000_000_000 // seconds

// about has the attributes of a file that are compared. Times set by the clock, sizes of directories and their numbers
// of links depend on the file system.
type about struct {
	mode, uid, gid, nlink uint32
	size                  int64
	mtime                 unix.Timespec // artificial or zero
	target                string
	xattrs                string
}

func aboutStat(st *unix.Stat_t) about {
	a := about{mode: st.Mode, uid: st.Uid, gid: st.Gid}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		a.nlink, a.size = uint32(st.Nlink), st.Size
		if st.Mtim.Sec < artificial {
			a.mtime = st.Mtim
		}
	}
	return a
}

func aboutPath(path string) (about, error) {
	var st unix.Stat_t
	if err := retry(func() error { return unix.Lstat(path, &st) }); err != nil {
		return about{}, err
	}
	a := aboutStat(&st)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		var err error
		if a.target, err = os.Readlink(path); err != nil {
			return a, err
		}
	case unix.S_IFREG, unix.S_IFDIR:
		var err error
		if a.xattrs, err = xattrsOf(path); err != nil {
			return a, fmt.Errorf("xattrs: %w", err)
		}
	}
	return a, nil
}

// xattrsOf returns the user.* attributes with their values.
func xattrsOf(path string) (string, error) {
	buf := make([]byte, 64<<10)
	var n int
	err := retry(func() (err error) { n, err = unix.Llistxattr(path, buf); return })
	if err != nil {
		return "", err
	}
	var all []string
	for name := range strings.SplitSeq(string(buf[:n]), "\x00") {
		if !strings.HasPrefix(name, "user.") {
			continue
		}
		value := make([]byte, 64<<10)
		var k int
		if err := retry(func() (err error) { k, err = unix.Lgetxattr(path, name, value); return }); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, fmt.Sprintf("%s=%x", name, value[:k]))
	}
	sort.Strings(all)
	return strings.Join(all, " "), nil
}

// comparePath compares the file at a path: its attributes, and its contents or the names in it.
func (m *model) comparePath(p string) error {
	want, err1 := aboutPath(m.plain.path(p))
	got, err2 := aboutPath(m.other.path(p))
	if outcome(err1) != outcome(err2) {
		return fmt.Errorf("%q: %s finds %v, want %v", p, m.other.name, err2, err1)
	}
	if err1 != nil {
		return nil
	}
	if want != got {
		return fmt.Errorf("%q: %s has %+v, want %+v", p, m.other.name, got, want)
	}
	switch want.mode & unix.S_IFMT {
	case unix.S_IFREG:
		return m.compareContents(p)
	case unix.S_IFDIR:
		_, err := m.compareNames(p)
		return err
	}
	return nil
}

func (m *model) compareContents(p string) error {
	want, err := os.ReadFile(m.plain.path(p))
	if err != nil {
		return err
	}
	got, err := os.ReadFile(m.other.path(p))
	if err != nil {
		return err
	}
	if !bytes.Equal(want, got) {
		return fmt.Errorf("%q: contents differ%s", p, where(got, want))
	}
	return nil
}

// compareNames compares the entries of a directory, and their types with the result of lstat.
func (m *model) compareNames(p string) ([]string, error) {
	var names [2][]string
	for i, s := range []*side{m.plain, m.other} {
		entries, err := os.ReadDir(s.path(p)) // sorted
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if p == "." && e.Name() == ".git" {
				continue
			}
			names[i] = append(names[i], e.Name()+" "+e.Type().String())
		}
	}
	if !slices.Equal(names[0], names[1]) {
		return nil, fmt.Errorf("%q: %s lists %q, want %q", p, m.other.name, names[1], names[0])
	}
	return names[0], nil
}

// compareHandle compares an open file, which may have been removed.
func (m *model) compareHandle(h int) error {
	var all [2]about
	var contents [2][]byte
	for i, s := range []*side{m.plain, m.other} {
		fd := s.open[h]
		var st unix.Stat_t
		if err := retry(func() error { return unix.Fstat(fd, &st) }); err != nil {
			return fmt.Errorf("handle %d of %s: %w", h, s.name, err)
		}
		all[i] = aboutStat(&st)
		var err error
		if contents[i], err = readHandle(fd); err != nil && err != unix.EBADF { // opened only for writing
			return fmt.Errorf("handle %d of %s: %w", h, s.name, err)
		}
	}
	if all[0] != all[1] {
		return fmt.Errorf("handle %d: %s has %+v, want %+v", h, m.other.name, all[1], all[0])
	}
	if !bytes.Equal(contents[0], contents[1]) {
		return fmt.Errorf("handle %d: contents differ%s", h, where(contents[1], contents[0]))
	}
	return nil
}

func readHandle(fd int) ([]byte, error) {
	var all []byte
	buf := make([]byte, 256<<10)
	for {
		var n int
		err := retry(func() (err error) { n, err = unix.Pread(fd, buf, int64(len(all))); return })
		if err != nil || n == 0 {
			return all, err
		}
		all = append(all, buf[:n]...)
	}
}

// compareAll compares the whole trees, and the inode numbers: names of one file on one side must be names of one file
// on the other side, and a file keeps its number as long as it exists.
func (m *model) compareAll() error {
	numbers := map[identity]uint64{}
	taken := map[uint64]string{}
	var walk func(p string) error
	walk = func(p string) error {
		if err := m.comparePath(p); err != nil {
			return err
		}
		id, err := identityOf(m.plain.path(p), unix.AT_FDCWD)
		if err != nil {
			return fmt.Errorf("%q: %w", p, err)
		}
		var st unix.Stat_t
		if err := retry(func() error { return unix.Lstat(m.other.path(p), &st) }); err != nil {
			return fmt.Errorf("%q: %w", p, err)
		}
		if n, ok := numbers[id]; ok && n != st.Ino {
			return fmt.Errorf("%q has inode %d, another name of the file has %d", p, st.Ino, n)
		} else if other, used := taken[st.Ino]; used && !ok {
			return fmt.Errorf("%q has inode %d, which %q has as well", p, st.Ino, other)
		}
		if n, ok := m.numbers[id]; ok && n != st.Ino {
			return fmt.Errorf("%q has inode %d, had %d", p, st.Ino, n)
		}
		numbers[id], taken[st.Ino] = st.Ino, p
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return nil
		}
		names, err := m.compareNames(p)
		if err != nil {
			return err
		}
		for _, n := range names {
			if err := walk(filepath.Join(p, n[:strings.LastIndexByte(n, ' ')])); err != nil {
				return err
			}
		}
		return nil
	}
	if err := walk("."); err != nil {
		return err
	}
	m.numbers = numbers
	for h := range m.plain.open {
		if err := m.compareHandle(h); err != nil {
			return err
		}
	}
	return nil
}

// adopt copies files whose last writes a crash may have lost from the other side to the plain side. Everything but
// their contents, sizes and times must be equal already.
func (m *model) adopt() error {
	return filepath.WalkDir(m.plain.root, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		id, err := identityOf(path, unix.AT_FDCWD)
		if err != nil || !m.unsynced[id] {
			return err
		}
		rel, _ := filepath.Rel(m.plain.root, path)
		data, err := os.ReadFile(m.other.path(rel))
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(m.other.path(rel), &st); err != nil {
			return err
		}
		if st.Size != int64(len(data)) {
			return fmt.Errorf("%q: has size %d and %d bytes", rel, st.Size, len(data))
		}
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, bytes.NewReader(data))
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		return unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{st.Atim, st.Mtim}, 0)
	})
}
