package worktree_test

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
	. "github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/overlay"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// workspace is a tree that can be changed, and be closed and opened again.
type workspace struct {
	t   *testing.T
	src *worktreetest.Source
	dir string // directory of the inode table and the overlay
	*Tree

	takeOver bool              // of the mount of a killed process
	later    time.Duration     // how much later than commitTime Options.Time is
	shares   string            // directory of the shares; "" if there is none
	segments []overlay.Segment // contents that a new overlay uses
}

func newWorkspace(t *testing.T, files map[string]worktreetest.File) *workspace {
	t.Helper()
	w := &workspace{t: t, src: worktreetest.New(files), dir: t.TempDir()}
	w.open()
	t.Cleanup(func() {
		w.close()
		if n := w.src.Unreleased(); n != 0 {
			t.Errorf("got %d contents that were not released", n)
		}
	})
	return w
}

func (w *workspace) open() {
	w.t.Helper()
	tree, err := Open(filepath.Join(w.dir, "inodes"), w.src, Options{
		Root: w.src.Root, Time: commitTime.Add(w.later), Overlay: filepath.Join(w.dir, "overlay"),
		Journal:  filepath.Join(w.dir, "journal"),
		TakeOver: w.takeOver, Shares: w.shares, Segments: w.segments,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	if r := tree.Overlay().Recovery(); len(r.Problems) != 0 {
		w.t.Errorf("problems at open: %q", r.Problems)
	}
	w.Tree, w.takeOver = tree, false
}

func (w *workspace) close() {
	w.t.Helper()
	if err := w.Close(); err != nil {
		w.t.Error(err)
	}
}

func (w *workspace) reopen() {
	w.t.Helper()
	w.close()
	w.open()
}

// at returns the directory and the name of a path.
func (w *workspace) at(path string) (Node, string) {
	w.t.Helper()
	dir, name := filepath.Split(path)
	return lookup(w.t, w.Tree, dir), name
}

func (w *workspace) node(path string) Node {
	w.t.Helper()
	return lookup(w.t, w.Tree, path)
}

func (w *workspace) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// want checks an operation's error.
func (w *workspace) want(what string, err, want error) {
	w.t.Helper()
	if !errors.Is(err, want) {
		w.t.Errorf("%s: got error %v, want %v", what, err, want)
	}
}

func (w *workspace) mkdir(path string) Node {
	w.t.Helper()
	dir, name := w.at(path)
	a, err := w.Mkdir(w.t.Context(), dir, name, 0o755, Cred{})
	w.ok(err)
	return a.Node
}

// create creates a file with contents.
func (w *workspace) create(path, data string) Node {
	w.t.Helper()
	dir, name := w.at(path)
	a, err := w.Mknod(w.t.Context(), dir, name, syscall.S_IFREG|0o644, 0, Cred{})
	w.ok(err)
	w.write(a.Node, data, 0)
	return a.Node
}

func (w *workspace) write(n Node, data string, off int64) {
	w.t.Helper()
	k, err := w.Write(w.t.Context(), n, []byte(data), off, false)
	if err != nil || k != len(data) {
		w.t.Fatalf("write: wrote %d of %d bytes, %v", k, len(data), err)
	}
}

func (w *workspace) rename(from, to string) error {
	w.t.Helper()
	return w.renameWith(from, to, 0)
}

func (w *workspace) renameWith(from, to string, flags uint32) error {
	w.t.Helper()
	dir, name := w.at(from)
	newDir, newName := w.at(to)
	return w.Rename(w.t.Context(), dir, name, newDir, newName, flags)
}

func (w *workspace) link(from, to string) error {
	w.t.Helper()
	dir, name := w.at(to)
	_, err := w.Link(w.t.Context(), w.node(from), dir, name)
	return err
}

func (w *workspace) unlink(path string) error {
	w.t.Helper()
	dir, name := w.at(path)
	return w.Unlink(w.t.Context(), dir, name)
}

func (w *workspace) rmdir(path string) error {
	w.t.Helper()
	dir, name := w.at(path)
	return w.Rmdir(w.t.Context(), dir, name)
}

func (w *workspace) set(path string, c Change) Attr {
	w.t.Helper()
	a, err := w.SetAttr(w.t.Context(), w.node(path), c)
	w.ok(err)
	return a
}

// read returns the contents of a node.
func (w *workspace) read(n Node) string {
	w.t.Helper()
	p := make([]byte, 1<<20)
	k, err := w.Read(w.t.Context(), n, p, 0)
	w.ok(err)
	return string(p[:k])
}

func (w *workspace) stat(path string) Attr {
	w.t.Helper()
	return stat(w.t, w.Tree, path)
}

// contents checks the contents of files, and the other names in the root directory.
func (w *workspace) contents(want map[string]string) {
	w.t.Helper()
	for path, data := range want {
		if got := w.read(w.node(path)); got != data {
			w.t.Errorf("contents of %s: got %.40q, want %.40q", path, got, data)
		}
		if a := w.stat(path); a.Size != int64(len(data)) {
			w.t.Errorf("%s: got size %d, want %d", path, a.Size, len(data))
		}
	}
}

func (w *workspace) list(dir string) string {
	w.t.Helper()
	list := names(w.t, w.Tree, w.node(dir), 0)
	slices.Sort(list)
	return strings.Join(list, " ")
}

// listing checks the names in a directory.
func (w *workspace) listing(dir, want string) {
	w.t.Helper()
	if got := w.list(dir); got != want {
		w.t.Errorf("listing of %q: got %q, want %q", dir, got, want)
	}
}

// both runs checks now and again after the tree was reopened.
func (w *workspace) both(check func()) {
	w.t.Helper()
	check()
	w.reopen()
	check()
}

func TestCreate(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{"dir/x": {Data: "x"}})
	ctx := t.Context()
	w.create("new", "hello")
	w.mkdir("dir/sub")
	w.mkdir("own")
	w.mkdir("own/sub")
	fifo, err := w.Mknod(ctx, Root, "fifo", syscall.S_IFIFO|0o600, 0, Cred{UID: 5, GID: 6})
	w.ok(err)
	device, err := w.Mknod(ctx, Root, "null", syscall.S_IFCHR|0o666, 0x103, Cred{})
	w.ok(err)
	link, err := w.Symlink(ctx, Root, "link", "dir/x", Cred{UID: 7, GID: 8})
	w.ok(err)
	dir, name := w.at("new")
	_, exists := w.Mknod(ctx, dir, name, syscall.S_IFREG, 0, Cred{})
	w.want("create what exists", exists, syscall.EEXIST)
	dir, name = w.at("dir")
	_, exists = w.Mkdir(ctx, dir, name, 0o755, Cred{})
	w.want("make a directory that the base has", exists, syscall.EEXIST)
	_, long := w.Mknod(ctx, Root, strings.Repeat("n", 256), syscall.S_IFREG, 0, Cred{})
	w.want("a name of 256 bytes", long, syscall.ENAMETOOLONG)
	_, longest := w.Mknod(ctx, Root, strings.Repeat("n", 255), syscall.S_IFREG, 0, Cred{})
	w.want("a name of 255 bytes", longest, nil)
	w.ok(w.unlink(strings.Repeat("n", 255)))
	_, slash := w.Mknod(ctx, Root, "a/b", syscall.S_IFREG, 0, Cred{})
	w.want("a name with a slash", slash, syscall.EINVAL)
	_, inFile := w.Mknod(ctx, w.node("new"), "x", syscall.S_IFREG, 0, Cred{})
	w.want("create in a file", inFile, ErrNotDir)
	_, asDir := w.Mknod(ctx, Root, "d", syscall.S_IFDIR, 0, Cred{})
	w.want("mknod a directory", asDir, syscall.EPERM)
	_, noTarget := w.Symlink(ctx, Root, "l", "", Cred{})
	w.want("symlink to nothing", noTarget, ErrNotExist)
	w.both(func() {
		w.contents(map[string]string{"new": "hello", "dir/x": "x"})
		w.listing("", "dir fifo link new null own")
		w.listing("dir", "sub x")
		if a := w.stat("fifo"); a != fifo || a.Mode != syscall.S_IFIFO|0o600 || a.UID != 5 || a.GID != 6 || a.Nlink != 1 {
			t.Errorf("attributes of the fifo: got %+v, want %+v", a, fifo)
		}
		if a := w.stat("null"); a != device || a.Rdev != 0x103 {
			t.Errorf("attributes of the device: got %+v, want %+v", a, device)
		}
		if a := w.stat("link"); a != link || a.Size != 5 || a.Mode != syscall.S_IFLNK|0o777 {
			t.Errorf("attributes of the link: got %+v, want %+v", a, link)
		}
		if target, err := w.Readlink(ctx, link.Node); err != nil || string(target) != "dir/x" {
			t.Errorf("target of the link: got %q, %v", target, err)
		}
		if a := w.stat("own"); a.Nlink != 3 || a.Size != 4096 {
			t.Errorf("directory with one subdirectory: got %+v", a)
		}
		if a := w.stat("dir"); a.Nlink != 1 {
			t.Errorf("directory of the base tree: got %+v", a)
		}
	})
}

func TestSetgidDirectory(t *testing.T) {
	w := newWorkspace(t, nil)
	w.mkdir("d")
	w.set("d", Change{Set: SetMode | SetGID, Mode: 0o2775, GID: 50})
	w.set("d", Change{Set: SetMode, Mode: 0o2775})
	dir := w.node("d")
	f, err := w.Mknod(t.Context(), dir, "f", syscall.S_IFREG|0o644, 0, Cred{UID: 1, GID: 2})
	w.ok(err)
	d, err := w.Mkdir(t.Context(), dir, "d", 0o755, Cred{UID: 1, GID: 2})
	w.ok(err)
	if f.GID != 50 || f.UID != 1 || d.GID != 50 || d.Mode != syscall.S_IFDIR|0o2755 {
		t.Errorf("attributes of the file: got %+v, of the directory: got %+v", f, d)
	}
}

func TestRemove(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{"f": {Data: "f"}, "dir/a": {}, "dir/b": {},
		"module": {Mode: object.ModeGitlink}})
	w.want("remove what is not there", w.unlink("none"), ErrNotExist)
	w.want("unlink a directory", w.unlink("dir"), ErrIsDir)
	w.want("rmdir a file", w.rmdir("f"), ErrNotDir)
	w.want("rmdir nothing", w.rmdir("none"), ErrNotExist)
	w.want("rmdir with entries of the base", w.rmdir("dir"), syscall.ENOTEMPTY)
	w.ok(w.unlink("dir/a"))
	w.create("dir/new", "")
	w.ok(w.unlink("dir/b"))
	w.want("rmdir with a new entry", w.rmdir("dir"), syscall.ENOTEMPTY)
	w.listing("dir", "new")
	w.ok(w.unlink("dir/new"))
	removed := w.node("dir")
	w.Kernel().Remember(removed)
	w.ok(w.rmdir("dir"))
	if a, err := w.Attr(t.Context(), removed); err != nil || a.Nlink != 0 {
		t.Errorf("removed directory that is in use: got %+v, %v", a, err)
	}
	_, err := w.Mknod(t.Context(), removed, "x", syscall.S_IFREG, 0, Cred{})
	w.want("create in a removed directory", err, ErrNotExist)
	w.ok(w.unlink("f"))
	w.ok(w.rmdir("module"))
	w.both(func() { w.listing("", "") })
	w.mkdir("dir")
	w.both(func() { w.listing("", "dir"); w.listing("dir", "") })
}

// A removed file exists until the kernel has forgotten its node.
func TestUnlinkedInUse(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{"base": {Data: "from base"}, "changed": {Data: "old"}})
	w.create("own", "own data")
	w.write(w.node("changed"), "N", 0)
	files := map[string]string{"base": "from base", "changed": "Nld", "own": "own data"}
	nodes := make(map[string]Node)
	for path := range files {
		nodes[path] = w.node(path)
		w.Kernel().Remember(nodes[path])
		w.Kernel().Remember(nodes[path])
		w.ok(w.unlink(path))
	}
	w.listing("", "")
	for path, data := range files {
		w.Kernel().Forget(nodes[path], 1)
		if a, err := w.Attr(t.Context(), nodes[path]); err != nil || a.Nlink != 0 || w.read(nodes[path]) != data {
			t.Errorf("removed file %s that is still open: got attributes %+v, error %v, want no link and the same contents",
				path, a, err)
		}
		w.write(nodes[path], "more", int64(len(data)))
		if got := w.read(nodes[path]); got != data+"more" {
			t.Errorf("contents of %s: got %q", path, got)
		}
		if _, err := w.Path(nodes[path]); !errors.Is(err, ErrNotExist) {
			t.Errorf("path of the removed file %s: got %v", path, err)
		}
	}
	if n := w.Overlay().Stats().Contents; n != 3 {
		t.Errorf("contents files: got %d", n)
	}
	for _, n := range nodes {
		w.Kernel().Forget(n, 1)
	}
	if s := w.Overlay().Stats(); s.Contents != 0 || s.Hidden != 2 {
		t.Errorf("statistics after all nodes were forgotten: got %+v", s)
	}
	_, err := w.Attr(t.Context(), nodes["own"])
	w.want("attributes of what is gone", err, ErrNoNode)
}

func TestTmpfile(t *testing.T) {
	w := newWorkspace(t, nil)
	a, err := w.Tmpfile(t.Context(), Root, 0o600, Cred{UID: 1, GID: 2})
	w.ok(err)
	w.Kernel().Remember(a.Node)
	if a.Nlink != 0 || a.Mode != syscall.S_IFREG|0o600 || a.UID != 1 {
		t.Errorf("unnamed file: got %+v", a)
	}
	w.write(a.Node, "data", 0)
	w.listing("", "")
	_, err = w.Link(t.Context(), a.Node, Root, "named")
	w.ok(err)
	w.Kernel().Forget(a.Node, 1)
	w.both(func() { w.contents(map[string]string{"named": "data"}) })
	if a := w.stat("named"); a.Nlink != 1 {
		t.Errorf("file after it was linked: got %+v", a)
	}
}

func TestLinks(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{"a": {Data: "base"}, "dir/x": {}})
	w.want("link a directory", w.link("dir", "d2"), syscall.EPERM)
	w.want("link over a name", w.link("a", "dir/x"), syscall.EEXIST)
	w.ok(w.link("a", "dir/b"))
	w.ok(w.link("dir/b", "c"))
	w.create("own", "o")
	w.ok(w.link("own", "dir/own"))
	w.both(func() {
		for _, path := range []string{"a", "dir/b", "c"} {
			if x := w.stat(path); x.Nlink != 3 || x.Node != w.node("a") {
				t.Errorf("linked file %s: got %+v, want 3 links to one node", path, x)
			}
		}
	})
	w.ok(w.unlink("a"))
	w.write(w.node("c"), "B", 0)
	w.both(func() {
		w.contents(map[string]string{"dir/b": "Base", "c": "Base"})
		if x := w.stat("c"); x.Nlink != 2 {
			t.Errorf("file after a name was removed: got %+v", x)
		}
	})
	w.ok(w.rename("dir/b", "c")) // both are names of one file, so rename has no effect
	w.listing("", "c dir own")
	w.listing("dir", "b own x")
}

func TestXattr(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{"f": {Data: "f"}})
	n, ctx := w.node("f"), t.Context()
	_, err := w.Xattrs().Get(n, "user.x")
	w.want("get what is not there", err, syscall.ENODATA)
	_, err = w.Xattrs().Get(99, "user.x")
	w.want("get of no node", err, ErrNoNode)
	_, err = w.Xattrs().Get(n, "system.posix_acl_access")
	w.want("get an access control list that is not there", err, syscall.ENODATA)
	w.want("set what is no access control list", w.Xattrs().Set(ctx, n, "system.posix_acl_access", nil, 0), syscall.EINVAL)
	w.ok(w.Xattrs().Remove(ctx, n, "system.posix_acl_access"))
	w.want("set another attribute of the system", w.Xattrs().Set(ctx, n, "system.x", nil, 0), syscall.EOPNOTSUPP)
	w.want("replace what is not there", w.Xattrs().Set(ctx, n, "user.x", nil, unix.XATTR_REPLACE), syscall.ENODATA)
	w.ok(w.Xattrs().Set(ctx, n, "user.x", []byte("value\x00"), unix.XATTR_CREATE))
	w.want("create what is there", w.Xattrs().Set(ctx, n, "user.x", nil, unix.XATTR_CREATE), syscall.EEXIST)
	w.ok(w.Xattrs().Set(ctx, n, "security.capability", []byte{1}, 0))
	w.ok(w.Xattrs().Set(ctx, n, "user.empty", nil, 0))
	w.both(func() {
		if v, err := w.Xattrs().Get(n, "user.x"); err != nil || string(v) != "value\x00" {
			t.Errorf("value of the attribute: got %q, %v", v, err)
		}
		if v, err := w.Xattrs().Get(n, "user.empty"); err != nil || v == nil || len(v) != 0 {
			t.Errorf("empty value of the attribute: got %q, %v", v, err)
		}
		list, err := w.Xattrs().List(n)
		slices.Sort(list)
		if err != nil || !slices.Equal(list, []string{"security.capability", "user.empty", "user.x"}) {
			t.Errorf("names of the attributes: got %q, %v", list, err)
		}
	})
	w.ok(w.Xattrs().Remove(ctx, n, "user.x"))
	w.want("remove what is not there", w.Xattrs().Remove(ctx, n, "user.x"), syscall.ENODATA)
	if w.src.Calls("Open")+w.src.Calls("Size") != 0 {
		t.Error("contents were requested")
	}
}

func TestReadOnly(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{"f": {Data: "base"}})
	w.create("own", "work")
	w.write(w.node("f"), "B", 0)
	w.close()
	for _, o := range []Options{{Overlay: filepath.Join(w.dir, "overlay"), OverlayReadOnly: true}, {}} {
		o.Root = w.src.Root
		tree, err := Open(filepath.Join(w.dir, "inodes"), w.src, o)
		w.ok(err)
		w.Tree = tree
		ctx, f := t.Context(), w.node("f")
		_, mknod := w.Mknod(ctx, Root, "x", syscall.S_IFREG, 0, Cred{})
		_, write := w.Write(ctx, f, []byte("x"), 0, false)
		_, set := w.SetAttr(ctx, f, Change{Set: SetMode})
		_, truncate := w.SetAttr(ctx, f, Change{Set: SetSize})
		for what, err := range map[string]error{
			"mknod": mknod, "write": write, "setattr": set, "truncate": truncate, "unlink": w.unlink("f"), "rmdir": w.rmdir("f"),
			"rename": w.rename("f", "g"), "link": w.link("f", "g"), "xattr": w.Xattrs().Set(ctx, f, "user.x", nil, 0),
		} {
			w.want(what, err, syscall.EROFS)
		}
		if o.Overlay == "" {
			w.contents(map[string]string{"f": "base"})
			w.listing("", "f")
		} else {
			w.contents(map[string]string{"f": "Base", "own": "work"})
			w.listing("", "f own")
		}
		w.close()
	}
	w.open()
}

// truncate(2) to the current size does not change the times of a file, whether the file was changed before or not.
func TestTruncateToTheSameSize(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{"base": {Data: "1234"}})
	w.create("own", "12345")
	for path, size := range map[string]int64{"base": 4, "own": 5} {
		before := w.stat(path)
		if after := w.set(path, Change{Set: SetSize, Size: size}); after.Mtime != before.Mtime ||
			after.Ctime != before.Ctime {
			t.Errorf("attributes of %s: got %+v, want %+v", path, after, before)
		}
		mtime := int64(77)
		if after := w.set(path, Change{Set: SetSize | SetMtime, Size: size, Mtime: mtime}); after.Mtime != mtime ||
			after.Size != size {
			t.Errorf("%s after the size and mtime were set: %+v", path, after)
		}
		if after := w.set(path, Change{Set: SetSize, Size: 2}); after.Mtime == mtime || after.Size != 2 {
			t.Errorf("%s after the size alone was set: %+v, want a new mtime", path, after)
		}
	}
}
