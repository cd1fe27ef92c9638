package worktree_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/worktree"
)

// target is a name in a directory, which may or may not exist.
type target struct {
	path, plain string
	dir         worktree.Node
	name        string
	node        worktree.Node // 0 if the name does not exist
	kind        uint32        // S_IFMT bits of its mode
}

// pick chooses a name in an existing directory.
func (m *model) pick() target {
	dir := ""
	for m.rng.IntN(10) < 6 {
		next := filepath.Join(dir, m.name())
		var st unix.Stat_t
		if unix.Lstat(filepath.Join(m.plain, next), &st) == nil && st.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			dir = next
		}
	}
	x := target{dir: m.node(dir), name: m.name()}
	x.path = filepath.Join(dir, x.name)
	x.plain = filepath.Join(m.plain, x.path)
	var st unix.Stat_t
	want := unix.Lstat(x.plain, &st)
	a, err := m.Lookup(m.t.Context(), x.dir, x.name)
	if m.same("look up "+x.path, err, want) {
		x.node, x.kind = a.Node, st.Mode&syscall.S_IFMT
	}
	return x
}

// existing chooses an existing path of a kind, or of any kind if kind is 0.
func (m *model) existing(kind uint32) (target, bool) {
	for range 30 {
		if x := m.pick(); x.node != 0 && (kind == 0 || x.kind == kind) {
			return x, true
		}
	}
	return target{}, false
}

func (m *model) name() string { return modelNames[m.rng.IntN(len(modelNames))] }

// step runs one random operation.
func (m *model) step() {
	ops := []struct {
		weight int
		do     func()
	}{
		{10, m.stepCreate}, {5, m.stepMkdir}, {2, m.stepSymlink}, {1, m.stepFifo}, {5, m.stepLink}, {10, m.stepUnlink},
		{4, m.stepRmdir}, {14, m.stepRename}, {10, m.stepWrite}, {5, m.stepTruncate}, {3, m.stepFallocate}, {3, m.stepCopy},
		{5, m.stepChmod}, {2, m.stepChown}, {2, m.stepTimes}, {4, m.stepXattr}, {4, m.stepOpen}, {8, m.stepOpenFile},
		{2, m.stepTmpfile}, {1, m.stepSync},
	}
	all := 0
	for _, op := range ops {
		all += op.weight
	}
	at := m.rng.IntN(all)
	for _, op := range ops {
		if at -= op.weight; at < 0 {
			op.do()
			return
		}
	}
}

func (m *model) stepCreate() {
	x, mode := m.pick(), uint32(m.rng.IntN(0o1000))
	_, err := m.Mknod(m.t.Context(), x.dir, x.name, syscall.S_IFREG|mode, 0, worktree.Cred{})
	m.same("create "+x.path, err, unix.Mknod(x.plain, syscall.S_IFREG|mode, 0))
}

func (m *model) stepMkdir() {
	x := m.pick()
	_, err := m.Mkdir(m.t.Context(), x.dir, x.name, 0o755, worktree.Cred{})
	m.same("mkdir "+x.path, err, unix.Mkdir(x.plain, 0o755))
}

func (m *model) stepSymlink() {
	x := m.pick()
	_, err := m.Symlink(m.t.Context(), x.dir, x.name, "../"+x.path, worktree.Cred{})
	m.same("symlink "+x.path, err, unix.Symlink("../"+x.path, x.plain))
}

func (m *model) stepFifo() {
	x := m.pick()
	_, err := m.Mknod(m.t.Context(), x.dir, x.name, syscall.S_IFIFO|0o600, 0, worktree.Cred{})
	m.same("mkfifo "+x.path, err, unix.Mknod(x.plain, syscall.S_IFIFO|0o600, 0))
}

func (m *model) stepLink() {
	x, ok := m.existing(0)
	y := m.pick()
	// The kernel checks that the name is free before it checks that the file is not a directory.
	if !ok || x.kind == syscall.S_IFDIR && y.node != 0 {
		return
	}
	_, err := m.Link(m.t.Context(), x.node, y.dir, y.name)
	m.same("link "+x.path+" "+y.path, err, unix.Link(x.plain, y.plain))
}

func (m *model) stepUnlink() {
	x := m.pick()
	m.same("unlink "+x.path, m.Unlink(m.t.Context(), x.dir, x.name), unix.Unlink(x.plain))
}

func (m *model) stepRmdir() {
	x := m.pick()
	m.same("rmdir "+x.path, m.Rmdir(m.t.Context(), x.dir, x.name), unix.Rmdir(x.plain))
}

func (m *model) stepRename() {
	x, y := m.pick(), m.pick()
	flags := []uint{0, 0, 0, unix.RENAME_NOREPLACE, unix.RENAME_EXCHANGE}[m.rng.IntN(5)]
	if x.node != 0 && flags == 0 && len(x.path) > len(y.path) && x.path[:len(y.path)+1] == y.path+"/" {
		return // the kernel itself refuses to move a directory into its own subdirectory
	}
	before, _ := m.Attr(m.t.Context(), x.node)
	err := m.Rename(m.t.Context(), x.dir, x.name, y.dir, y.name, uint32(flags))
	want := unix.Renameat2(unix.AT_FDCWD, x.plain, unix.AT_FDCWD, y.plain, flags)
	what := fmt.Sprintf("rename %s %s, flags %d", x.path, y.path, flags)
	if !m.same(what, err, want) {
		return
	}
	after := m.stat(y.path)
	if before.Node != after.Node || x.path != y.path && before.Mtime != after.Mtime && x.kind != syscall.S_IFDIR {
		m.t.Errorf("%s: %s changed node %d to %d and mtime %d to %d", m.what, what, before.Node, after.Node,
			before.Mtime, after.Mtime)
	}
}

// data returns random bytes and a random offset.
func (m *model) data() (p []byte, off int64) {
	if m.rng.IntN(2) == 0 {
		off = int64(m.rng.IntN(12_000))
	}
	if m.rng.IntN(20) == 0 {
		off += int64(m.rng.IntN(300_000))
	}
	return bytes.Repeat([]byte{byte('A' + m.rng.IntN(26))}, 1+m.rng.IntN(9000)), off
}

// onPlain runs an operation on an open plain file.
func (m *model) onPlain(path string, f func(fd int)) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	m.ok(err)
	defer unix.Close(fd)
	f(fd)
}

func (m *model) writeBoth(what string, n worktree.Node, fd int) {
	p, off := m.data()
	k, err := m.Write(m.t.Context(), n, p, off, false)
	l, want := unix.Pwrite(fd, p, off)
	if m.same(what, err, want) && k != l {
		m.t.Errorf("%s: %s: got %d bytes, want %d", m.what, what, k, l)
	}
}

func (m *model) truncateBoth(what string, n worktree.Node, fd int) {
	size := int64(0)
	if m.rng.IntN(3) > 0 {
		size = int64(m.rng.IntN(20_000))
	}
	_, err := m.SetAttr(m.t.Context(), n, worktree.Change{Set: worktree.SetSize, Size: size})
	m.same(what, err, unix.Ftruncate(fd, size))
}

func (m *model) stepWrite() {
	if x, ok := m.existing(syscall.S_IFREG); ok {
		m.onPlain(x.plain, func(fd int) { m.writeBoth("write "+x.path, x.node, fd) })
	}
}

func (m *model) stepTruncate() {
	if x, ok := m.existing(syscall.S_IFREG); ok {
		m.onPlain(x.plain, func(fd int) { m.truncateBoth("truncate "+x.path, x.node, fd) })
	}
}

func (m *model) stepFallocate() {
	x, ok := m.existing(syscall.S_IFREG)
	if !ok {
		return
	}
	modes := []uint32{0, unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE,
		unix.FALLOC_FL_ZERO_RANGE}
	mode := modes[m.rng.IntN(len(modes))]
	off, n := int64(m.rng.IntN(10_000)), int64(1+m.rng.IntN(10_000))
	m.onPlain(x.plain, func(fd int) {
		var before, after unix.Stat_t
		m.ok(unix.Fstat(fd, &before))
		err := m.Fallocate(m.t.Context(), x.node, mode, off, n)
		m.same(fmt.Sprintf("fallocate %s, mode %d", x.path, mode), err, unix.Fallocate(fd, mode, off, n))
		m.ok(unix.Fstat(fd, &after))
		if before.Mode != after.Mode { // not every kernel clears set-user-ID here
			m.ok(unix.Fchmod(fd, m.stat(x.path).Mode&0o7777))
		}
	})
	m.ok(unix.Chmod(x.plain, m.stat(x.path).Mode&0o7777))
}

func (m *model) stepCopy() {
	x, ok := m.existing(syscall.S_IFREG)
	y, too := m.existing(syscall.S_IFREG)
	if !ok || !too || x.node == y.node {
		return
	}
	from, to, n := int64(m.rng.IntN(5000)), int64(m.rng.IntN(5000)), int64(1+m.rng.IntN(9000))
	m.onPlain(x.plain, func(source int) {
		m.onPlain(y.plain, func(fd int) {
			p := make([]byte, n)
			k, err := unix.Pread(source, p, from)
			m.ok(err)
			_, err = unix.Pwrite(fd, p[:k], to)
			m.ok(err)
			for done := int64(0); done < int64(k); {
				l, err := m.CopyRange(m.t.Context(), x.node, from+done, y.node, to+done, n-done)
				if err != nil || l == 0 {
					m.t.Fatalf("%s: copy %s to %s: copied %d of %d bytes, %v", m.what, x.path, y.path, done, k, err)
				}
				done += l
			}
		})
	})
	m.ok(unix.Chmod(y.plain, m.stat(y.path).Mode&0o7777)) // see stepFallocate
}

func (m *model) stepChmod() {
	x, ok := m.existing(0)
	if !ok || x.kind == syscall.S_IFLNK {
		return
	}
	mode := uint32(m.rng.IntN(0o10000))
	_, err := m.SetAttr(m.t.Context(), x.node, worktree.Change{Set: worktree.SetMode, Mode: mode})
	m.same("chmod "+x.path, err, unix.Chmod(x.plain, mode))
}

func (m *model) stepChown() {
	x, ok := m.existing(0)
	if !ok {
		return
	}
	uid, gid := m.rng.IntN(3), m.rng.IntN(4)-1 // -1: unchanged
	c := worktree.Change{Set: worktree.SetUID | worktree.SetGID, UID: uint32(uid), GID: uint32(gid)}
	if gid < 0 {
		c.Set = worktree.SetUID
	} else if m.rng.IntN(2) == 0 {
		uid, c.Set = -1, worktree.SetGID
	}
	_, err := m.SetAttr(m.t.Context(), x.node, c)
	m.same("chown "+x.path, err, unix.Lchown(x.plain, uid, gid))
}

func (m *model) stepTimes() {
	x, ok := m.existing(0)
	if !ok {
		return
	}
	atime, mtime := m.rng.Int64N(2e18), m.rng.Int64N(2e18)
	c := worktree.Change{Set: worktree.SetAtime | worktree.SetMtime, Atime: atime, Mtime: mtime}
	a, err := m.SetAttr(m.t.Context(), x.node, c)
	times := []unix.Timespec{unix.NsecToTimespec(atime), unix.NsecToTimespec(mtime)}
	want := unix.UtimesNanoAt(unix.AT_FDCWD, x.plain, times, unix.AT_SYMLINK_NOFOLLOW)
	if m.same("set times of "+x.path, err, want) && (a.Atime != atime || a.Mtime != mtime) {
		m.t.Errorf("%s: times of %s: got %+v, want %d, %d", m.what, x.path, a, atime, mtime)
	}
}

func (m *model) stepXattr() {
	x, ok := m.existing(0)
	if !ok || x.kind != syscall.S_IFREG && x.kind != syscall.S_IFDIR {
		return
	}
	name := "user." + m.name()
	if m.rng.IntN(3) == 0 {
		m.same("remove attribute of "+x.path, m.Xattrs().Remove(m.t.Context(), x.node, name),
			unix.Lremovexattr(x.plain, name))
		return
	}
	flags := []int{0, unix.XATTR_CREATE, unix.XATTR_REPLACE}[m.rng.IntN(3)]
	value := bytes.Repeat([]byte("v"), m.rng.IntN(50))
	err := m.Xattrs().Set(m.t.Context(), x.node, name, value, flags)
	m.same("set attribute of "+x.path, err, unix.Lsetxattr(x.plain, name, value, flags))
}

func (m *model) stepOpen() {
	x, ok := m.existing(syscall.S_IFREG)
	if !ok || len(m.files) > 8 {
		return
	}
	fd, err := unix.Open(x.plain, unix.O_RDWR|unix.O_CLOEXEC, 0)
	m.ok(err)
	m.Kernel().Remember(x.node)
	m.files = append(m.files, modelFile{x.node, fd})
}

func (m *model) stepTmpfile() {
	x := m.pick()
	fd, err := unix.Open(filepath.Dir(x.plain), unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	m.ok(err)
	a, err := m.Tmpfile(m.t.Context(), x.dir, 0o600, worktree.Cred{})
	m.ok(err)
	m.Kernel().Remember(a.Node)
	m.files = append(m.files, modelFile{a.Node, fd})
	m.writeBoth("write unnamed file", a.Node, fd)
	if m.rng.IntN(2) == 0 {
		_, err := m.Link(m.t.Context(), a.Node, x.dir, x.name)
		want := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, x.plain,
			unix.AT_SYMLINK_FOLLOW)
		m.same("name unnamed file "+x.path, err, want)
	}
}

// stepOpenFile uses an open file, which may have been removed.
func (m *model) stepOpenFile() {
	if len(m.files) == 0 {
		return
	}
	i := m.rng.IntN(len(m.files))
	f := m.files[i]
	switch m.rng.IntN(4) {
	case 0:
		m.writeBoth("write open file", f.node, f.fd)
	case 1:
		m.truncateBoth("truncate open file", f.node, f.fd)
	case 2:
		got, want := make([]byte, 30_000), make([]byte, 30_000)
		off := int64(m.rng.IntN(5000))
		k, err := m.Read(m.t.Context(), f.node, got, off)
		l, wantErr := unix.Pread(f.fd, want, off)
		if m.same("read open file", err, wantErr) && !bytes.Equal(got[:k], want[:l]) {
			m.t.Errorf("%s: contents of the open file differ: got %d bytes at %d, want %d", m.what, k, off, l)
		}
	case 3:
		var st unix.Stat_t
		m.ok(unix.Fstat(f.fd, &st))
		a, err := m.Attr(m.t.Context(), f.node)
		if err != nil || uint64(a.Nlink) != uint64(st.Nlink) || a.Size != st.Size {
			m.t.Errorf("%s: open file: got %+v, %v, want %d links, size %d", m.what, a, err, st.Nlink, st.Size)
		}
		unix.Close(f.fd)
		m.Kernel().Forget(f.node, 1)
		m.files = append(m.files[:i], m.files[i+1:]...)
	}
}

func (m *model) stepSync() {
	x := m.pick()
	m.ok(m.FsyncDir(m.t.Context(), x.dir))
	if x.node != 0 {
		m.ok(m.Fsync(m.t.Context(), x.node, false))
	}
}
