package worktree_test

import (
	"context"
	"fmt"
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

// since returns the paths that Changes reports, as text, and the next position.
func (w *workspace) since(token string) (paths, next string) {
	w.t.Helper()
	c, err := w.Monitor().Changes(token)
	w.ok(err)
	if c.All {
		return "everything", c.Token
	}
	slices.Sort(c.Paths)
	return strings.Join(c.Paths, " "), c.Token
}

// Each kind of change is reported with certain paths, and once.
func TestChanges(t *testing.T) {
	w := newWorkspace(t, lazyFiles())
	ctx := t.Context()
	w.ok(w.Base().Walk(ctx, func(BaseEntry) error { return nil }))
	token := w.Monitor().StartToken()
	var unnamed Node
	for _, c := range []struct {
		what, want string
		do         func()
	}{
		{"nothing", "", func() {}},
		{"reading", "", func() { w.read(w.node("dir/f00")); w.ok(w.Fsync(ctx, w.node("dir/f00"), false)) }},
		{"write", "dir/f00", func() { w.write(w.node("dir/f00"), "x", 3) }},
		{"write again", "dir/f00", func() { w.write(w.node("dir/f00"), "x", 4); w.write(w.node("dir/f00"), "y", 4) }},
		{"truncate", "dir/f01", func() { w.set("dir/f01", Change{Set: SetSize}) }},
		{"cut", "dir/f01", func() { w.set("dir/f01", Change{Set: SetSize, Size: 2}) }},
		{"chmod", "dir/f02", func() { w.set("dir/f02", Change{Set: SetMode, Mode: 0o700}) }},
		{"the same mode", "", func() { w.set("dir/f02", Change{Set: SetMode, Mode: 0o700}) }},
		{"touch", "dir/f02", func() { w.set("dir/f02", Change{Set: SetMtime, Mtime: 5}) }},
		{"access time and owner", "",
			func() { w.set("dir/f03", Change{Set: SetAtime | SetUID | SetGID, Atime: 5, UID: 3, GID: 4}) }},
		{"attribute", "", func() { w.ok(w.Xattrs().Set(ctx, w.node("dir/f03"), "user.x", []byte("y"), 0)) }},
		{"allocate", "dir/f03", func() { w.ok(w.Fallocate(ctx, w.node("dir/f03"), 0, 0, 10_000)) }},
		{"copy", "dir/f04", func() {
			_, err := w.CopyRange(ctx, w.node("dir/f00"), 0, w.node("dir/f04"), 2, 3)
			w.ok(err)
		}},
		{"create", "dir/new", func() { w.create("dir/new", "data") }},
		{"a write that fails", "", func() { w.Write(ctx, w.node("dir"), []byte("x"), 0, false) }},
		{"symlink", "dir/sym", func() {
			_, err := w.Symlink(ctx, w.node("dir"), "sym", "target", Cred{})
			w.ok(err)
		}},
		{"unlink", "dir/f05", func() { w.ok(w.unlink("dir/f05")) }},
		{"unlink what is new", "dir/sym", func() { w.ok(w.unlink("dir/sym")) }},
		{"rename", "dir/f06 other/f06", func() { w.ok(w.rename("dir/f06", "other/f06")) }},
		{"rename over", "dir/f07 dir/f08", func() { w.ok(w.rename("dir/f07", "dir/f08")) }},
		{"exchange", "dir/f09 other/x", func() { w.ok(w.renameWith("dir/f09", "other/x", unix.RENAME_EXCHANGE)) }},
		{"directory's times and owner", "", func() { w.set("dir", Change{Set: SetMtime | SetUID, Mtime: 5}) }},
		{"directory's mode", "dir/sub/ dir/sub/* dir/sub/deep/*",
			func() { w.set("dir/sub", Change{Set: SetMode, Mode: 0o700}) }},
		{"rename a directory", "dir/sub/ moved/ moved/* moved/deep/*", func() { w.ok(w.rename("dir/sub", "moved")) }},
		{"write in it", "moved/deep/file", func() { w.write(w.node("moved/deep/file"), "x", 0) }},
		{"rename and write in it", "again/ again/* again/deep/* moved/", func() {
			w.ok(w.rename("moved", "again"))
			w.write(w.node("again/deep/file"), "x", 0)
			w.create("again/deep/new", "data")
		}},
		{"move out of it", "again/deep/new out", func() { w.ok(w.rename("again/deep/new", "out")) }},
		{"a new directory", "made/ made/* made/sub/*", func() {
			w.mkdir("made")
			w.mkdir("made/sub")
			w.create("made/sub/file", "data")
			w.ok(w.unlink("made/sub/file"))
			w.create("made/sub/file", "data")
		}},
		{"write in that", "made/sub/file", func() { w.write(w.node("made/sub/file"), "x", 0) }},
		{"rmdir", "made/sub/ made/sub/file",
			func() { w.ok(w.unlink("made/sub/file")); w.ok(w.Rmdir(ctx, w.node("made"), "sub")) }},
		{"a directory for a file", "again/ dir/f10 dir/f10/ dir/f10/* dir/f10/deep/*", func() {
			w.ok(w.unlink("dir/f10"))
			w.ok(w.rename("again", "dir/f10"))
		}},
		{"file and directory change places", "dir/f10 dir/f10/ out out/ out/* out/deep/*", func() {
			w.ok(w.renameWith("dir/f10", "out", unix.RENAME_EXCHANGE))
		}},
		{"link", "dir/hard", func() { w.ok(w.link("dir/f11", "dir/hard")) }},
		{"another", "other/hard", func() { w.ok(w.link("dir/f11", "other/hard")) }},
		{"write to all of them", "dir/f11 dir/hard other/hard", func() { w.write(w.node("dir/hard"), "x", 0) }},
		{"unlink the last", "other/hard", func() { w.ok(w.unlink("other/hard")) }},
		{"write to two", "dir/f11 dir/hard", func() { w.write(w.node("dir/hard"), "x", 0) }},
		{"unlink the first", "dir/f11", func() { w.ok(w.unlink("dir/f11")) }},
		{"write to one", "dir/hard", func() { w.write(w.node("dir/hard"), "x", 0) }},
		{"link it again", "made/hard", func() { w.ok(w.link("dir/hard", "made/hard")) }},
		{"write to what lost a name to another file, whose directory changes", "dir/hard made/ made/* made/hard made/other",
			func() {
				w.create("made/other", "data")
				w.ok(w.rename("made/other", "made/hard"))
				w.set("made", Change{Set: SetMode, Mode: 0o700})
				w.write(w.node("dir/hard"), "y", 0)
			}},
		{"a file without a name", "", func() {
			a, err := w.Tmpfile(ctx, w.node("dir"), 0o600, Cred{})
			w.ok(err)
			unnamed = a.Node
			w.write(unnamed, "x", 0)
		}},
		{"that gets one", "dir/named", func() {
			_, err := w.Link(ctx, unnamed, w.node("dir"), "named")
			w.ok(err)
		}},
		{"write to that", "dir/named", func() { w.write(unnamed, "y", 0) }},
		{"a program begins to write", "dir/named", func() { w.Monitor().Writing(unnamed) }},
		{"and may go on", "dir/named", func() {}},
		{"the root", "everything", func() { w.set("", Change{Set: SetMode, Mode: 0o700}) }},
	} {
		c.do()
		got, next := w.since(token)
		if got != c.want {
			t.Errorf("%s: got changed paths %q, want %q", c.what, got, c.want)
		}
		token = next
		if c.what == "rename" {
			w.reopen() // no change is forgotten or reported again
		}
	}
	if got, _ := w.since(w.Monitor().StartToken()); got != "everything" {
		t.Errorf("changes from the start: got %q", got)
	}
	for _, bad := range []string{"", "no token", "0000000000000000:0"} {
		if got, _ := w.since(bad); got != "everything" {
			t.Errorf("changes since %q: got %q", bad, got)
		}
	}
}

// A journal that is started after changes were made does not report these changes.
func TestLateJournal(t *testing.T) {
	w := &workspace{t: t, src: worktreetest.New(lazyFiles()), dir: t.TempDir()}
	open := func(journal string) {
		tree, err := Open(filepath.Join(w.dir, "inodes"), w.src,
			Options{Root: w.src.Root, Overlay: filepath.Join(w.dir, "overlay"), Journal: journal})
		w.ok(err)
		w.Tree = tree
	}
	open("")
	if got, next := w.since(w.Monitor().StartToken()); got != "everything" || next != "" {
		t.Errorf("changes without a journal: got %q, %q", got, next)
	}
	w.Monitor().Writing(Root)
	w.create("dir/new", "data")
	w.close()
	open(filepath.Join(w.dir, "journal"))
	if got, _ := w.since(w.Monitor().StartToken()); got != "everything" {
		t.Errorf("changes from the start: got %q", got)
	}
	w.close()
}

func gitFileOptions(w *workspace, content string) Options {
	return Options{
		Root: w.src.Root, Time: commitTime, UID: 7, Overlay: filepath.Join(w.dir, "overlay"),
		Journal: filepath.Join(w.dir, "journal"),
		GitFile: content,
	}
}

func TestGitFile(t *testing.T) {
	w := &workspace{t: t,
		src: worktreetest.New(map[string]worktreetest.File{"f": {Data: "data"}, "l": {Data: "f", Mode: object.ModeSymlink}}),
		dir: t.TempDir()}
	open := func(content string, change func(o *Options)) {
		t.Helper()
		o := gitFileOptions(w, content)
		if change != nil {
			change(&o)
		}
		tree, err := Open(filepath.Join(w.dir, "inodes"), w.src, o)
		w.ok(err)
		w.Tree = tree
	}
	check := func(what, content string, changed int64) {
		t.Helper()
		a := w.stat(".git")
		if got := w.read(w.node(".git")); got != content || a.Mode != syscall.S_IFREG|0o644 || a.UID != 7 ||
			a.Size != int64(len(content)) {
			t.Errorf("%s: got .git with contents %q and attributes %+v", what, got, a)
		}
		if s := w.Overlay().Stats(); w.Overlay().Changed() != changed ||
			changed == 0 && (s.Entries != 0 || s.Inodes != 0 || s.Contents != 0 || s.Bytes != 0) {
			t.Errorf("%s: got %d changed paths, statistics %+v", what, w.Overlay().Changed(), s)
		}
		root := w.stat("")
		if changed == 0 && root.Mtime != commitTime.UnixNano() {
			t.Errorf("%s: got mtime %d of the root, want that of the base", what, root.Mtime)
		}
		if got, _ := w.since(w.Monitor().StartToken()); changed == 0 && got != "" {
			t.Errorf("%s: reported as changed: %q", what, got)
		}
	}
	open("gitdir: /one\n", nil)
	check("new", "gitdir: /one\n", 0)
	node := w.node(".git")
	w.close()
	open("gitdir: /another/place\n", nil)
	check("another place", "gitdir: /another/place\n", 0)
	if n := w.node(".git"); n != node {
		t.Errorf("node %d of .git became %d", node, n)
	}
	w.close()

	layer, _, err := overlay.Open(filepath.Join(w.dir, "overlay"), overlay.Options{ReadOnly: true})
	w.ok(err)
	if n := layer.Changed(); n != 0 {
		t.Errorf("changes in the overlay: got %d", n)
	}
	w.ok(layer.Close())

	// A read-only mount of the session shows its file .git.
	open("gitdir: /elsewhere\n", func(o *Options) { o.OverlayReadOnly = true })
	check("overlay read-only", "gitdir: /another/place\n", 0)
	w.want("create", func() error {
		_, err := w.Mknod(t.Context(), Root, "new", syscall.S_IFREG, 0, Cred{})
		return err
	}(), syscall.EROFS)
	w.close()

	open("gitdir: /one\n", nil)
	w.ok(w.unlink(".git"))
	w.create("new", "data")
	w.close()
	open("gitdir: /one\n", nil)
	check("removed, and another file made", "gitdir: /one\n", 1)
	w.ok(w.unlink(".git"))
	w.mkdir(".git")
	w.close()
	open("gitdir: /one\n", nil)
	if a := w.stat(".git"); a.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		t.Errorf("a user's directory .git became %+v", a)
	}
	w.close()
}

// The file .git becomes a directory, as a mount point, and a file again, and neither counts as a change.
func TestGitDirectory(t *testing.T) {
	w := &workspace{t: t, src: worktreetest.New(lazyFiles()), dir: t.TempDir()}
	open := func(dir bool) {
		t.Helper()
		o := gitFileOptions(w, "gitdir: /one\n")
		o.GitDir = dir
		tree, err := Open(filepath.Join(w.dir, "inodes"), w.src, o)
		w.ok(err)
		w.Tree = tree
	}
	var before Node
	for i, dir := range []bool{true, true, false, true, false} {
		open(dir)
		a, want := w.stat(".git"), uint32(syscall.S_IFREG|0o644)
		if dir {
			want = syscall.S_IFDIR | 0o755
		}
		if a.Mode != want || a.UID != 7 || w.Overlay().Changed() != 0 ||
			w.Overlay().Stats() != (overlay.Stats{LogBytes: w.Overlay().Stats().LogBytes}) {
			t.Errorf("open %d: got .git %+v, %d changed paths, statistics %+v", i, a, w.Overlay().Changed(), w.Overlay().Stats())
		}
		if i == 1 && w.node(".git") != before {
			t.Errorf("node %d of .git became %d", before, w.node(".git"))
		}
		if !dir && w.read(w.node(".git")) != "gitdir: /one\n" {
			t.Errorf("open %d: got .git with contents %q", i, w.read(w.node(".git")))
		}
		if got, _ := w.since(w.Monitor().StartToken()); got != "" {
			t.Errorf("open %d: reported as changed: %q", i, got)
		}
		before = w.node(".git")
		w.close()
	}
	open(true)
	_, err := w.Mknod(t.Context(), w.node(".git"), "mine", syscall.S_IFREG|0o644, 0, Cred{})
	w.ok(err)
	w.close()
	open(false)
	if a := w.stat(".git"); a.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		t.Errorf("a directory .git with files became %+v", a)
	}
	w.close()
}

// A read-only tree has a .git, too.
func TestGitFileReadOnly(t *testing.T) {
	w := &workspace{t: t, src: worktreetest.New(lazyFiles()), dir: t.TempDir()}
	o := gitFileOptions(w, "gitdir: /x\n")
	o.ReadOnly = true
	tree, err := Open(filepath.Join(w.dir, "inodes"), w.src, o)
	w.ok(err)
	w.Tree = tree
	defer w.close()
	if got := w.read(w.node(".git")); got != "gitdir: /x\n" {
		t.Errorf("contents of .git: got %q", got)
	}
	_, err = w.Mkdir(t.Context(), Root, "new", 0o755, Cred{})
	w.want("mkdir", err, syscall.EROFS)
	_, err = w.Write(t.Context(), w.node("dir/f00"), []byte("x"), 0, false)
	w.want("write", err, syscall.EROFS)
	_, err = w.SetAttr(t.Context(), w.node("dir/f00"), Change{Set: SetSize})
	w.want("truncate", err, syscall.EROFS)
	w.want("unlink", w.unlink(".git"), syscall.EROFS)
}

// A change whose write waits for contents during a query is reported again after the write.
func TestChangesDuringCopyUp(t *testing.T) {
	w := newWorkspace(t, lazyFiles())
	n, block := w.node("dir/f00"), make(chan struct{})
	w.src.Rule("dir/f00", worktreetest.Rule{Block: block})
	done := make(chan error)
	go func() {
		_, err := w.Write(context.Background(), n, []byte("x"), 2, false)
		done <- err
	}()
	for w.src.Waiting("dir/f00") == 0 {
		time.Sleep(time.Millisecond)
	}
	_, token := w.since(w.Monitor().StartToken())
	close(block)
	w.ok(<-done)
	got, token := w.since(token)
	if got != "dir/f00" {
		t.Errorf("changed paths: got %q, want dir/f00", got)
	}
	if got, _ = w.since(token); got != "" {
		t.Errorf("changed paths of the next query: got %q", got)
	}
}

// processorTime returns the processor time of this process so far.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Many files of one directory that are being written are found in one pass over the directory.
func TestManyWritten(t *testing.T) {
	w := newWorkspace(t, lazyFiles())
	const files = 20_000
	var want []string
	var nodes []Node
	dir := w.node("dir")
	for i := range files {
		a, err := w.Mknod(t.Context(), dir, fmt.Sprint("n", i), syscall.S_IFREG|0o644, 0, Cred{})
		w.ok(err)
		w.Monitor().Writing(a.Node)
		nodes = append(nodes, a.Node)
		want = append(want, fmt.Sprint("dir/n", i))
	}
	w.ok(w.link("dir/n0", "other/hard"))
	w.Monitor().Writing(w.node("dir/f00"))
	w.ok(w.rename("dir/n1", "other/moved"))
	_, token := w.since(w.Monitor().StartToken())
	start := processorTime(t)
	got, _ := w.since(token)
	if took := processorTime(t) - start; took > 5*time.Second {
		t.Errorf("query with %d written files: took %v of processor time, want at most 5s", files, took)
	}
	want[1] = "other/moved"
	want = append(want, "other/hard", "dir/f00")
	slices.Sort(want)
	if got != strings.Join(want, " ") {
		t.Errorf("changed paths: got %.200s... (%d bytes), want %.200s", got, len(got), strings.Join(want, " "))
	}
	// Files that were not written for a while no longer count as being written. A machine that needs a second for this
	// part is too busy to judge it by all of them.
	late := nodes[files-100:]
	for {
		begun := time.Now()
		for _, n := range late {
			w.Monitor().Writing(n)
		}
		w.Monitor().Refreshed(nodes)
		if time.Since(begun) < time.Second || len(late) == 1 {
			break
		}
		late = late[len(late)/2:]
	}
	c, err := w.Monitor().Changes(token)
	w.ok(err)
	for _, n := range append(late, w.node("dir/f00")) {
		if !slices.Contains(c.Open, n) {
			t.Errorf("node %d is not among the open files", n)
		}
	}
}
