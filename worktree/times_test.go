package worktree_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/disktest"
	. "github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// stats returns the attributes of all paths except those that skip selects, by path.
func (w *workspace) stats(skip func(path string) bool) map[string]Attr {
	w.t.Helper()
	all := map[string]Attr{"": w.stat("")}
	var visit func(at string)
	visit = func(at string) {
		for _, name := range names(w.t, w.Tree, all[at].Node, 0) {
			p := path.Join(at, name)
			a := w.stat(p)
			dir := a.Mode&syscall.S_IFMT == syscall.S_IFDIR
			if dir && skip(p+"/") || !dir && skip(p) {
				continue
			}
			if all[p] = a; dir {
				visit(p)
			}
		}
	}
	visit("")
	return all
}

// timesIn returns the times in attributes as text, by path.
func timesIn(all map[string]Attr) map[string]string {
	times := map[string]string{}
	for p, a := range all {
		times[p] = fmt.Sprint(a.Atime, a.Mtime, a.Ctime)
	}
	return times
}

// forked returns a workspace whose base tree has the present files of w, and that shows the times that w has now. The
// paths that skip selects are left out.
func (w *workspace) forked(skip func(path string) bool) *workspace {
	w.t.Helper()
	ctx := w.t.Context()
	frozen, err := w.Freeze(ctx, "", FreezeOptions{})
	w.ok(err)
	defer frozen.Release()
	times, since, ok := w.Overlay().Times(frozen, 1000, skip)
	if !ok || len(since) > 0 || !times.Unchanged.Equal(commitTime) {
		w.t.Fatalf("times of the tree: got %v, %q changed since, %v", times.Unchanged, since, ok)
	}
	files, all := map[string]worktreetest.File{}, w.stats(skip)
	for p, a := range all {
		f := worktreetest.File{}
		switch {
		case a.Mode&syscall.S_IFMT == syscall.S_IFLNK:
			target, err := w.Readlink(ctx, a.Node)
			w.ok(err)
			f = worktreetest.File{Mode: object.ModeSymlink, Data: string(target)}
		case a.Mode&syscall.S_IFMT == syscall.S_IFREG:
			if f.Data = w.read(a.Node); a.Mode&0o100 != 0 {
				f.Mode = object.ModeExec
			}
		case slices.ContainsFunc(slices.Collect(maps.Keys(all)), func(q string) bool {
			return p == "" || strings.HasPrefix(q, p+"/")
		}):
			continue
		default:
			f.Mode = object.ModeDir
		}
		files[p] = f
	}
	f := newWorkspace(w.t, files)
	f.later = time.Hour
	f.reopen()
	times.Paths = append(times.Paths, PathTimes{Path: "none/such"}, PathTimes{Path: "plain/x"})
	w.ok(f.Overlay().SetTimes(ctx, times))
	return f
}

// A fork shows the times of all paths, counts as unchanged, and can be forked itself.
func TestTimesOfForks(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{
		"plain": {Data: "1"}, "run.sh": {Data: "#!", Mode: object.ModeExec},
		"link":  {Data: "plain", Mode: object.ModeSymlink},
		"dir/a": {Data: "a"}, "dir/b": {Data: "b"}, "dir/deep/c": {Data: "c"}, "far/down/below/d": {Data: "d"},
		"moved/x": {Data: "x"}, "moved/y/z": {Data: "z"}, "old/one": {Data: "1"}, "same/file": {Data: "same"},
		"touched/file": {Data: "file"},
	})
	ctx := t.Context()
	w.write(w.node("plain"), "changed", 0)
	w.mkdir("own")
	w.mkdir("own/sub")
	w.create("own/sub/file", "own")
	w.mkdir("ignored")
	w.create("ignored/object", "object")
	w.create("dir/object", "object")
	_, err := w.Symlink(ctx, w.node("dir"), "sym", "deep", Cred{})
	w.ok(err)
	w.ok(w.link("dir/a", "own/a"))
	w.ok(w.rename("moved/y/z", "own/z"))
	w.ok(w.rename("moved", "own/moved"))
	w.ok(w.rename("dir/b", "dir/B"))
	w.ok(w.unlink("old/one"))
	w.set("run.sh", Change{Set: SetAtime | SetMtime | SetCtime, Atime: 5, Mtime: 6, Ctime: 7})
	w.set("link", Change{Set: SetMtime, Mtime: time.Now().Add(time.Hour).UnixNano()})
	w.set("dir/deep/c", Change{Set: SetMode, Mode: 0o755})
	w.set("far/down/below/d", Change{Set: SetMtime, Mtime: 8})
	w.set("touched", Change{Set: SetMtime, Mtime: 9})
	skip := func(path string) bool { return path == "ignored/" || path == "dir/object" }
	changed := func(w *workspace, want int64) {
		t.Helper()
		if got := w.Overlay().Changed(); got != want {
			t.Errorf("changed paths: got %d, want %d", got, want)
		}
	}
	equal := func(what string, f, of *workspace) {
		t.Helper()
		got, want := timesIn(f.stats(skip)), timesIn(of.stats(skip))
		for p := range want {
			if got[p] != want[p] {
				t.Errorf("%s: times of %q: got %s, want %s", what, p, got[p], want[p])
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: got %d paths, want %d", what, len(got), len(want))
		}
	}
	f := w.forked(skip)
	check := func() {
		t.Helper()
		equal("fork", f, w)
		changed(f, 0)
		if paths, _ := f.since(f.Monitor().StartToken()); paths != "" || !f.Monitor().LastChange().IsZero() {
			t.Errorf("fork: got the changes %q, the last of %v", paths, f.Monitor().LastChange())
		}
	}
	check()
	f.wantFrozen("", FreezeOptions{})
	walked := map[string]Attr{}
	w.ok(f.Base().Walk(ctx, func(e BaseEntry) error { walked[e.Path] = e.Attr; return nil }))
	if a := walked["run.sh"]; a.Atime != 5 || a.Mtime != 6 || a.Ctime != 7 {
		t.Errorf("times of run.sh for git's index: got %+v, want 5, 6 and 7", a)
	}
	if a := walked["plain"]; a.Mtime != commitTime.UnixNano() {
		t.Errorf("times of a file that was just written, for git's index: got %+v, want those of unchanged files", a)
	}
	equal("fork after a kill", f.killed(true), w)
	killed := f.killed(false)
	equal("fork after the death of the mount", killed, w)
	changed(killed, 0)
	f.reopen()
	check()

	g := f.forked(skip)
	g.write(g.node("same/file"), "other", 0)
	g.set("own/z", Change{Set: SetMtime, Mtime: 10})
	h := g.forked(skip)
	equal("third fork", h, g)
	changed(h, 0)

	changed(g, 1)
	g.set("run.sh", Change{Set: SetMode, Mode: 0o700})
	changed(g, 2)
	g.set("run.sh", Change{Set: SetMode, Mode: 0o755})
	changed(g, 1)
	g.write(g.node("plain"), "again", 0)
	changed(g, 2)
	g.ok(g.Xattrs().Set(ctx, g.node("link"), "user.x", []byte("x"), 0))
	changed(g, 3)
	g.ok(g.rename("own/moved/x", "own/moved/X"))
	changed(g, 5)
	g.ok(g.unlink("dir/sym"))
	changed(g, 6)
}

// Paths that change after the freeze are returned, and their directories get no later time than that of the freeze.
func TestTimesAfterTheFreeze(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{"a": {}, "b": {}, "dir/x": {}, "dir/sub/y": {}})
	w.write(w.node("a"), "a", 0)
	f, err := w.Freeze(t.Context(), "", FreezeOptions{})
	w.ok(err)
	defer f.Release()
	skip := func(path string) bool { return path == "ignored" }
	for w.clock() == f.Moment() { // the clock ticks every few milliseconds
		time.Sleep(time.Millisecond)
	}
	b := w.set("b", Change{Set: SetUID, UID: 5})
	w.write(w.node("a"), "b", 0)
	w.create("ignored", "x")
	w.create("dir/new", "x")
	times, since, ok := w.Overlay().Times(f, 10, skip)
	if slices.Sort(since); !ok || !slices.Equal(since, []string{"a", "dir/new"}) {
		t.Errorf("paths that have changed since: got %q, %v", since, ok)
	}
	for _, p := range times.Paths {
		switch p.Path {
		case "b":
			if p.Mtime != b.Mtime || p.Ctime != b.Ctime {
				t.Errorf("times of a file with another owner: got %+v, want %+v", p, b)
			}
		case "", "dir":
			if p.Mtime != f.Moment() || p.Ctime != f.Moment() {
				t.Errorf("times of a directory with a new file: got %+v, want %d", p, f.Moment())
			}
		case "a", "dir/new":
		default:
			t.Errorf("times of another path: got %+v", p)
		}
	}
	if _, _, ok := w.Overlay().Times(f, 2, skip); ok {
		t.Error("got the times of more paths than the maximum")
	}
	w.ok(w.rename("dir/sub", "sub"))
	if _, since, _ = w.Overlay().Times(f, 10, skip); !slices.Contains(since, "dir/sub/") {
		t.Errorf("paths after the rename of a directory: got %q", since)
	}
	f.Token = "another:1"
	if _, _, ok := w.Overlay().Times(f, 10, skip); ok {
		t.Error("got times although the journal does not have the changes since the freeze")
	}
}

// If a directory cannot be read, all paths keep the time that they have.
func TestTimesWithoutATree(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{"a": {}, "dir/b": {}, "far/c": {}})
	times := Times{Unchanged: commitTime.Add(-time.Hour),
		Paths: []PathTimes{{"a", 1, 2, 3}, {"dir/b", 1, 2, 3}, {"far/c", 1, 2, 3}}}
	w.src.Rule("far", worktreetest.Rule{Err: syscall.EHOSTUNREACH})
	err := w.Overlay().SetTimes(t.Context(), times)
	w.want("times without a tree", err, ErrNoTimes)
	w.want("times without a tree", err, syscall.EHOSTUNREACH)
	w.src.Rule("far", worktreetest.Rule{})
	at := commitTime.UnixNano()
	for p, got := range timesIn(w.stats(func(string) bool { return false })) {
		if want := fmt.Sprint(at, at, at); got != want {
			t.Errorf("times of %q after the failure: got %s, want %s", p, got, want)
		}
	}
}

// After a power cut at any moment, unchanged paths have the earlier time only if all times are there.
func TestTimesAfterAPowerCut(t *testing.T) {
	files := map[string]worktreetest.File{"unchanged": {}}
	times := Times{Unchanged: commitTime.Add(-time.Hour)}
	for i := range 300 {
		at := fmt.Sprintf("dir%d/file%d", i%3, i)
		files[at] = worktreetest.File{}
		times.Paths = append(times.Paths, PathTimes{at, 1, int64(i), 3})
	}
	src := worktreetest.New(files)
	some := 0 // runs after which some times are there and others not
	for seed := range uint64(60) {
		top := t.TempDir()
		at := func(dir string, fs disk.FS) *faultTree {
			dir = filepath.Join(top, dir)
			w := &faultTree{t: t, dir: dir, src: src, options: Options{FS: fs, Root: src.Root, Time: commitTime,
				Overlay: filepath.Join(dir, "overlay"), Journal: filepath.Join(dir, "journal")}}
			if err := w.open(); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			return w
		}
		before, after := filepath.Join(top, "before"), filepath.Join(top, "after")
		if err := os.Mkdir(before, 0o700); err != nil {
			t.Fatal(err)
		}
		crash, err := disktest.NewCrashFS(before)
		if err != nil {
			t.Fatal(err)
		}
		w := at("before", disktest.Booted(crash, faultBoot1))
		closes := seed%4 == 0
		if err = w.Overlay().SetTimes(t.Context(), times); err == nil && closes {
			err = w.Close()
		}
		if err == nil && seed%2 == 0 {
			err = crash.Crash(after, seed)
		} else if err == nil { // the disk has the log up to a random byte
			err = errors.Join(copyLive(after, before), cutLog(filepath.Join(after, "overlay", "log"), seed))
		}
		if err == nil && !closes {
			err = w.Close()
		}
		if err = errors.Join(err, crash.Close()); err != nil {
			t.Fatal(err)
		}

		w = at("after", disktest.Booted(disk.OS, faultBoot2))
		earlier, there := stat(t, w.Tree, "unchanged").Mtime == times.Unchanged.UnixNano(), 0
		for _, p := range times.Paths {
			if stat(t, w.Tree, p.Path).Mtime == p.Mtime {
				there++
			}
		}
		if earlier && there < len(times.Paths) || closes && !earlier {
			t.Errorf("seed %d: closed: %v; unchanged paths have the earlier time: %v; %d of %d others have their times",
				seed, closes, earlier, there, len(times.Paths))
		}
		if there > 0 && !earlier {
			some++
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	if some == 0 {
		t.Error("no run has lost a part of the times")
	}
}

// cutLog replaces the bytes of a log by zeros, from a random position among those that are in use.
func cutLog(path string, seed uint64) error {
	log, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	header := 4096
	used := len(bytes.TrimRight(log, "\x00")) - header
	clear(log[header+rand.New(rand.NewPCG(seed, 3)).IntN(used):])
	return os.WriteFile(path, log, 0o600)
}
