package worktree_test

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	. "github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// told returns the entries as text, one per entry.
func told(f *Frozen) (list []string) {
	kinds := map[FrozenKind]string{
		FrozenGone: "gone", FrozenBlob: "blob", FrozenTree: "tree", FrozenContent: "content", FrozenLink: "link",
		FrozenDir:     "dir",
		FrozenSkipped: "skipped", FrozenOther: "other", FrozenModule: "module",
	}
	for _, e := range f.Entries {
		text := fmt.Sprintf("%s %s", e.Path, kinds[e.Kind])
		switch {
		case e.Kind == FrozenContent:
			text += fmt.Sprintf(" %o %d", uint32(e.Mode), e.Size)
			if e.Content == nil {
				text += " not kept"
			}
		case e.Kind == FrozenLink:
			text += " " + e.Target
		case e.From != "":
			text += " of " + e.From
		}
		list = append(list, text)
	}
	return list
}

func (w *workspace) wantFrozen(token string, o FreezeOptions, want ...string) string {
	w.t.Helper()
	f, err := w.Freeze(w.t.Context(), token, o)
	w.ok(err)
	defer f.Release()
	if got := told(f); !slices.Equal(got, want) {
		w.t.Errorf("entries of the frozen tree: got %q, want %q", got, want)
	}
	if f.Whole != (token == "") {
		w.t.Errorf("Freeze since %q: got whole %v", token, f.Whole)
	}
	return f.Token
}

func TestFreeze(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{
		"a": {Data: "a"}, "b": {Data: "b"}, "c": {Data: "a", Mode: object.ModeSymlink}, "module": {Mode: object.ModeGitlink},
		"dir/x": {Data: "x"}, "dir/sub/y": {Data: "y"}, "dir-z": {Data: "z"}, "other/deep/er/file": {Data: "file"},
		"tool": {Data: "#!", Mode: object.ModeExec},
	})
	ctx := t.Context()
	make := func(path string, mode uint32) Node {
		dir, name := w.at(path)
		var a Attr
		var err error
		if mode&syscall.S_IFMT == syscall.S_IFDIR {
			a, err = w.Mkdir(ctx, dir, name, mode, Cred{})
		} else {
			a, err = w.Mknod(ctx, dir, name, mode, 0, Cred{})
		}
		w.ok(err)
		return a.Node
	}
	write := func(path, text string) {
		_, err := w.Write(ctx, w.node(path), []byte(text), 0, false)
		w.ok(err)
	}
	rename := func(from, to string) {
		dir, name := w.at(from)
		newDir, newName := w.at(to)
		w.ok(w.Rename(ctx, dir, name, newDir, newName, 0))
	}
	file, dir := uint32(syscall.S_IFREG|0o644), uint32(syscall.S_IFDIR|0o755)
	token := w.wantFrozen("", FreezeOptions{})
	token = w.wantFrozen(token, FreezeOptions{})

	opens, sizes := w.src.Calls("Open"), w.src.Calls("Size")
	_, err := w.SetAttr(ctx, w.node("b"), Change{Set: SetMode, Mode: 0o755})
	w.ok(err)
	_, err = w.SetAttr(ctx, w.node("dir/x"), Change{Set: SetMtime, Mtime: 5})
	w.ok(err)
	make("new", file)
	make("new-dir", dir)
	make("new-dir/in", file)
	write("new-dir/in", "data")
	make("new-dir/empty", dir)
	make("pipe", syscall.S_IFIFO|0o600)
	parent, _ := w.at("link")
	_, err = w.Symlink(ctx, parent, "link", "some/where", Cred{})
	w.ok(err)
	token = w.wantFrozen(token, FreezeOptions{},
		"b blob", "dir/x blob", "link link some/where", "new content 100644 0", "new-dir dir", "new-dir/empty dir",
		"new-dir/in content 100644 4", "pipe other")

	// A moved directory without changes is returned as one entry with its tree, and one with changes name by name.
	rename("other", "new-dir/other")
	rename("dir", "moved")
	token = w.wantFrozen(token, FreezeOptions{}, "dir gone", "moved tree of dir",
		"new-dir/other tree of other", "other gone")
	write("moved/sub/y", "changed")
	token = w.wantFrozen(token, FreezeOptions{}, "moved/sub/y content 100644 7")
	rename("moved", "dir")
	token = w.wantFrozen(token, FreezeOptions{}, "dir dir", "dir/sub dir", "dir/sub/y content 100644 7",
		"dir/x blob", "moved gone")
	if w.src.Calls("Size") != sizes || w.src.Calls("Open") != opens+1 { // because a part of dir/sub/y was written
		t.Error("a freeze requested contents")
	}

	// Directories that the options skip, files that are too large to keep, and nested repositories.
	make("module/file", file)
	make("build", dir)
	make("build/out", dir)
	make("build/out/o", file)
	make("nested", dir)
	make("nested/.git", dir)
	make("nested/file", file)
	make("long", file)
	write("long", strings.Repeat("long", 100))
	skip := FreezeOptions{Skip: func(dir string) bool { return dir == "build" || dir == "new-dir" }, MaxPinned: 100}
	before := token
	token = w.wantFrozen(before, skip, "build skipped", "long content 100644 400 not kept", "module other", "nested other")
	w.wantFrozen(before, FreezeOptions{DryRun: true}, "build dir", "build/out dir",
		"build/out/o content 100644 0 not kept",
		"long content 100644 400 not kept", "module other", "nested other")
	write("build/out/o", "more")
	write("new-dir/in", "more")
	token = w.wantFrozen(token, skip, "build skipped", "new-dir skipped")

	// A directory that becomes a file, and a file that becomes a directory.
	w.ok(w.Unlink(ctx, Root, "a"))
	make("a", dir)
	make("a/a", file)
	w.ok(w.Unlink(ctx, w.node("nested"), "file"))
	w.ok(w.Rmdir(ctx, w.node("nested"), ".git"))
	w.ok(w.Rmdir(ctx, Root, "nested"))
	make("nested", file)
	w.ok(w.Unlink(ctx, w.node("module"), "file"))
	token = w.wantFrozen(token, FreezeOptions{}, "a dir", "a/a content 100644 0", "module module",
		"nested content 100644 0")

	whole := []string{
		"a dir", "a/a content 100644 0", "b blob", "build dir", "build/out dir", "build/out/o content 100644 4",
		"dir/sub/y content 100644 7", "link link some/where", "long content 100644 400", "nested content 100644 0",
		"new content 100644 0", "new-dir dir",
		"new-dir/empty dir", "new-dir/in content 100644 4", "new-dir/other tree of other", "other gone", "pipe other",
	}
	w.wantFrozen("", FreezeOptions{}, whole...)
	w.reopen()
	w.wantFrozen(token, FreezeOptions{})
	w.wantFrozen("", FreezeOptions{}, whole...)
}

// A listener is woken by each kind of change, once for all changes before it listens, and not after a freeze without
// further changes.
func TestNoticed(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{"a": {Data: "a"}, "b": {Data: "b"}})
	ctx := t.Context()
	noticed := func() bool {
		select {
		case <-w.Monitor().Noticed():
			return true
		default:
			return false
		}
	}
	if noticed() || !w.Monitor().LastChange().IsZero() {
		t.Errorf("last change of an unchanged tree: got %v", w.Monitor().LastChange())
	}
	a := w.node("a")
	for what, change := range map[string]func() error{
		"write":     func() error { _, err := w.Write(ctx, a, []byte("x"), 0, false); return err },
		"once more": func() error { _, err := w.Write(ctx, a, []byte("y"), 0, false); return err },
		"truncate":  func() error { _, err := w.SetAttr(ctx, a, Change{Set: SetSize, Size: 0}); return err },
		"mode":      func() error { _, err := w.SetAttr(ctx, w.node("b"), Change{Set: SetMode, Mode: 0o600}); return err },
		"create":    func() error { _, err := w.Mknod(ctx, Root, "new", syscall.S_IFREG|0o644, 0, Cred{}); return err },
	} {
		begin := time.Now()
		w.ok(change())
		if !noticed() || noticed() {
			t.Errorf("change %s did not wake the listener exactly once", what)
		}
		if at := w.Monitor().LastChange(); at.Before(begin) || at.After(time.Now()) {
			t.Errorf("%s: got last change at %v, but the change began at %v", what, at, begin)
		}
	}
	w.ok(w.Unlink(ctx, Root, "b"))
	_, err := w.Read(ctx, a, make([]byte, 10), 0)
	w.ok(err)
	w.Monitor().Writing(a)
	if list := w.Monitor().Writers(); !slices.Equal(list, []Node{a}) {
		t.Errorf("files that are being written: got %v", list)
	}
	f, err := w.Freeze(ctx, "", FreezeOptions{DryRun: true})
	w.ok(err)
	f.Release()
	if !noticed() {
		t.Error("a dry run has cleared changes that were not read")
	}
	w.ok(w.Unlink(ctx, Root, "a"))
	f, err = w.Freeze(ctx, "", FreezeOptions{})
	w.ok(err)
	f.Release()
	if noticed() {
		t.Error("a change that is in a frozen tree woke the listener after the freeze")
	}
}

// Freeze with an unknown position returns the whole tree and a valid position.
func TestFreezeOfAnUnknownToken(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{"a": {Data: "a"}})
	token := w.wantFrozen("", FreezeOptions{})
	_, err := w.Mknod(t.Context(), Root, "new", syscall.S_IFREG|0o644, 0, Cred{})
	w.ok(err)
	f, err := w.Freeze(t.Context(), "0123456789abcdef:5", FreezeOptions{})
	w.ok(err)
	defer f.Release()
	if got := told(f); !f.Whole || !slices.Equal(got, []string{"new content 100644 0"}) {
		t.Errorf("Freeze with an unknown position: got %q, whole %v", got, f.Whole)
	}
	w.wantFrozen(token, FreezeOptions{}, "new content 100644 0")
	w.wantFrozen(f.Token, FreezeOptions{})
}
