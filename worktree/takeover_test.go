package worktree_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	. "github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// copyLive copies the directory of a tree that still runs. It begins again if background work has removed a file
// between the file's listing and its copy.
func copyLive(dir, from string) error {
	for {
		err := os.CopyFS(dir, os.DirFS(from))
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
}

// killed returns a workspace with the files that a kill at this moment would leave, with or without a takeover.
func (w *workspace) killed(takeOver bool) *workspace {
	w.t.Helper()
	dir := filepath.Join(w.t.TempDir(), "killed")
	w.ok(copyLive(dir, w.dir))
	next := &workspace{t: w.t, src: w.src, dir: dir, takeOver: takeOver, later: w.later, shares: w.shares}
	next.open()
	w.t.Cleanup(func() { next.Close() })
	return next
}

func asked(ctx context.Context, id uint64, again bool) context.Context {
	return context.WithValue(ctx, RequestKey{}, &Request{ID: id, Again: again})
}

// Every request that changes names is performed once, whether or not the killed process had performed it; also by the
// second successor, after the created name was removed again. A request of another kernel is not taken for it.
func TestRequestsAreDoneOnce(t *testing.T) {
	for name, do := range map[string]func(ctx context.Context, w *workspace) (Attr, error){
		"mknod": func(ctx context.Context, w *workspace) (Attr, error) {
			return w.Mknod(ctx, Root, "new", syscall.S_IFREG|0o644, 0, Cred{})
		},
		"mkdir": func(ctx context.Context, w *workspace) (Attr, error) {
			return w.Mkdir(ctx, w.node("dir"), "new", 0o755, Cred{})
		},
		"symlink": func(ctx context.Context, w *workspace) (Attr, error) {
			return w.Symlink(ctx, w.node("dir"), "new", "file", Cred{})
		},
		"link": func(ctx context.Context, w *workspace) (Attr, error) {
			return w.Link(ctx, w.node("file"), Root, "new")
		},
		"unlink": func(ctx context.Context, w *workspace) (Attr, error) {
			return Attr{}, w.Unlink(ctx, Root, "file")
		},
		"rmdir": func(ctx context.Context, w *workspace) (Attr, error) {
			return Attr{}, w.Rmdir(ctx, Root, "empty")
		},
		"rename": func(ctx context.Context, w *workspace) (Attr, error) {
			return Attr{}, w.Rename(ctx, Root, "file", w.node("dir"), "moved", 0)
		},
		"rename over": func(ctx context.Context, w *workspace) (Attr, error) {
			return Attr{}, w.Rename(ctx, Root, "file", w.node("dir"), "over", 0)
		},
		"rename, no replacing": func(ctx context.Context, w *workspace) (Attr, error) {
			return Attr{}, w.Rename(ctx, Root, "file", w.node("dir"), "moved", unix.RENAME_NOREPLACE)
		},
		"exchange": func(ctx context.Context, w *workspace) (Attr, error) {
			return Attr{}, w.Rename(ctx, Root, "file", Root, "dir", unix.RENAME_EXCHANGE)
		},
		"setxattr": func(ctx context.Context, w *workspace) (Attr, error) {
			return Attr{}, w.Xattrs().Set(ctx, w.node("dir"), "user.new", []byte("v"), unix.XATTR_CREATE)
		},
		"removexattr": func(ctx context.Context, w *workspace) (Attr, error) {
			return Attr{}, w.Xattrs().Remove(ctx, w.node("empty"), "user.old")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorkspace(t, map[string]worktreetest.File{"file": {Data: "data"}, "dir/over": {Data: "o"}, "dir/x/y": {}})
			w.mkdir("empty")
			w.ok(w.Xattrs().Set(t.Context(), w.node("empty"), "user.old", []byte("v"), 0))
			before := w.killed(true) // the process was killed before it performed the request
			first, err := do(asked(t.Context(), 10, false), w)
			w.ok(err)
			want := w.everything()
			for what, next := range map[string]*workspace{"not begun": before, "done": w.killed(true),
				"done, and killed twice": w.killed(true).killed(true)} {
				a, err := do(asked(t.Context(), 10, true), next)
				if err != nil || (a.Node == 0) != (first.Node == 0) || a.Node != first.Node && what != "not begun" ||
					a.Mode != first.Mode || a.Nlink != first.Nlink {
					t.Errorf("%s again: got %+v, %v, want %+v", what, a, err, first)
				}
				if got := next.everything(); got != want {
					t.Errorf("%s: got the tree\n%swant\n%s", what, got, want)
				}
			}
			other := w.killed(false)
			if _, err := do(asked(t.Context(), 10, true), other); err == nil && name != "exchange" {
				t.Error("a request of another kernel was taken for one that was performed before")
			}
			if _, err := do(asked(t.Context(), 10, true), other.killed(true)); err == nil && name != "exchange" {
				t.Error("a request of an earlier kernel was remembered")
			}
		})
	}
}

// everything lists the tree with attributes and link targets.
func (w *workspace) everything() string {
	var b strings.Builder
	w.ok(walk(w.Tree, Root, func(path string, a Attr) {
		names, err := w.Xattrs().List(a.Node)
		w.ok(err)
		fmt.Fprintf(&b, "%s %o %d %d %q\n", path, a.Mode, a.Nlink, a.Size, names)
	}))
	return b.String()
}

// eventually waits for a condition that background work makes true.
func (w *workspace) eventually(what string, is func() bool) {
	w.t.Helper()
	for until := time.Now().Add(10 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			w.t.Fatalf("not so: %s", what)
		}
	}
}

// A failed request is performed again.
func TestFailureIsNotRemembered(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{"file": {}})
	_, err := w.Mkdir(asked(t.Context(), 4, false), Root, "file", 0o755, Cred{})
	w.want("make a directory where a file is", err, syscall.EEXIST)
	w.ok(w.unlink("file"))
	next := w.killed(true)
	_, err = next.Mkdir(asked(t.Context(), 4, true), Root, "file", 0o755, Cred{})
	next.want("again", err, nil)
	next.listing("", "file")
}

// A file without a name is created once, and exists until the kernel forgets it.
func TestUnnamedAcrossTakeover(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{"base": {Data: "of the base"}, "other": {Data: "x"}})
	ctx := t.Context()
	tmp, err := w.Tmpfile(asked(ctx, 2, false), Root, 0o600, Cred{}) // the request is not answered
	w.ok(err)
	own, base := w.create("own", "own data"), w.node("base")
	gone := w.create("gone", "nobody knows it")
	for _, n := range []Node{own, own, base} {
		w.Kernel().Remember(n)
	}
	for _, name := range []string{"own", "base", "gone", "other"} {
		w.ok(w.unlink(name))
	}
	w.write(own, "OWN", 0)

	over := w.killed(true)
	again, err := over.Tmpfile(asked(ctx, 2, true), Root, 0o600, Cred{})
	if err != nil || again.Node != tmp.Node {
		t.Errorf("unnamed file after the takeover: got node %d, %v, want %d", again.Node, err, tmp.Node)
	}
	over.Kernel().Remember(tmp.Node)
	over.write(tmp.Node, "written after", 0)
	if got := over.read(tmp.Node); got != "written after" {
		t.Errorf("contents of the unnamed file: got %q", got)
	}
	if got := over.read(own); got != "OWN data" {
		t.Errorf("contents of the overlay's file: got %q", got)
	}
	if got := over.read(base); got != "of the base" {
		t.Errorf("contents of the base file: got %q", got)
	}
	over.write(base, "OF", 0)
	if a, err := over.Attr(ctx, base); err != nil || a.Nlink != 0 || a.Size != 11 {
		t.Errorf("attributes of the base file: got %+v, %v", a, err)
	}
	over.eventually("a file that the kernel does not know is removed", func() bool {
		_, err := over.Attr(ctx, gone)
		return errors.Is(err, ErrNoNode)
	})

	third := over.killed(true)
	if got := third.read(base); got != "OF the base" {
		t.Errorf("contents of the base file: got %q", got)
	}
	third.Kernel().Forget(own, 1)
	if got := third.read(own); got != "OWN data" {
		t.Errorf("contents of the overlay's file after one of two lookups was forgotten: got %q", got)
	}
	third.Kernel().Forget(own, 1)
	third.Kernel().Forget(base, 1)
	third.Kernel().Forget(tmp.Node, 1)
	_, err = third.Attr(ctx, own)
	third.want("a file that was forgotten", err, ErrNoNode)
	third.eventually("no contents file is left", func() bool { return third.Overlay().Stats().Contents == 0 })

	none := over.killed(false)
	none.eventually("a process that does not take over removes unnamed files",
		func() bool { return none.Overlay().Stats().Contents == 0 })
	if none.Kernel().Remember(own); len(none.Overlay().Recovery().Problems) > 0 {
		t.Errorf("problems after the nodes were restored: %q", none.Overlay().Recovery().Problems)
	}
}

// Files that programs were writing when the process was killed still count as being written.
func TestWritingAcrossTakeover(t *testing.T) {
	files := map[string]worktreetest.File{}
	for i := range 20_000 {
		files[fmt.Sprint("f", i)] = worktreetest.File{}
	}
	w := newWorkspace(t, files)
	var open []Node
	for i := range 20_000 {
		n := w.node(fmt.Sprint("f", i))
		w.Kernel().Remember(n)
		w.Monitor().Writing(n)
		if open = append(open, n); i%3 == 0 {
			w.Kernel().Forget(n, 1)
			open = open[:len(open)-1]
		}
	}
	w.Monitor().Writing(open[0])
	before, err := w.Monitor().Changes("")
	w.ok(err)
	over := w.killed(true)
	c, err := over.Monitor().Changes(before.Token)
	w.ok(err)
	slices.Sort(c.Open)
	if slices.Sort(open); !slices.Equal(c.Open, open) || c.All || len(c.Paths) != len(open) {
		t.Errorf("got %d open files, want %d; %d changes, all: %v", len(c.Open), len(open), len(c.Paths), c.All)
	}
	over.Kernel().Forget(open[0], 1)
	over.Monitor().Refreshed(open) // too early: programs may be writing just now
	if c, err := over.killed(true).Monitor().Changes(before.Token); err != nil || len(c.Open) != len(open)-1 {
		t.Errorf("got %d open files, want %d, %v", len(c.Open), len(open)-1, err)
	}
	if c, err := over.killed(false).Monitor().Changes(before.Token); err != nil || len(c.Open) != 0 {
		t.Errorf("got %d open files for a kernel that knows none, %v", len(c.Open), err)
	}
}

// A successor waits until the killed process has disappeared. Another process gets an error at once.
func TestTakeOverWaitsForTheLock(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{"a": {}})
	o := Options{Root: w.src.Root, Overlay: filepath.Join(w.dir, "overlay")}
	if tree, err := Open(filepath.Join(w.dir, "inodes"), w.src, o); err == nil {
		tree.Close()
		t.Fatal("a table was opened twice")
	}
	opened := make(chan error)
	go func() {
		o.TakeOver = true
		tree, err := Open(filepath.Join(w.dir, "inodes"), w.src, o)
		if err == nil {
			err = tree.Close()
		}
		opened <- err
	}()
	select {
	case err := <-opened:
		t.Errorf("open while another process has the tree: got %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	w.close()
	w.want("take over", <-opened, nil)
	w.open()
}

// A process that is killed while it adds to the inode table loses no node.
func TestKilledWhileAdding(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{"a/b/c": {}, "a/d": {Data: "x"}, "e": {}})
	want := w.everything()
	w.Kernel().Remember(w.node("e"))
	n := w.node("e")
	w.ok(w.unlink("e"))
	path := filepath.Join(w.dir, "inodes.kept")
	kept, err := os.ReadFile(path)
	w.ok(err)
	adding := bytes.Clone(kept)
	adding[48] = 1
	w.ok(os.WriteFile(path, adding, 0o600)) // keep the file, because it is mapped
	over := w.killed(true)
	if got, counts := over.everything(), over.Base().Counts(); counts != w.Base().Counts() ||
		got != strings.ReplaceAll(want, "e 100644 1 0 []\n", "") {
		t.Errorf("counts after the takeover: got %+v, want %+v:\n%s", counts, w.Base().Counts(), got)
	}
	if a, err := over.Attr(t.Context(), n); err != nil || a.Nlink != 0 {
		t.Errorf("an open file: got %+v, %v", a, err)
	}
}

// With arbitrary contents of the files that store the kernel's state, the tree opens and is unchanged.
func FuzzKept(f *testing.F) {
	dir := f.TempDir()
	src := worktreetest.New(map[string]worktreetest.File{"a/b": {Data: "x"}, "c": {}})
	options := func(dir string) Options {
		return Options{Root: src.Root, Overlay: filepath.Join(dir, "overlay"), Journal: filepath.Join(dir, "journal"),
			TakeOver: true}
	}
	list := func(t testing.TB, tree *Tree) (all string) {
		if err := walk(tree, Root, func(path string, a Attr) { all += fmt.Sprintln(path, a.Node, a.Mode) }); err != nil {
			t.Fatal(err)
		}
		return all
	}
	o := options(dir)
	o.TakeOver = false
	tree, err := Open(filepath.Join(dir, "inodes"), src, o)
	if err != nil {
		f.Fatal(err)
	}
	if _, err := tree.Mkdir(f.Context(), Root, "made", 0o755, Cred{}); err != nil {
		f.Fatal(err)
	}
	want := list(f, tree)
	tree.Monitor().Writing(2)
	for _, name := range []string{"inodes.kept", "inodes.writing"} {
		image, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(image[:4200], name == "inodes.kept")
		f.Add(image[:64], name == "inodes.kept")
		image[50]++
		f.Add(image[:4200], name == "inodes.kept")
	}
	f.Add([]byte{}, true)
	saved := filepath.Join(f.TempDir(), "saved")
	if err := errors.Join(copyLive(saved, dir), tree.Close()); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, image []byte, kept bool) {
		dir, err := os.MkdirTemp("/dev/shm", "")
		if err != nil {
			dir = t.TempDir()
		}
		defer os.RemoveAll(dir)
		name := map[bool]string{true: "inodes.kept", false: "inodes.writing"}[kept]
		if err := errors.Join(os.CopyFS(dir, os.DirFS(saved)),
			os.WriteFile(filepath.Join(dir, name), image, 0o600)); err != nil {
			t.Fatal(err)
		}
		tree, err := Open(filepath.Join(dir, "inodes"), src, options(dir))
		if err != nil {
			t.Fatal(err)
		}
		if got := list(t, tree); got != want {
			t.Errorf("tree after the takeover:\n%swant\n%s", got, want)
		}
		if _, err := tree.Monitor().Changes(""); err != nil {
			t.Error(err)
		}
		tree.Monitor().Writing(3)
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	})
}
