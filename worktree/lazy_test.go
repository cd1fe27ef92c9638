package worktree_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
	. "github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

func lazyFiles() map[string]worktreetest.File {
	files := map[string]worktreetest.File{"other/x": {Data: "x"}}
	for i := range 12 {
		files[fmt.Sprintf("dir/f%02d", i)] = worktreetest.File{Data: fmt.Sprintf("data of %d", i)}
	}
	files["dir/run"] = worktreetest.File{Data: "#!/bin/sh\n", Mode: object.ModeExec}
	files["dir/link"] = worktreetest.File{Data: "f00", Mode: object.ModeSymlink}
	files["dir/sub/deep/file"] = worktreetest.File{Data: "deep"}
	return files
}

// calls checks how many trees, sizes and contents a change requests, after its names were looked up.
func (w *workspace) calls(what string, trees, sizes, opens int, f func()) {
	w.t.Helper()
	before := [3]int{w.src.Calls("Tree"), w.src.Calls("Size"), w.src.Calls("Open")}
	f()
	got := [3]int{w.src.Calls("Tree") - before[0], w.src.Calls("Size") - before[1], w.src.Calls("Open") - before[2]}
	if want := [3]int{trees, sizes, opens}; got != want {
		w.t.Errorf("%s: requested %d trees, %d sizes, %d contents, want %d", what, got[0], got[1], got[2], want)
	}
}

// Changes of paths that were never read request only the directories that contain the names.
func TestLazyChanges(t *testing.T) {
	w := newWorkspace(t, lazyFiles())
	ctx := t.Context()
	w.node("dir/f00")
	w.node("other/x")
	for _, c := range []struct {
		what string
		do   func()
	}{
		{"unlink", func() { w.ok(w.unlink("dir/f00")) }},
		{"rename", func() { w.ok(w.rename("dir/f01", "other/f01")) }},
		{"rename over", func() { w.ok(w.rename("dir/f02", "dir/f03")) }},
		{"exchange", func() { w.ok(w.renameWith("dir/f04", "other/x", unix.RENAME_EXCHANGE)) }},
		{"rename a link", func() { w.ok(w.rename("dir/link", "other/link")) }},
		{"chmod", func() { w.set("dir/f05", Change{Set: SetMode, Mode: 0o600}) }},
		{"chown", func() { w.set("dir/f05", Change{Set: SetUID | SetGID, UID: 1, GID: 2}) }},
		{"touch", func() { w.set("dir/f05", Change{Set: SetMtime | SetAtime, Mtime: NowTime, Atime: 5}) }},
		{"link", func() { w.ok(w.link("dir/f06", "other/f06")) }},
		{"truncate to nothing", func() { w.set("dir/f07", Change{Set: SetSize}) }},
		{"write into what was truncated", func() { w.write(w.node("dir/f07"), "new", 100) }},
		{"create", func() { w.create("dir/new", "data") }},
		{"attribute", func() { w.ok(w.Xattrs().Set(ctx, w.node("dir/f08"), "user.x", nil, 0)) }},
		{"remove what was moved", func() { w.ok(w.unlink("other/f01")) }},
		{"fsync", func() { w.ok(w.Fsync(ctx, w.node("dir/f05"), false)); w.ok(w.FsyncDir(ctx, w.node("dir"))) }},
		{"list", func() { w.list("dir") }},
		{"chmod a directory", func() { w.set("dir/sub", Change{Set: SetMode, Mode: 0o700}) }},
		{"rename a directory", func() { w.ok(w.rename("dir/sub", "other/moved")) }},
		{"reopen", w.reopen},
		{"list after reopening", func() { w.list("dir"); w.list("other") }},
	} {
		w.calls(c.what, 0, 0, 0, c.do)
	}
	w.calls("read in a directory that was moved", 2, 0, 1, func() {
		if got := w.read(w.node("other/moved/deep/file")); got != "deep" {
			t.Errorf("contents after the changes: got %q", got)
		}
	})
	w.calls("a whole overwrite of unknown size", 0, 0, 1, func() { w.write(w.node("dir/f09"), "longer than it was", 0) })
	w.src.KnowsSizes.Store(true)
	w.stat("dir/f10")
	w.calls("a whole overwrite", 0, 0, 0, func() { w.write(w.node("dir/f10"), "longer than it was", 0) })
	w.calls("a write into a base file", 0, 0, 1, func() { w.write(w.node("dir/f11"), "DATA", 0) })
	w.calls("another write into it", 0, 0, 0, func() { w.write(w.node("dir/f11"), "!", 10) })
	w.both(func() {
		w.contents(map[string]string{
			"dir/f03": "data of 2", "other/x": "data of 4", "dir/f04": "x", "dir/f05": "data of 5", "other/f06": "data of 6",
			"dir/f07": strings.Repeat("\x00", 100) + "new", "dir/f09": "longer than it was", "dir/f10": "longer than it was",
			"dir/f11": "DATA of 11" + "!",
		})
		w.listing("dir", "f03 f04 f05 f06 f07 f08 f09 f10 f11 new run")
		w.listing("other", "f06 link moved x")
	})
}

// A directory is requested only to find out whether it is empty.
func TestLazyRmdir(t *testing.T) {
	w := newWorkspace(t, lazyFiles())
	w.node("other")
	w.calls("rmdir of a directory of the base", 1, 0, 0, func() { w.want("rmdir", w.rmdir("other"), syscall.ENOTEMPTY) })
	w.mkdir("empty")
	w.calls("rename over a directory of the base", 1, 0, 0, func() {
		w.want("rename", w.rename("empty", "dir"), syscall.ENOTEMPTY)
	})
	w.calls("exchange with it", 0, 0, 0, func() { w.ok(w.renameWith("empty", "dir", unix.RENAME_EXCHANGE)) })
	w.calls("rename of the full one over the empty one", 0, 0, 0, func() { w.ok(w.rename("empty", "dir")) })
	w.listing("", "dir other")
}

// A move does not change nodes, modification times, or the paths that are passed to the source.
func TestMovesKeepWhatTheyMove(t *testing.T) {
	w := newWorkspace(t, lazyFiles())
	before := map[string]Attr{}
	for _, path := range []string{"dir/f00", "dir/sub", "dir/sub/deep/file"} {
		before[path] = w.stat(path)
	}
	w.mkdir("new")
	w.ok(w.rename("dir/sub", "new/sub"))
	w.ok(w.rename("dir/f00", "new/f00"))
	w.ok(w.rename("new", "newer"))
	w.ok(w.link("newer/f00", "newer/again"))
	w.set("newer/f00", Change{Set: SetMode, Mode: 0o600})
	w.both(func() {
		for old, path := range map[string]string{"dir/f00": "newer/f00", "dir/sub": "newer/sub",
			"dir/sub/deep/file": "newer/sub/deep/file"} {
			a := w.stat(path)
			if a.Node != before[old].Node || a.Mtime != before[old].Mtime || a.Size != before[old].Size {
				t.Errorf("attributes of %s after the move: got %+v, want %+v", path, a, before[old])
			}
			if at, err := w.Path(a.Node); err != nil || at != path && !(old == "dir/f00" && at == "newer/again") {
				t.Errorf("path of %s: got %q, %v", path, at, err)
			}
		}
		if p, err := w.Parent(w.node("newer/sub")); err != nil || p != w.node("newer") {
			t.Errorf("parent of the moved directory: got %d, %v", p, err)
		}
		// worktreetest knows contents only by their path in the base tree.
		w.contents(map[string]string{"newer/f00": "data of 0", "newer/sub/deep/file": "deep"})
	})
	w.ok(w.rename("newer/sub", "dir/sub"))
	w.ok(w.unlink("newer/again"))
	w.ok(w.rename("newer/f00", "dir/f00"))
	w.ok(w.rmdir("newer"))
	if s := w.Overlay().Stats(); s.Entries != 0 || s.Hidden != 0 {
		t.Errorf("statistics after everything was moved back: got %+v", s)
	}
}

func TestRenameErrors(t *testing.T) {
	w := newWorkspace(t, lazyFiles())
	w.mkdir("own")
	w.mkdir("own/in")
	w.create("file", "")
	for _, c := range []struct {
		from, to string
		flags    uint32
		want     error
	}{
		{"none", "x", 0, ErrNotExist},
		{"dir", "dir/sub/x", 0, syscall.EINVAL},
		{"dir", "dir/sub/deep/file", 0, syscall.EINVAL},
		{"own", "own/in/x", 0, syscall.EINVAL},
		{"own", "own/in", unix.RENAME_EXCHANGE, syscall.EINVAL},
		{"own/in", "own", unix.RENAME_EXCHANGE, syscall.EINVAL},
		{"dir", "file", 0, ErrNotDir},
		{"file", "own", 0, ErrIsDir},
		{"own/in", "dir", 0, syscall.ENOTEMPTY},
		{"dir", "own", 0, syscall.ENOTEMPTY},
		{"file", "own", unix.RENAME_NOREPLACE, syscall.EEXIST},
		{"file", "none", unix.RENAME_EXCHANGE, ErrNotExist},
		{"file", "x", unix.RENAME_WHITEOUT, syscall.EINVAL},
		{"file", "x", unix.RENAME_NOREPLACE | unix.RENAME_EXCHANGE, syscall.EINVAL},
		{"file", strings.Repeat("n", 256), 0, syscall.ENAMETOOLONG},
		{"file", "file", 0, nil},
		{"own", "own", 0, nil},
		{"dir", "own/in", 0, nil},
		{"file", "own/in/sub/file", unix.RENAME_NOREPLACE, nil},
		{"own/in/sub", "other", unix.RENAME_EXCHANGE, nil},
	} {
		w.want(fmt.Sprintf("rename %s to %s, flags %d", c.from, c.to, c.flags), w.renameWith(c.from, c.to, c.flags), c.want)
	}
	w.both(func() {
		w.listing("", "other own")
		w.listing("own/in", "f00 f01 f02 f03 f04 f05 f06 f07 f08 f09 f10 f11 link run sub")
		w.listing("other", "deep file")
		w.listing("own/in/sub", "x")
		if a := w.stat("own"); a.Nlink != 3 {
			t.Errorf("directory own has the attributes %+v, want 3 links", a)
		}
	})
}

// A position in a listing stays valid while other entries change.
func TestListingUnderChange(t *testing.T) {
	w := newWorkspace(t, lazyFiles())
	dir := w.node("dir")
	for i := range 500 {
		w.create(fmt.Sprintf("dir/own%03d", i), "")
	}
	seen := map[string]int{}
	next, more := uint64(0), true
	for round := 0; more; round++ {
		left := 4
		more = false
		w.ok(w.ReadDir(t.Context(), dir, next, func(e Entry) bool {
			if more = left == 0; more {
				return false
			}
			seen[strings.Clone(e.Name)]++
			next, left = e.Next, left-1
			return true
		}))
		switch round {
		case 0:
			w.ok(w.unlink("dir/f00"))                // already listed
			w.ok(w.unlink("dir/f09"))                // not yet listed
			w.ok(w.rename("dir/own000", "dir/f01"))  // over a listed name
			w.ok(w.rename("dir/own001", "dir/f10"))  // over a name that is not yet listed
			w.ok(w.rename("dir/link", "other/link")) // to another directory
		default:
			w.create(fmt.Sprintf("dir/more%d", round), "")
			w.ok(w.unlink(fmt.Sprintf("dir/own%03d", round+1)))
		}
	}
	for _, name := range []string{"f01", "f02", "f03", "f04", "f05", "f06", "f07", "f08", "f10", "f11", "run", "sub",
		"own400", "own499"} {
		if seen[name] != 1 {
			t.Errorf("%s was listed %d times", name, seen[name])
		}
	}
	for _, name := range []string{"f09", "link"} {
		if seen[name] != 0 {
			t.Errorf("%s was listed after its removal", name)
		}
	}
	for name, n := range seen {
		if n > 1 {
			t.Errorf("%s was listed %d times", name, n)
		}
	}
}

// If contents cannot be fetched, a change of the file fails without an effect, and a later try succeeds.
func TestCopyUpFails(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{"f": {Data: "data"}})
	w.src.Rule("f", worktreetest.Rule{Err: syscall.ENETDOWN})
	n := w.node("f")
	_, err := w.Write(t.Context(), n, []byte("D"), 0, false)
	w.want("write", err, syscall.ENETDOWN)
	_, err = w.SetAttr(t.Context(), n, Change{Set: SetSize, Size: 2})
	w.want("truncate", err, syscall.ENETDOWN)
	if w.Overlay().Changed() != 0 {
		t.Errorf("changed paths after the failed changes: got %d", w.Overlay().Changed())
	}
	w.src.Rule("f", worktreetest.Rule{})
	w.write(n, "D", 0)
	w.contents(map[string]string{"f": "Data"})
	if w.Overlay().Changed() != 1 {
		t.Errorf("changed paths: got %d", w.Overlay().Changed())
	}
}

// A write to a full disk fails, and writes succeed when there is space again.
func TestFullDiskUnderOverlay(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=12m"); err != nil {
		t.Skipf("cannot mount a small file system: %v", err)
	}
	w := &workspace{t: t, src: worktreetest.New(map[string]worktreetest.File{"f": {Data: strings.Repeat("x", 1<<20)}}),
		dir: dir}
	w.open()
	t.Cleanup(func() {
		w.close()
		w.ok(unix.Unmount(dir, 0))
	})
	w.create("own", "kept")
	ballast := filepath.Join(dir, "ballast")
	fd, err := unix.Open(ballast, unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	w.ok(err)
	for size := int64(1 << 20); unix.Fallocate(fd, 0, 0, size) == nil; size += 1 << 16 {
	}
	w.ok(unix.Close(fd))
	n := w.node("f")
	_, err = w.Write(t.Context(), n, []byte("X"), 0, false)
	w.want("write", err, unix.ENOSPC)
	if got := w.read(n); got != strings.Repeat("x", 1<<20) {
		t.Errorf("contents after the failed write differ: got %d bytes", len(got))
	}
	w.ok(unix.Unlink(ballast))
	w.write(n, "X", 0)
	w.both(func() { w.contents(map[string]string{"f": "X" + strings.Repeat("x", 1<<20-1), "own": "kept"}) })
}

// An index keeps the lower half of an inode's number, which names another node if it was one of the overlay's own.
func TestGlanceTellsOfUntouchedContentsAlone(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{"dir/a": {Data: "a"}, "dir/b": {Data: "bb"},
		"l": {Data: "dir", Mode: object.ModeSymlink}})
	w.src.KnowsSizes.Store(true)
	blob := w.src.ID("dir/a")
	for _, path := range []string{"dir/a", "l"} {
		if a, ok := w.Base().Glance(w.node(path), w.src.ID(path)); !ok || a != w.stat(path) {
			t.Errorf("Glance(%s) = %+v, %v, want the attributes that stat returns", path, a, ok)
		}
	}
	own := w.create("dir/own", "a")
	for what, n := range map[string]Node{
		"a directory": w.node("dir"), "another blob's file": w.node("dir/b"), "one of the overlay's": own,
		"what has its lower half": own & (1<<32 - 1), "what is not there": 1<<32 - 1,
	} {
		if a, ok := w.Base().Glance(n, blob); ok {
			t.Errorf("Glance of %s = %+v, want none", what, a)
		}
	}
	n := w.node("dir/a")
	w.set("dir/a", Change{Set: SetMode, Mode: 0o755})
	if a, ok := w.Base().Glance(n, blob); !ok || a.Size != 1 {
		t.Errorf("Glance after a chmod: got %+v, %v", a, ok)
	}
	w.write(n, "longer", 0)
	if a, ok := w.Base().Glance(n, blob); ok {
		t.Errorf("Glance after a write: got %+v", a)
	}
}
