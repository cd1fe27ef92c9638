package overlay

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/worktree/overlay/state"
)

// createFor creates a file as the effect of a request.
func (w *world) createFor(request uint64, name string) Node {
	w.t.Helper()
	var node Node
	w.must(w.l.Update(func(tx *Tx) (err error) {
		if node, err = tx.NewNode(); err != nil {
			return err
		}
		tx.PutInode(Inode{Node: node, Mode: syscall.S_IFREG | 0o644, Nlink: 1, Parent: root})
		tx.SetEntry(root, name, node)
		tx.Request(request, node)
		return nil
	}))
	return node
}

func (w *world) made(request uint64) (n Node, ok bool) {
	w.l.View(func(r Reader) { n, ok = r.Request(request) })
	return n, ok
}

// After kills and compactions, a process that takes over remembers a request, and one that does not take over forgets
// it permanently.
func TestRequestsAreRemembered(t *testing.T) {
	w := newWorld(t, filepath.Join(t.TempDir(), "overlay"), Options{Seed: state.Seed{1}})
	w.mustOpen()
	want := map[uint64]Node{}
	for i := range uint64(100) {
		id := 2*i + 2
		want[id] = w.createFor(id, fmt.Sprint("file", i))
		if i%30 == 29 {
			w.must(w.l.janitor.compact())
		}
	}
	w.must(w.l.Update(func(tx *Tx) error { tx.Request(1000, 0); return nil }))
	check := func(there bool) {
		t.Helper()
		for id, node := range want {
			if n, ok := w.made(id); ok != there || ok && n != node {
				t.Fatalf("request %d: got node %x, %v, want %x, %v", id, n, ok, node, there)
			}
		}
		if _, ok := w.made(1000); ok {
			t.Error("a request without an effect is remembered")
		}
	}
	check(true)
	for range 3 {
		w.kill()
		w.o.TakeOver = true
		if rec := w.mustOpen(); !rec.TookOver || rec.Start != Killed || len(rec.Problems) > 0 {
			t.Fatalf("recovery with a takeover: got %+v, want killed, without problems", rec)
		}
		check(true)
		w.must(w.l.janitor.compact())
	}
	w.mustClose() // the process may be killed during Close, too
	if rec := w.mustOpen(); !rec.TookOver || rec.Start != Clean {
		t.Fatalf("recovery after a clean end: got %+v, want a takeover", rec)
	}
	check(true)
	w.kill()
	w.o.TakeOver = false
	w.mustOpen()
	check(false)
	w.kill()
	w.o.TakeOver = true
	w.mustOpen()
	check(false)
	w.mustClose()
}

// A program that reads a directory gets every entry that stays exactly once, although the process is killed, the log is
// rewritten, and other entries are created and removed.
func TestListingAcrossTakeover(t *testing.T) {
	w := newWorld(t, filepath.Join(t.TempDir(), "overlay"), Options{Seed: state.Seed{1}})
	w.mustOpen()
	const stays = 1000
	for i := range uint64(stays) {
		w.createFor(0, fmt.Sprint("stays", i))
		w.createFor(0, fmt.Sprint("goes", i))
	}
	seen, after := map[string]int{}, uint64(0)
	for i, more := 0, true; more; i++ {
		more = false
		left := 150
		w.l.View(func(r Reader) {
			r.ReadDir(root, after, func(cookie uint64, name string, _ Node, p Presence) bool {
				if more = left == 0; more {
					return false
				}
				left--
				after = cookie
				if p == Present {
					seen[string([]byte(name))]++
				}
				return true
			})
		})
		for k := range 40 {
			w.must(w.l.Update(func(tx *Tx) error { tx.ClearEntry(root, fmt.Sprint("goes", i*40+k)); return nil }))
			w.createFor(0, fmt.Sprint("comes", i*40+k))
		}
		if i%2 == 0 {
			w.must(w.l.janitor.compact())
		}
		w.kill()
		w.o.TakeOver = true
		w.mustOpen()
	}
	for i := range stays {
		if n := seen[fmt.Sprint("stays", i)]; n != 1 {
			t.Fatalf("entry %d was returned %d times", i, n)
		}
	}
	w.mustClose()
}

// After a takeover, which does not wait for the disk, sizes that are not in the log yet are right, and are written to
// the log later.
func TestTakeOverGoesOnWithDirtyFiles(t *testing.T) {
	w := newWorld(t, filepath.Join(t.TempDir(), "overlay"), Options{})
	w.o.pause = time.Hour // the janitor writes no sizes before the kill
	w.mustOpen()
	w.must(w.create("own"))
	w.must(w.write("own", 0, []byte("some bytes")))
	w.must(w.write("own", 10, []byte(" and some more")))
	w.must(w.write(baseName(3), 5, []byte("changed")))
	before, _ := w.l.Inode(w.files["own"].node)
	w.kill()
	w.o.TakeOver = true
	w.mustOpen()
	w.compare()
	after, ok := w.l.Inode(w.files["own"].node)
	if !ok || after.Mtime != before.Mtime || after.Flags != before.Flags {
		t.Errorf("inode after the takeover: got %+v, want %+v", after, before)
	}
	w.must(w.l.janitor.tidy(true))
	for _, name := range []string{"own", baseName(3)} {
		if in, ok := w.l.Inode(w.files[name].node); !ok || in.Flags != 0 {
			t.Errorf("the size of %s was not written to the log: %+v", name, in)
		}
	}
	w.must(w.fsync("own"))
	w.mustClose()
	w.sound()
}

// Lookup counts of a kernel from before a reboot are ignored.
func TestLookupsAreOfThisBoot(t *testing.T) {
	w := newWorld(t, filepath.Join(t.TempDir(), "overlay"), Options{})
	w.mustOpen()
	w.must(w.create("file"))
	w.kill()
	w.o.TakeOver, w.o.boot = true, "boot-2"
	if rec := w.mustOpen(); rec.TookOver || rec.Start != PowerLoss || len(rec.Problems) != 1 {
		t.Errorf("recovery in another boot: got %+v, want a power loss, one problem and no takeover", rec)
	}
	w.mustClose()
}

// With arbitrary contents of the file of lookup counts, the overlay opens, and every node with a name exists.
func FuzzLookups(f *testing.F) {
	dir := f.TempDir()
	w := newWorld(f, filepath.Join(dir, "overlay"), Options{Seed: state.Seed{1}})
	w.mustOpen()
	w.must(w.create("named"))
	w.must(w.create("removed"))
	node := w.files["removed"].node
	w.l.Remember(node)
	w.must(w.remove("removed"))
	w.kill()
	path := filepath.Join(dir, "overlay", "lookups")
	good, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good[:countsStart+64])
	f.Add(good[:20])
	f.Add([]byte{})
	f.Add(append([]byte("X"), good[1:countsStart+32]...))
	f.Fuzz(func(t *testing.T, image []byte) {
		top, err := os.MkdirTemp("/dev/shm", "")
		if err != nil {
			top = t.TempDir()
		}
		defer os.RemoveAll(top)
		if err := os.CopyFS(top, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(top, "overlay", "lookups"), image, 0o600); err != nil {
			t.Fatal(err)
		}
		again := *w
		again.t, again.dir, again.o.TakeOver = t, filepath.Join(top, "overlay"), true
		rec := again.mustOpen()
		_, there := again.l.Inode(node)
		if !rec.TookOver && len(rec.Problems) != 1 {
			t.Errorf("recovery: got %+v; the node exists: %v", rec, there)
		}
		again.compare()
		again.l.Remember(again.files["named"].node)
		again.mustClose()
	})
}

// A contents file to which no inode referred when the process was killed is removed after a takeover.
func TestTakeOverRemovesOrphans(t *testing.T) {
	w := newWorld(t, filepath.Join(t.TempDir(), "overlay"), Options{})
	w.mustOpen()
	w.must(w.create("file"))
	w.must(w.write("file", 0, []byte("data")))
	number, data, err := w.l.create(true)
	w.must(err)
	w.must(data.Close())
	w.kill()
	w.o.TakeOver = true
	w.mustOpen()
	await.Until(t, "the orphan is removed", func() bool {
		_, err := os.Stat(pathIn(w.l.contents.layout.Load().own, number))
		return os.IsNotExist(err)
	})
	w.compare()
	if lost := w.lost(); len(lost) > 0 {
		t.Errorf("files in lost+found: got %v", lost)
	}
	w.mustClose()
	w.sound()
}

// If a process is killed at the very end of Close, nothing is lost, and its mount can be taken over.
func TestKilledInClose(t *testing.T) {
	w := newWorld(t, filepath.Join(t.TempDir(), "overlay"), Options{})
	w.mustOpen()
	w.must(w.create("file"))
	w.must(w.write("file", 0, []byte("data")))
	node := w.createFor(2, "open")
	w.l.Remember(node)
	w.must(w.l.Update(func(tx *Tx) error {
		in, _ := tx.Inode(node)
		in.Nlink = 0
		tx.PutInode(in)
		tx.ClearEntry(root, "open")
		return nil
	}))
	w.must(w.l.janitor.tidy(true))
	w.must(w.l.Update(func(tx *Tx) error { tx.batch.SetCounter(counterBoot, 0); return nil }))
	w.kill()
	w.o.TakeOver = true
	if rec := w.mustOpen(); rec.Start != Killed || !rec.TookOver {
		t.Errorf("recovery of a log without the boot: got %+v, want killed and a takeover", rec)
	}
	if _, ok := w.l.Inode(node); !ok {
		t.Error("an open file is missing")
	}
	w.compare()
	w.mustClose()
	w.sound()
}

// A write sets the times, and a successor finds exactly the same times, although the log does not contain them.
// A time that was set after the write has precedence.
func TestWrittenTimes(t *testing.T) {
	w := newWorld(t, filepath.Join(t.TempDir(), "overlay"), Options{})
	w.o.quiet = time.Hour // the files stay dirty
	w.mustOpen()
	times := func(name string) [2]int64 {
		t.Helper()
		in, ok := w.l.Inode(w.files[name].node)
		if !ok {
			t.Fatalf("%s has no inode", name)
		}
		return [2]int64{in.Mtime, in.Ctime}
	}
	for _, name := range []string{"written", "set", "cut"} {
		w.must(w.create(name))
	}
	w.must(w.write("written", 0, []byte("text")))
	first := times("written")
	time.Sleep(20 * time.Millisecond) // more than a tick of the clock of file times
	w.must(w.write("written", 1, []byte("more")))
	last := times("written")
	if last[0] <= first[0] || last[1] < last[0] {
		t.Errorf("times after the second write: got %v, and %v after the first", last, first)
	}
	w.must(w.truncate("written", 5)) // its size already: the times do not change
	w.must(w.write("set", 0, []byte("text")))
	w.setMtime("set", 1)
	// The clock of the caller may be behind the time that the file system gives to the contents file.
	w.must(w.write("cut", 0, []byte("text")))
	cut := times("cut")[0]
	time.Sleep(20 * time.Millisecond)
	w.must(w.truncate("cut", 2))
	w.setMtime("cut", cut)
	for _, c := range []struct {
		what     string
		takeOver bool
		end      func()
	}{
		{"a takeover", true, w.kill}, {"another takeover", true, w.kill}, {"a kill", false, w.kill},
		{"a clean end", false, w.mustClose},
	} {
		c.end()
		w.o.TakeOver = c.takeOver
		w.mustOpen()
		if got := times("written"); got != last {
			t.Errorf("times after %s: got %v, want %v", c.what, got, last)
		}
		if got := times("set"); got[0] != 1 {
			t.Errorf("mtime that was set after a write: got %d after %s, want 1", got[0], c.what)
		}
		if got := times("cut"); got[0] != cut {
			t.Errorf("mtime that was set after a truncation: got %d after %s, want %d", got[0], c.what, cut)
		}
		if c.takeOver {
			continue
		}
		time.Sleep(20 * time.Millisecond)
		w.must(w.write("written", 0, []byte("again")))
		last = times("written")
	}
	w.mustClose() // the times in the log are those of the last write
	w.mustOpen()
	if got := times("written"); got != last {
		t.Errorf("times after the last clean end: got %v, want %v", got, last)
	}
}
