package worktree_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	. "github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/carry"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// take seals the contents for the share with a number, at the moment of a freeze, and takes the files at the paths left.
func (w *workspace) take(n int, left []string, choose func(path string, isDir bool) carry.Choice) *carry.Files {
	w.t.Helper()
	seal, err := w.Overlay().BeginSeal(share(n))
	w.ok(err)
	defer seal.Close()
	frozen, err := w.Freeze(w.t.Context(), "", FreezeOptions{Seal: seal})
	w.ok(err)
	frozen.Release()
	w.write(w.node("after"), "written after the moment", 0)
	c, err := seal.Take(left, choose)
	w.ok(err)
	return c
}

// adopting returns a workspace with the given files in its base tree and the files that were taken from w.
func (w *workspace) adopting(files map[string]worktreetest.File, c *carry.Files) *workspace {
	w.t.Helper()
	f := &workspace{t: w.t, src: worktreetest.New(files), dir: w.t.TempDir(), shares: w.shares, segments: c.Segments}
	f.open()
	w.t.Cleanup(f.close)
	w.ok(f.Overlay().Adopt(w.t.Context(), c))
	return f
}

// described returns the attributes and the contents of all paths that are below one of the given paths, as text.
func (w *workspace) described(below []string) map[string]string {
	w.t.Helper()
	all := map[string]string{}
	for p, a := range w.stats(func(string) bool { return false }) {
		if !slices.ContainsFunc(below, func(dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }) {
			continue
		}
		text := fmt.Sprintf("%o %d %d:%d %d %d %d %d %d", a.Mode, a.Nlink, a.UID, a.GID, a.Rdev, a.Size, a.Atime, a.Mtime,
			a.Ctime)
		switch a.Mode & syscall.S_IFMT {
		case syscall.S_IFREG:
			text += " " + w.read(a.Node)
		case syscall.S_IFLNK:
			target, err := w.Readlink(w.t.Context(), a.Node)
			w.ok(err)
			text += " " + string(target)
		}
		names, err := w.Xattrs().List(a.Node)
		w.ok(err)
		for _, name := range names {
			value, err := w.Xattrs().Get(a.Node, name)
			w.ok(err)
			text += fmt.Sprintf(" %s=%q", name, value)
		}
		all[p] = text
	}
	return all
}

// wantEqual compares descriptions.
func wantEqual(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	for p := range want {
		if got[p] != want[p] {
			t.Errorf("%s: %q: got %q, want %q", what, p, got[p], want[p])
		}
	}
	for p := range got {
		if _, ok := want[p]; !ok {
			t.Errorf("%s: got another path %q", what, p)
		}
	}
}

// A fork has everything that was left out of its base tree, and both trees then change on their own.
func TestCarry(t *testing.T) {
	base := map[string]worktreetest.File{
		"after": {Data: "base"}, "plain": {Data: "1"}, "dir/a": {Data: "a"}, "docs/changed": {Data: "base"},
		"docs/same": {Data: "same"}, "src/read": {Data: "read"}, "src/unread": {Data: "unread"},
	}
	w := sharing(t, base)
	ctx := t.Context()
	w.mkdir("ignored")
	w.mkdir("ignored/sub")
	w.mkdir("ignored/sub/empty")
	w.create("ignored/sub/file", "file")
	w.create("ignored/none", "")
	w.ok(w.link("ignored/sub/file", "ignored/hard"))
	w.ok(w.Xattrs().Set(ctx, w.node("ignored/sub/file"), "user.key", []byte("value"), 0))
	_, err := w.Symlink(ctx, w.node("ignored"), "link", "sub/file", Cred{UID: 3, GID: 4})
	w.ok(err)
	for name, mode := range map[string]uint32{"fifo": syscall.S_IFIFO, "sock": syscall.S_IFSOCK} {
		_, err := w.Mknod(ctx, w.node("ignored"), name, mode|0o640, 0, Cred{})
		w.ok(err)
	}
	w.write(w.node("src/read"), "changed", 0)
	w.ok(w.rename("src/read", "ignored/read"))
	w.ok(w.rename("src/unread", "ignored/unread"))
	w.create(".env", "secret")
	w.create("dir/a.o", "object")
	w.write(w.node("docs/changed"), "changed", 0)
	w.set("ignored/sub/empty", Change{Set: SetMode | SetMtime, Mode: 0o700, Mtime: 77})
	w.set("ignored/sub/file", Change{Set: SetMtime | SetUID, Mtime: 78, UID: 9})
	below := []string{"ignored", ".env", "dir/a.o", "docs/changed"}
	want := w.described(below)
	delete(want, "ignored/sock")
	delete(want, "ignored/unread")

	c := w.take(1, []string{".env", "dir/a.o", "docs/", "gone", "gone/too", "ignored/"}, takeAll)
	f := w.adopting(map[string]worktreetest.File{"after": {Data: "base"}, "plain": {Data: "1"}, "dir/a": {Data: "a"},
		"docs/changed": {Data: "base"}, "docs/same": {Data: "same"}}, c)
	wantEqual(t, "fork", f.described(below), want)
	if got, want := fmt.Sprint(c.Left), "[{ignored/sock socket} {ignored/unread unread}]"; got != want {
		t.Errorf("paths that were not carried: got %s, want %s", got, want)
	}
	if c.Files != 8 || c.Dirs != 3 || c.Bytes != 4+7+6+6+7 {
		t.Errorf("totals: got %d files, %d directories, %d bytes", c.Files, c.Dirs, c.Bytes)
	}
	f.contents(map[string]string{"docs/same": "same", "after": "base", "plain": "1"})
	if paths, _ := f.since(f.Monitor().StartToken()); !strings.HasPrefix(paths,
		".env dir/a.o docs/changed ignored/") {
		t.Errorf("paths in the journal of the fork: got %q", paths)
	}
	changed := func(what string, f *workspace, want int64) {
		t.Helper()
		if got := f.Overlay().Changed(); got != want {
			t.Errorf("%s: got %d changed paths, want %d", what, got, want)
		}
	}
	changed("fork", f, 0)
	changed("fork after the death of the mount", f.killed(false), 0)
	wantEqual(t, "fork after a kill", f.killed(true).described(below), want)
	wantEqual(t, "fork after the death of the mount", f.killed(false).described(below), want)

	// Each side changes on its own, and hard links stay together.
	f.write(f.node("ignored/hard"), "FORK", 0)
	changed("fork with a changed file of two names", f, 2)
	f.ok(f.unlink("ignored/read"))
	changed("fork without a file", f, 3) // the directory has changed
	f.set(".env", Change{Set: SetAtime | SetCtime, Atime: 5, Ctime: f.stat(".env").Ctime})
	changed("fork with another atime", f, 3)
	f.set(".env", Change{Set: SetMode, Mode: 0o600})
	changed("fork with another mode", f, 4)
	w.write(w.node("ignored/sub/file"), "PARENT", 0)
	w.write(w.node(".env"), "S", 0)
	w.ok(w.unlink("dir/a.o"))
	f.reopen()
	w.reopen()
	f.contents(map[string]string{"ignored/sub/file": "FORK", "ignored/hard": "FORK", ".env": "secret",
		"dir/a.o": "object"})
	w.contents(map[string]string{"ignored/hard": "PARENT", ".env": "Secret", "ignored/read": "changed"})

	// The fork of a fork has the changed and the unchanged files of the fork.
	below = []string{"ignored", ".env", "dir/a.o"}
	want = f.described(below)
	g := f.adopting(base, f.take(2, []string{".env", "dir/a.o", "ignored/"}, takeAll))
	f.ok(f.unlink(".env"))
	wantEqual(t, "fork of the fork", g.described(below), want)
}

// Only the chosen paths are carried, with the directories above them.
func TestCarryChoice(t *testing.T) {
	w := sharing(t, map[string]worktreetest.File{"after": {}})
	for _, dir := range []string{"a", "a/b", "a/b/c", "a/d", "e"} {
		w.mkdir(dir)
	}
	for _, file := range []string{"a/b/c/.env", "a/b/c/no", "a/d/no", "e/.env", "e/no", ".env"} {
		w.create(file, file)
	}
	w.ok(w.link("a/b/c/.env", "a/b/c/no2"))
	for i, test := range []struct {
		choose func(path string, isDir bool) carry.Choice
		want   string
	}{
		{func(path string, dir bool) carry.Choice {
			switch {
			case dir:
				return carry.Enter
			case strings.HasSuffix(path, ".env"):
				return carry.All
			}
			return carry.Leave
		}, ".env a a/b a/b/c a/b/c/.env e e/.env"},
		{func(path string, _ bool) carry.Choice {
			switch path {
			case "a", "a/b":
				return carry.Enter
			case "a/b/c":
				return carry.All
			}
			return carry.Leave
		}, "a a/b a/b/c a/b/c/.env a/b/c/no a/b/c/no2"},
		{func(string, bool) carry.Choice { return carry.Leave }, ""},
		{func(string, bool) carry.Choice { return carry.Enter }, ""},
	} {
		c := w.take(i+1, []string{".env", "a/", "e/"}, test.choose)
		f := w.adopting(map[string]worktreetest.File{"after": {}}, c)
		all := f.described([]string{".env", "a", "e"})
		if got := strings.Join(slices.Sorted(maps.Keys(all)), " "); got != test.want {
			t.Errorf("choice %d: got %q, want %q", i, got, test.want)
		}
		if _, ok := all["a/b/c/.env"]; ok {
			links := uint32(1)
			if i == 1 {
				links = 2
			}
			if a := f.stat("a/b/c/.env"); a.Nlink != links {
				t.Errorf("choice %d: got %d links, want %d", i, a.Nlink, links)
			}
			if a := f.stat("a"); a.Nlink != 3 {
				t.Errorf("choice %d: directory has %d links, want 3", i, a.Nlink)
			}
		}
		if len(c.Left) > 0 {
			t.Errorf("choice %d: got %v as not carried", i, c.Left)
		}
	}
}

// What has no place in the other tree is left out with everything below it.
func TestCarryWithoutAPlace(t *testing.T) {
	w := sharing(t, map[string]worktreetest.File{"after": {}, "dir/x": {}})
	w.mkdir("dir/sub")
	w.create("dir/sub/file", "1")
	w.create("dir/file", "2")
	w.create("file", "3")
	w.mkdir("other")
	w.create("other/file", "4")
	left := []string{"dir/file", "dir/sub/", "file", "other/"}
	f := w.adopting(map[string]worktreetest.File{"after": {}, "dir": {Data: "file"}, "file/x": {}, "other": {Data: "o"}},
		w.take(1, left, takeAll))
	f.contents(map[string]string{"dir": "file", "other": "o"})
	if got := f.list("file"); got != "x" {
		t.Errorf("directory that a file does not replace: got %q", got)
	}
	c := w.take(2, left, takeAll)
	w.ok(w.adopting(map[string]worktreetest.File{"after": {}, "dir": {Data: "file"}}, c).Overlay().Adopt(t.Context(),
		&carry.Files{}))
	got := map[string]carry.Why{}
	for _, l := range c.Left {
		got[l.Path] = l.Why
	}
	if want := map[string]carry.Why{"dir/file": carry.NoPlace, "dir/sub/": carry.NoPlace}; !maps.Equal(got, want) {
		t.Errorf("paths without a place: got %v, want %v", got, want)
	}
	if c.Files != 2 || c.Dirs != 1 {
		t.Errorf("totals without them: got %d files and %d directories", c.Files, c.Dirs)
	}
}

// Many files take several updates.
func TestCarryManyFiles(t *testing.T) {
	w := sharing(t, map[string]worktreetest.File{"after": {}})
	w.mkdir("ignored")
	for d := range 10 {
		dir := fmt.Sprint("ignored/", d)
		w.mkdir(dir)
		for i := range 70 {
			w.create(fmt.Sprint(dir, "/", i), fmt.Sprint(d, i))
			if i%10 == 0 {
				w.ok(w.link(fmt.Sprint(dir, "/", i), fmt.Sprint("ignored/hard", d, i)))
			}
		}
	}
	want := w.described([]string{"ignored"})
	f := w.adopting(map[string]worktreetest.File{"after": {}}, w.take(1, []string{"ignored/"}, takeAll))
	wantEqual(t, "fork", f.described([]string{"ignored"}), want)
	f.reopen()
	wantEqual(t, "fork after a restart", f.described([]string{"ignored"}), want)
}
