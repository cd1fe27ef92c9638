package worktree_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	. "github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/overlay"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

func TestSetAttr(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{"f": {Data: "data"}, "dir/x": {}})
	w.create("own", "own")
	for _, path := range []string{"f", "own", "dir"} {
		kind := w.stat(path).Mode & syscall.S_IFMT
		from := w.clock()
		w.set(path, Change{Set: SetMode, Mode: 0o7751})
		w.set(path, Change{Set: SetMode | SetUID | SetGID, Mode: 0o7751, UID: 3, GID: 4})
		w.set(path, Change{Set: SetAtime | SetMtime, Atime: -1, Mtime: 77})
		a := w.set(path, Change{Set: SetUID, UID: 5})
		if a.Ctime < from || a.Ctime > w.clock() {
			t.Errorf("%s: got ctime %v, but the changes began at %v", path, time.Unix(0, a.Ctime), time.Unix(0, from))
		}
		mode := kind | 0o1751 // chown clears set-user-ID and set-group-ID
		if kind == syscall.S_IFDIR {
			mode = kind | 0o7751
		}
		want := Attr{Node: a.Node, Mode: mode, Nlink: a.Nlink, UID: 5, GID: 4, Size: a.Size, Blocks: a.Blocks, Atime: -1,
			Mtime: 77, Ctime: a.Ctime}
		if a != want {
			t.Errorf("attributes of %s: got %+v, want %+v", path, a, want)
		}
		w.reopen()
		if b := w.stat(path); b.Mode != a.Mode || b.UID != 5 || b.GID != 4 || b.Atime != -1 || b.Mtime != 77 ||
			b.Ctime != a.Ctime {
			t.Errorf("attributes of %s after reopening: got %+v, want %+v", path, b, a)
		}
	}
	w.contents(map[string]string{"f": "data", "own": "own"})
	if a := w.set("f", Change{Set: SetCtime, Ctime: 99}); a.Ctime != 99 {
		t.Errorf("ctime after it was set to 99: got %d", a.Ctime)
	}
	before := w.stat("f")
	if a := w.set("f", Change{}); a != before {
		t.Errorf("a change without effect: got %+v, want %+v", a, before)
	}
	_, err := w.SetAttr(t.Context(), w.node("dir"), Change{Set: SetSize})
	w.want("truncate a directory", err, ErrIsDir)
	_, err = w.SetAttr(t.Context(), w.node("f"), Change{Set: SetSize, Size: -1})
	w.want("truncate to less than nothing", err, syscall.EINVAL)
	_, err = w.SetAttr(t.Context(), 12345, Change{Set: SetMode})
	w.want("change no node", err, ErrNoNode)
}

// clock returns the time that changes get.
func (w *workspace) clock() int64 {
	w.t.Helper()
	var ts unix.Timespec
	w.ok(unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &ts))
	return ts.Nano()
}

func TestTruncate(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{"a": {Data: "base data"}, "b": {Data: "base data"},
		"c": {Data: "base data"}})
	mtime := w.stat("a").Mtime
	if a := w.set("a", Change{Set: SetSize, Size: 4}); a.Size != 4 || a.Mtime == mtime {
		t.Errorf("attributes after the file was truncated: got %+v", a)
	}
	w.set("b", Change{Set: SetSize, Size: 12})
	if a := w.set("c", Change{Set: SetSize | SetMtime | SetCtime, Mtime: 5, Ctime: 6}); a.Size != 0 || a.Mtime != 5 ||
		a.Ctime != 6 {
		t.Errorf("attributes after the file was truncated to zero: got %+v", a)
	}
	w.both(func() { w.contents(map[string]string{"a": "base", "b": "base data\x00\x00\x00", "c": ""}) })
	w.set("c", Change{Set: SetSize, Size: 1 << 30})
	w.write(w.node("c"), "end", 1<<30)
	a := w.stat("c")
	if a.Size != 1<<30+3 || a.Blocks > 1000 {
		t.Errorf("attributes of the sparse file: got %+v", a)
	}
	if off, err := w.Seek(t.Context(), a.Node, 0, unix.SEEK_HOLE); off != 0 || err != nil {
		t.Errorf("first hole: got offset %d, %v", off, err)
	}
}

func TestSeek(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{"base": {Data: "12345"}})
	w.create("empty", "")
	for _, c := range []struct {
		path   string
		off    int64
		whence int
		want   int64
		err    error
	}{
		{"base", 0, unix.SEEK_DATA, 0, nil},
		{"base", 4, unix.SEEK_DATA, 4, nil},
		{"base", 0, unix.SEEK_HOLE, 5, nil},
		{"base", 5, unix.SEEK_DATA, 0, syscall.ENXIO},
		{"base", 5, unix.SEEK_HOLE, 0, syscall.ENXIO},
		{"base", 0, unix.SEEK_SET, 0, syscall.EINVAL},
		{"empty", 0, unix.SEEK_DATA, 0, syscall.ENXIO},
		{"empty", 0, unix.SEEK_HOLE, 0, syscall.ENXIO},
	} {
		got, err := w.Seek(t.Context(), w.node(c.path), c.off, c.whence)
		w.want(fmt.Sprintf("seek %+v", c), err, c.err)
		if err == nil && got != c.want {
			t.Errorf("seek %+v: got offset %d", c, got)
		}
	}
}

func TestKillPriv(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{"f": {Data: "data"}})
	n := w.node("f")
	for _, c := range []struct {
		do         func() error
		mode, want uint32
	}{
		{func() error { _, err := w.Write(t.Context(), n, []byte("x"), 0, true); return err }, 0o6755, 0o755},
		{func() error { _, err := w.Write(t.Context(), n, []byte("x"), 0, true); return err }, 0o6745, 0o2745},
		{func() error { _, err := w.Write(t.Context(), n, []byte("x"), 0, false); return err }, 0o6755, 0o6755},
		{func() error { _, err := w.SetAttr(t.Context(), n, Change{Set: SetSize | KillPriv}); return err }, 0o6755, 0o755},
		{func() error { _, err := w.SetAttr(t.Context(), n, Change{Set: SetUID}); return err }, 0o6755, 0o755},
		{func() error { _, err := w.SetAttr(t.Context(), n, Change{Set: SetGID}); return err }, 0o6755, 0o755},
		{func() error { _, err := w.SetAttr(t.Context(), n, Change{Set: SetMtime}); return err }, 0o6755, 0o6755},
	} {
		w.set("f", Change{Set: SetMode, Mode: c.mode})
		w.ok(c.do())
		if a := w.stat("f"); a.Mode != syscall.S_IFREG|c.want {
			t.Errorf("mode: got %o, want %o", a.Mode, c.want)
		}
	}
}

// A change of a name updates the times of its directory, and of no other.
func TestTimesOfDirectories(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{"dir/a": {Data: "a"}, "other/b": {}})
	old := w.stat("dir")
	w.write(w.node("dir/a"), "A", 0)
	w.set("dir/a", Change{Set: SetMode, Mode: 0o600})
	if a := w.stat("dir"); a != old {
		t.Errorf("attributes of the directory after its file was changed: got %+v, want %+v", a, old)
	}
	for _, do := range []func() error{
		func() error { w.create("dir/x", ""); return nil },
		func() error { return w.unlink("dir/x") },
		func() error { return w.rename("dir/a", "other/a") },
		func() error { return w.link("other/a", "dir/a") },
		func() error { return w.renameWith("dir/a", "other/b", unix.RENAME_EXCHANGE) },
	} {
		w.set("dir", Change{Set: SetMtime | SetCtime, Mtime: 1, Ctime: 1})
		w.ok(do())
		if a := w.stat("dir"); a.Mtime < old.Mtime || a.Ctime < old.Ctime {
			t.Errorf("the times of the directory did not change: %+v", a)
		}
	}
}

// Concurrent changes of a tree do not deadlock or damage it: every call returns, and the check of the overlay finds no
// error.
func TestConcurrentChanges(t *testing.T) {
	w := newWorkspace(t, modelBase())
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			name := func() string { return modelNames[rng.IntN(len(modelNames))] }
			ctx, buf := t.Context(), make([]byte, 5000)
			for range 1500 {
				dir, err := w.Resolve(ctx, []string{"", "e", "g", "e/f"}[rng.IntN(4)])
				if err != nil {
					continue
				}
				a, err := w.Lookup(ctx, dir, name())
				if err == nil {
					w.Kernel().Remember(a.Node)
				}
				switch rng.IntN(12) {
				case 0:
					w.Mknod(ctx, dir, name(), syscall.S_IFREG|0o644, 0, Cred{})
				case 1:
					w.Mkdir(ctx, dir, name(), 0o755, Cred{})
				case 2:
					w.Unlink(ctx, dir, name())
				case 3:
					w.Rmdir(ctx, dir, name())
				case 4, 5:
					to, _ := w.Resolve(ctx, []string{"", "e", "g", "e/f"}[rng.IntN(4)])
					w.Rename(ctx, dir, name(), to, name(), uint32(rng.IntN(3)))
				case 6, 7:
					w.Write(ctx, a.Node, buf[:1+rng.IntN(4000)], int64(rng.IntN(4000)), false)
				case 8:
					w.SetAttr(ctx, a.Node, Change{Set: SetSize, Size: int64(rng.IntN(2) * rng.IntN(9000))})
				case 9:
					w.Read(ctx, a.Node, buf, 0)
					w.Attr(ctx, a.Node)
				case 10:
					w.Link(ctx, a.Node, dir, name())
					w.CopyRange(ctx, a.Node, 0, dir, 0, 100)
				case 11:
					w.ReadDir(ctx, dir, 0, func(e Entry) bool { w.KnownAttr(e.Node); return true })
					w.Xattrs().Set(ctx, a.Node, "user.x", nil, 0)
					w.Fsync(ctx, a.Node, true)
				}
				if err == nil {
					w.Kernel().Forget(a.Node, 1)
				}
			}
		})
	}
	all.Wait()
	w.nodes() // everything can be listed and looked up
	w.close()
	report, err := overlay.Check(filepath.Join(w.dir, "overlay"), false, "")
	if err != nil || len(report.Findings) != 0 {
		t.Errorf("check of the overlay: got %+v, %v", report.Findings, err)
	}
	w.open()
}
