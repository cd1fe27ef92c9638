package torture

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// inode is the model of one file or directory.
type inode struct {
	kind    uint32 // file type (S_IFMT)
	ino     uint64
	links   int // number of names; not used for directories
	perm    uint32
	data    string // contents, or target of a symbolic link
	xattrs  map[string]string
	entries map[string]*inode // entries of a directory, by name
}

// namespace is a directory of the mount with a model of its contents.
type namespace struct {
	*job
	root *inode
}

// names runs random operations on names and compares the results with a model. An operation that is applied twice
// returns an error the second time: EEXIST for mkdir, ENOENT for unlink.
func (j *job) names() error {
	n := &namespace{j, newInode(unix.S_IFDIR, 0o755)}
	for i := 0; !j.over(1); i++ {
		if err := n.step(); err != nil {
			return err
		}
		if i%8 == 0 {
			j.pace(4 * time.Millisecond)
		}
		if i%1000 == 999 {
			if err := n.checkAll(); err != nil {
				return err
			}
		}
	}
	return n.checkAll()
}

// signals runs random operations like names, while signals interrupt them. An operation that returns EINTR must have
// had no effect.
func (j *job) signals() error {
	runtime.LockOSThread()
	pid, tid := os.Getpid(), unix.Gettid()
	rnd := rand.New(rand.NewPCG(j.seed, 9))
	go func() {
		for {
			time.Sleep(time.Duration(rnd.IntN(3000)) * time.Microsecond)
			unix.Tgkill(pid, tid, unix.SIGURG) // Go handles this signal with SA_RESTART and otherwise ignores it
		}
	}()
	return j.names()
}

func newInode(kind, perm uint32) *inode {
	i := &inode{kind: kind, perm: perm, links: 1, xattrs: map[string]string{}}
	if kind == unix.S_IFDIR {
		i.entries = map[string]*inode{}
	}
	return i
}

// place is a path in the model: an existing directory, and a name in it that may or may not exist.
type place struct {
	dir  *inode
	path string // path relative to the job's directory
}

func (p place) name() string             { return path.Base(p.path) }
func (p place) inode() *inode            { return p.dir.entries[p.name()] }
func (p place) set(i *inode)             { p.dir.entries[p.name()] = i }
func (p place) unset()                   { delete(p.dir.entries, p.name()) }
func (p place) isDir() bool              { i := p.inode(); return i != nil && i.kind == unix.S_IFDIR }
func (p place) has() bool                { return p.inode() != nil }
func (n *namespace) real(p place) string { return filepath.Join(n.dir, p.path) }

// somewhere returns a random place. The name exists in about half of the results.
func (n *namespace) somewhere() place {
	dir, at := n.root, ""
	for depth := 0; ; depth++ {
		var below []string
		for _, name := range slices.Sorted(maps.Keys(dir.entries)) {
			if dir.entries[name].kind == unix.S_IFDIR {
				below = append(below, name)
			}
		}
		if depth == 5 || len(below) == 0 || n.rnd.IntN(3) == 0 {
			return place{dir, path.Join(at, fmt.Sprintf("n%d", n.rnd.IntN(12)))}
		}
		name := below[n.rnd.IntN(len(below))]
		dir, at = dir.entries[name], path.Join(at, name)
	}
}

// step does one random operation. It compares the result, and the entries at the places that the operation uses, with
// the model.
func (n *namespace) step() error {
	a, b := n.somewhere(), n.somewhere()
	at, to := n.real(a), n.real(b)
	var what string
	var got error
	want, then := unix.Errno(0), func() {}
	do := func(f func() error) { got = again(f) }
	create := func(kind, perm uint32, data string, f func() error) {
		want, then = taken(a), func() {
			i := newInode(kind, perm)
			i.data = data
			a.set(i)
		}
		do(f)
	}
	switch op := n.rnd.IntN(32); {
	case op < 5:
		what = "create"
		create(unix.S_IFREG, 0o640, "", func() error {
			fd, err := unix.Open(at, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o640)
			if err == nil {
				unix.Close(fd)
			}
			return err
		})
	case op < 9:
		what = "mkdir"
		create(unix.S_IFDIR, 0o755, "", func() error { return unix.Mkdir(at, 0o755) })
	case op < 11:
		what = "symlink"
		create(unix.S_IFLNK, 0o777, b.path, func() error { return unix.Symlink(b.path, at) })
	case op == 11:
		what = "mkfifo"
		create(unix.S_IFIFO, 0o600, "", func() error { return unix.Mkfifo(at, 0o600) })
	case op < 14:
		what, want = "link", linked(a, b)
		do(func() error { return unix.Linkat(unix.AT_FDCWD, at, unix.AT_FDCWD, to, 0) })
		then = func() { b.set(a.inode()); a.inode().links++ }
	case op < 17:
		what, want, then = "unlink", unlinked(a), func() { a.inode().links--; a.unset() }
		do(func() error { return unix.Unlink(at) })
	case op < 19:
		what, want, then = "rmdir", removed(a), a.unset
		do(func() error { return unix.Rmdir(at) })
	case op < 24:
		if a.isDir() && strings.Count(b.path, "/") > 3 || b.isDir() && strings.Count(a.path, "/") > 3 {
			// do not move a directory below another one, because repeated moves would result in a path that is too long
			return nil
		}
		if a.path == b.path || strings.HasPrefix(b.path, a.path+"/") || strings.HasPrefix(a.path, b.path+"/") {
			return nil // skip, because file systems return different errnos
		}
		what, want, then = n.rename(a, b, do)
	case op < 26:
		what, want, then = n.setxattr(a, do)
	case op == 26:
		name := fmt.Sprintf("user.x%d", n.rnd.IntN(3))
		what, want, then = "removexattr", attributed(a), func() { delete(a.inode().xattrs, name) }
		if want == 0 && a.inode().xattrs[name] == "" {
			want = unix.ENODATA
		}
		do(func() error { return unix.Lremovexattr(at, name) })
	case op < 29: // append a text that occurs at most once in a file, so that a repeated append is detected
		if a.has() && a.inode().kind != unix.S_IFREG {
			return nil
		}
		text := fmt.Sprintf("%d;", n.rnd.Uint32())
		what, want, then = "append", missing(a), func() { a.inode().data += text }
		do(func() error { return appendTo(at, text) })
	case op == 29:
		if a.has() && a.inode().kind == unix.S_IFLNK {
			return nil
		}
		perm := []uint32{0o600, 0o755, 0o644}[n.rnd.IntN(3)]
		what, want, then = "chmod", missing(a), func() { a.inode().perm = perm }
		do(func() error { return unix.Fchmodat(unix.AT_FDCWD, at, perm, 0) })
	case op == 30:
		if a.has() && a.inode().kind != unix.S_IFREG {
			return nil
		}
		what, want, then = "truncate", missing(a), func() { a.inode().data = a.inode().data[:min(3, len(a.inode().data))] }
		size := int64(3)
		if a.has() {
			size = int64(min(3, len(a.inode().data)))
		}
		do(func() error { return unix.Truncate(at, size) })
	default: // link a file of O_TMPFILE to a name
		what, want, then = "tmpfile, link", taken(a), func() {
			i := newInode(unix.S_IFREG, 0o600)
			i.data = "t"
			a.set(i)
		}
		do(func() error { return tmpfileAt(n.dir, at) })
	}
	if errno, _ := got.(unix.Errno); errno != want {
		return fmt.Errorf("%s %s (%s): %w, want %v", what, a.path, b.path, got, want)
	}
	if want == 0 {
		then()
	}
	if err := n.check(a); err != nil {
		return fmt.Errorf("after %s %s (%s): %w", what, a.path, b.path, err)
	}
	if err := n.check(b); err != nil {
		return fmt.Errorf("after %s %s (%s): %w", what, a.path, b.path, err)
	}
	return nil
}

func taken(p place) unix.Errno {
	if p.has() {
		return unix.EEXIST
	}
	return 0
}

func missing(p place) unix.Errno {
	if !p.has() {
		return unix.ENOENT
	}
	return 0
}

func linked(a, b place) unix.Errno {
	switch {
	case !a.has():
		return unix.ENOENT
	case b.has():
		return unix.EEXIST
	case a.isDir():
		return unix.EPERM
	}
	return 0
}

func unlinked(p place) unix.Errno {
	switch {
	case !p.has():
		return unix.ENOENT
	case p.isDir():
		return unix.EISDIR
	}
	return 0
}

func removed(p place) unix.Errno {
	switch {
	case !p.has():
		return unix.ENOENT
	case !p.isDir():
		return unix.ENOTDIR
	case len(p.inode().entries) > 0:
		return unix.ENOTEMPTY
	}
	return 0
}

// attributed returns the error that an operation on user attributes must return before it examines the attributes, or
// 0.
func attributed(p place) unix.Errno {
	switch {
	case !p.has():
		return unix.ENOENT
	case p.inode().kind != unix.S_IFREG && p.inode().kind != unix.S_IFDIR:
		return unix.EPERM
	}
	return 0
}

func (n *namespace) rename(a, b place, do func(func() error)) (string, unix.Errno, func()) {
	from, to := n.real(a), n.real(b)
	x, y := a.inode(), b.inode()
	rename := func(flags uint) {
		do(func() error { return unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, flags) })
	}
	move := func() {
		if x == y {
			return
		}
		if y != nil {
			y.links--
		}
		a.unset()
		b.set(x)
	}
	switch n.rnd.IntN(4) {
	case 0:
		rename(unix.RENAME_NOREPLACE)
		if x == nil {
			return "rename without replacing", unix.ENOENT, nil
		}
		return "rename without replacing", taken(b), move
	case 1:
		rename(unix.RENAME_EXCHANGE)
		if x == nil || y == nil {
			return "exchange", unix.ENOENT, nil
		}
		return "exchange", 0, func() { a.set(y); b.set(x) }
	}
	rename(0)
	switch {
	case x == nil:
		return "rename", unix.ENOENT, nil
	case y != nil && a.isDir() && !b.isDir():
		return "rename", unix.ENOTDIR, nil
	case y != nil && !a.isDir() && b.isDir():
		return "rename", unix.EISDIR, nil
	case y != nil && b.isDir() && len(y.entries) > 0:
		return "rename", unix.ENOTEMPTY, nil
	}
	return "rename", 0, move
}

func (n *namespace) setxattr(a place, do func(func() error)) (string, unix.Errno, func()) {
	name, value := fmt.Sprintf("user.x%d", n.rnd.IntN(3)), fmt.Sprint("v", n.rnd.Uint32())
	flags := []int{0, unix.XATTR_CREATE, unix.XATTR_REPLACE}[n.rnd.IntN(3)]
	want := attributed(a)
	if want == 0 {
		switch there := a.inode().xattrs[name] != ""; {
		case there && flags == unix.XATTR_CREATE:
			want = unix.EEXIST
		case !there && flags == unix.XATTR_REPLACE:
			want = unix.ENODATA
		}
	}
	do(func() error { return unix.Lsetxattr(n.real(a), name, []byte(value), flags) })
	return fmt.Sprintf("setxattr with flags %d", flags), want, func() { a.inode().xattrs[name] = value }
}

func appendTo(at, text string) error {
	fd, err := unix.Open(at, unix.O_WRONLY|unix.O_APPEND|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = unix.Write(fd, []byte(text))
	if err2 := unix.Close(fd); err == nil && err2 != unix.EINTR { // the file is closed even after EINTR
		err = err2
	}
	return err
}

func tmpfileAt(dir, at string) error {
	fd, err := unix.Open(dir, unix.O_WRONLY|unix.O_TMPFILE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte("t")); err != nil {
		return err
	}
	return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, at, unix.AT_SYMLINK_FOLLOW)
}

// check compares the entry at a place with the model.
func (n *namespace) check(p place) error {
	i := p.inode()
	var st unix.Stat_t
	err := again(func() error { return unix.Lstat(n.real(p), &st) })
	switch {
	case i == nil && err == unix.ENOENT:
		return nil
	case i == nil && err == nil:
		return fmt.Errorf("check %s: exists, want no entry", p.path)
	case err != nil:
		return fmt.Errorf("stat %s: %w", p.path, err)
	}
	if i.ino == 0 {
		i.ino = st.Ino
	}
	if i.ino != st.Ino {
		return fmt.Errorf("%s has inode number %d, had %d", p.path, st.Ino, i.ino)
	}
	if st.Mode&unix.S_IFMT != i.kind || st.Mode&0o7777 != i.perm {
		return fmt.Errorf("%s has mode %o, want %o", p.path, st.Mode, i.kind|i.perm)
	}
	if i.kind != unix.S_IFDIR && int(st.Nlink) != i.links {
		return fmt.Errorf("%s has %d links, want %d", p.path, st.Nlink, i.links)
	}
	if i.kind == unix.S_IFREG && int(st.Size) != len(i.data) {
		return fmt.Errorf("%s has size %d, want %d", p.path, st.Size, len(i.data))
	}
	return nil
}

// checkAll compares all names, contents and attributes with the model.
func (n *namespace) checkAll() error { return n.checkDir(n.root, "") }

func (n *namespace) checkDir(dir *inode, at string) error {
	entries, err := os.ReadDir(filepath.Join(n.dir, at))
	if err != nil {
		return err
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if want := slices.Sorted(maps.Keys(dir.entries)); !slices.Equal(names, want) {
		return fmt.Errorf("directory %q has %q, want %q", at, names, want)
	}
	for _, name := range names {
		p := place{dir, path.Join(at, name)}
		i := p.inode()
		if err := n.check(p); err != nil {
			return err
		}
		if err := n.checkContent(p, i); err != nil {
			return err
		}
		if i.entries != nil {
			if err := n.checkDir(i, p.path); err != nil {
				return err
			}
		}
	}
	return nil
}

func (n *namespace) checkContent(p place, i *inode) error {
	var got string
	switch i.kind {
	case unix.S_IFREG:
		data, err := os.ReadFile(n.real(p))
		if err != nil {
			return err
		}
		got = string(data)
	case unix.S_IFLNK:
		target, err := os.Readlink(n.real(p))
		if err != nil {
			return err
		}
		got = target
	}
	if got != i.data {
		return fmt.Errorf("%s contains %q, want %q", p.path, got, i.data)
	}
	if i.kind != unix.S_IFREG && i.kind != unix.S_IFDIR {
		return nil
	}
	for x := range 3 {
		name, buf := fmt.Sprintf("user.x%d", x), make([]byte, 64)
		var size int
		err := again(func() (err error) {
			size, err = unix.Lgetxattr(n.real(p), name, buf)
			return err
		})
		if err == unix.ENODATA {
			size, err = 0, nil
		}
		if err != nil {
			return fmt.Errorf("getxattr %s: %w", p.path, err)
		}
		if string(buf[:size]) != i.xattrs[name] {
			return fmt.Errorf("%s has %s=%q, want %q", p.path, name, buf[:size], i.xattrs[name])
		}
	}
	return nil
}
