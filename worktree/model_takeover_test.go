package worktree_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/worktree"
)

// takesOver reports whether a process takes over the mount of the previous one.
func takesOver(seed, life uint64) bool {
	return life > 1 && rand.New(rand.NewPCG(seed, ^life)).IntN(3) > 0
}

// kernelSide is the state of the kernel and of programs when the serving process is killed.
type kernelSide struct {
	Open    []openSide
	Request modelRequest // the request that was not answered
	Made    uint64       // number of requests so far
	Listing listingSide
}

// openSide is an open file.
type openSide struct {
	Node worktree.Node
	Path string // one of its names in the plain directory; "" if it has none
	Data []byte // its contents if it has no name
}

// modelRequest is a change of names.
type modelRequest struct {
	ID       uint64
	Op       string
	Dir, To  worktree.Node
	Name, As string // As: the other name, or the target of a symbolic link
	Plain    string // path in the plain directory
	PlainTo  string
	Flags    int
	Node     worktree.Node
	Value    []byte
	Mode     uint32
}

// listingSide is a program that has read a part of a directory.
type listingSide struct {
	Path string
	Node worktree.Node
	From uint64
	Seen []string
}

func (m *model) sidePath(life uint64) string { return filepath.Join(m.dir, fmt.Sprint("kernel", life)) }

// request returns a context for the next request.
func (m *model) request(again bool, id uint64) context.Context {
	return context.WithValue(m.t.Context(), worktree.RequestKey{}, &worktree.Request{ID: id, Again: again})
}

// invent returns a random request.
func (m *model) invent() (r modelRequest) {
	x, y := m.pick(), m.pick()
	m.requests++
	r = modelRequest{
		ID: 2 * m.requests, Dir: x.dir, Name: x.name, Plain: x.plain, To: y.dir, As: y.name, PlainTo: y.plain,
		Mode: uint32(m.rng.IntN(0o1000)),
	}
	ops := []string{"mknod", "mkdir", "symlink", "link", "unlink", "rmdir", "rename", "rename", "setxattr",
		"removexattr", "tmpfile"}
	r.Op = ops[m.rng.IntN(len(ops))]
	exists := func(kinds ...uint32) (target, bool) {
		return m.existing(kinds[m.rng.IntN(len(kinds))])
	}
	switch r.Op {
	case "link":
		x, ok := exists(syscall.S_IFREG, syscall.S_IFLNK)
		if !ok {
			return m.invent()
		}
		r.Node, r.Plain = x.node, x.plain
	case "rename":
		r.Flags = []int{0, 0, unix.RENAME_NOREPLACE, unix.RENAME_EXCHANGE}[m.rng.IntN(4)]
		if x.node != 0 && r.Flags == 0 && strings.HasPrefix(x.path, y.path+"/") {
			return m.invent() // see stepRename
		}
	case "setxattr", "removexattr":
		x, ok := exists(syscall.S_IFREG, syscall.S_IFDIR)
		if !ok {
			return m.invent()
		}
		r.Node, r.Plain, r.Name = x.node, x.plain, "user."+m.name()
		r.Flags, r.Value = []int{0, unix.XATTR_CREATE, unix.XATTR_CREATE, unix.XATTR_REPLACE}[m.rng.IntN(4)],
			[]byte(fmt.Sprint(r.ID))
	}
	return r
}

// ask sends a request to the tree. A created node counts as looked up, as with package fuse.
func (m *model) ask(r *modelRequest, again bool) (a worktree.Attr, err error) {
	ctx := m.request(again, r.ID)
	switch r.Op {
	case "mknod":
		a, err = m.Mknod(ctx, r.Dir, r.Name, syscall.S_IFREG|r.Mode, 0, worktree.Cred{})
	case "mkdir":
		a, err = m.Mkdir(ctx, r.Dir, r.Name, r.Mode|0o700, worktree.Cred{})
	case "symlink":
		a, err = m.Symlink(ctx, r.Dir, r.Name, r.As, worktree.Cred{})
	case "link":
		a, err = m.Link(ctx, r.Node, r.To, r.As)
	case "tmpfile":
		a, err = m.Tmpfile(ctx, r.Dir, r.Mode|0o600, worktree.Cred{})
	case "unlink":
		err = m.Unlink(ctx, r.Dir, r.Name)
	case "rmdir":
		err = m.Rmdir(ctx, r.Dir, r.Name)
	case "rename":
		err = m.Rename(ctx, r.Dir, r.Name, r.To, r.As, uint32(r.Flags))
	case "setxattr":
		err = m.Xattrs().Set(ctx, r.Node, r.Name, r.Value, r.Flags)
	case "removexattr":
		err = m.Xattrs().Remove(ctx, r.Node, r.Name)
	}
	if a.Node != 0 {
		m.Kernel().Remember(a.Node)
	}
	return a, err
}

// askPlain makes the same change in the plain directory. A file without a name is a descriptor.
func (m *model) askPlain(r *modelRequest) (fd int, err error) {
	switch r.Op {
	case "mknod":
		err = unix.Mknod(r.Plain, syscall.S_IFREG|r.Mode, 0)
	case "mkdir":
		err = unix.Mkdir(r.Plain, r.Mode|0o700)
	case "symlink":
		err = unix.Symlink(r.As, r.Plain)
	case "link":
		err = unix.Link(r.Plain, r.PlainTo)
	case "tmpfile":
		return unix.Open(filepath.Dir(r.Plain), unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, r.Mode|0o600)
	case "unlink":
		err = unix.Unlink(r.Plain)
	case "rmdir":
		err = unix.Rmdir(r.Plain)
	case "rename":
		err = unix.Renameat2(unix.AT_FDCWD, r.Plain, unix.AT_FDCWD, r.PlainTo, uint(r.Flags))
	case "setxattr":
		err = unix.Lsetxattr(r.Plain, r.Name, r.Value, r.Flags)
	case "removexattr":
		err = unix.Lremovexattr(r.Plain, r.Name)
	}
	return 0, err
}

// dieBusy ends the process during a request, or between a request and its reply, and stores the kernel's side for the
// next process.
func (m *model) dieBusy(life uint64) {
	side := kernelSide{Request: m.invent()}
	side.Made = m.requests
	for _, f := range m.files {
		side.Open = append(side.Open, m.openSide(f))
	}
	side.Listing = m.beginListing()
	data, err := json.Marshal(side)
	m.ok(err)
	m.ok(os.WriteFile(m.sidePath(life), data, 0o600))
	switch m.rng.IntN(4) {
	case 0: // the request was never read
	case 1:
		r := side.Request
		go m.ask(&r, false)
		for end := time.Now().Add(time.Duration(m.rng.IntN(60)) * time.Microsecond); time.Now().Before(end); {
		}
	default:
		_, _ = m.ask(&side.Request, false)
	}
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

func (m *model) openSide(f modelFile) openSide {
	side := openSide{Node: f.node}
	var st unix.Stat_t
	m.ok(unix.Fstat(f.fd, &st))
	if st.Nlink == 0 {
		side.Data = make([]byte, st.Size)
		_, err := unix.Pread(f.fd, side.Data, 0)
		m.ok(err)
		return side
	}
	m.ok(filepath.WalkDir(m.plain, func(path string, d os.DirEntry, err error) error {
		var at unix.Stat_t
		if err == nil && unix.Lstat(path, &at) == nil && at.Ino == st.Ino {
			side.Path = path
		}
		return err
	}))
	return side
}

// beginListing reads a part of a directory.
func (m *model) beginListing() (l listingSide) {
	l.Node = worktree.Root
	if x, ok := m.existing(syscall.S_IFDIR); ok && m.rng.IntN(4) > 0 {
		l.Path, l.Node = x.path, x.node
	}
	left := m.rng.IntN(6)
	m.ok(m.ReadDir(m.t.Context(), l.Node, 0, func(e worktree.Entry) bool {
		if left == 0 {
			return false
		}
		l.Seen, l.From, left = append(l.Seen, strings.Clone(e.Name)), e.Next, left-1
		return true
	}))
	return l
}

// takeOverFrom continues where the previous process was killed: the kernel sends the unanswered request again.
func (m *model) takeOverFrom(life uint64) {
	data, err := os.ReadFile(m.sidePath(life))
	m.ok(err)
	var side kernelSide
	m.ok(json.Unmarshal(data, &side))
	m.requests = side.Made
	m.open()
	for _, f := range side.Open { // before the request changes their names
		m.files = append(m.files, modelFile{f.Node, m.openAgain(f)})
	}
	r := side.Request
	what := fmt.Sprintf("again %+v", r)
	a, err := m.ask(&r, true)
	fd, want := m.askPlain(&r)
	if m.same(what, err, want) && fd > 0 {
		m.files = append(m.files, modelFile{a.Node, fd})
	} else if a.Node != 0 {
		m.Kernel().Forget(a.Node, 1)
	}
	if more, err := m.ask(&r, true); want == nil {
		if err != nil || more.Node != a.Node {
			m.t.Errorf("%s, repeated: got node %d, then %d, %v", what, a.Node, more.Node, err)
		} else if more.Node != 0 {
			m.Kernel().Forget(more.Node, 1)
		}
	}
	m.endListing(side.Listing, &r)
	for range 3 * len(m.files) {
		m.stepOpenFile()
	}
}

// openAgain returns a plain file with the state of one that was open in the previous process.
func (m *model) openAgain(f openSide) int {
	if f.Path != "" {
		fd, err := unix.Open(f.Path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		m.ok(err)
		return fd
	}
	for _, other := range m.files {
		if other.node == f.Node {
			fd, err := unix.Dup(other.fd)
			m.ok(err)
			return fd
		}
	}
	fd, err := unix.Open(m.dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	m.ok(err)
	_, err = unix.Pwrite(fd, f.Data, 0)
	m.ok(err)
	return fd
}

// endListing reads the rest of a directory. Both parts together must be the whole directory, except for the names that
// the request changed.
func (m *model) endListing(l listingSide, r *modelRequest) {
	if a, err := m.Attr(m.t.Context(), l.Node); err != nil || a.Nlink == 0 {
		return // the request removed the directory
	}
	at, err := m.Path(l.Node)
	m.ok(err)
	list := slices.Clone(l.Seen)
	m.ok(m.ReadDir(m.t.Context(), l.Node, l.From, func(e worktree.Entry) bool {
		list = append(list, strings.Clone(e.Name))
		return true
	}))
	touched := func(name string) bool { return name == r.Name || name == r.As }
	list = slices.DeleteFunc(list, touched)
	slices.Sort(list)
	entries, err := os.ReadDir(filepath.Join(m.plain, at))
	m.ok(err)
	var want []string
	for _, e := range entries {
		if !touched(e.Name()) {
			want = append(want, e.Name())
		}
	}
	if !slices.Equal(list, want) {
		m.t.Errorf("listing of %q across the takeover: got %q, want %q", at, list, want)
	}
}
