package overlay

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// breakage is a kind of damage of a closed overlay, and the finding that Check must return.
type breakage struct {
	name, says string
	do         func(w *world)
}

var breakages = []breakage{
	{"missing content", "contents file 000001 is missing; after the repair the file is empty", func(w *world) {
		w.must(os.Remove(filepath.Join(w.dir, "contents/000000/000001")))
		w.files["f"].data = nil
	}},
	{"missing content of a base file", "is missing; after the repair the file has the contents of the base tree",
		func(w *world) {
			w.must(os.Remove(filepath.Join(w.dir, "contents/000000/000002")))
			w.files["base3"].data, w.files["base3"].base = baseContents(3), true
		}},
	{"short content", "has size 7, but its contents have 3 bytes", func(w *world) {
		w.must(os.Truncate(filepath.Join(w.dir, "contents/000000/000001"), 3))
		w.files["f"].data = []byte("con")
	}},
	{"orphan", "contents file 000309 belongs to no file", func(w *world) {
		w.must(os.WriteFile(filepath.Join(w.dir, "contents/000000/000309"), []byte("x"), 0o600))
	}},
	{"links", "5 links, want 1", func(w *world) {
		w.mustOpen()
		w.must(w.l.Update(func(tx *Tx) error {
			in, _ := tx.Inode(w.files["f"].node)
			in.Nlink = 5
			tx.PutInode(in)
			return nil
		}))
		w.mustClose()
	}},
	{"name of nothing", `entry "ghost" of directory 1 refers to a missing inode`, func(w *world) {
		w.mustOpen()
		w.must(w.l.Update(func(tx *Tx) error { tx.SetEntry(root, "ghost", 7<<32|77); return nil }))
		w.mustClose()
	}},
	{"directory's parent", "has parent 99, want 1", func(w *world) {
		w.mustOpen()
		w.must(w.l.Update(func(tx *Tx) error {
			n, err := tx.NewNode()
			tx.PutInode(Inode{Node: n, Mode: syscall.S_IFDIR | 0o755, Nlink: 2, Parent: 99})
			tx.SetEntry(root, "dir", n)
			w.files["dir"] = nil
			return err
		}))
		delete(w.files, "dir")
		w.mustClose()
	}},
}

func TestCheckFindsAndRepairs(t *testing.T) {
	for _, b := range breakages {
		t.Run(b.name, func(t *testing.T) {
			w := newWorld(t, filepath.Join(t.TempDir(), "overlay"), Options{})
			w.mustOpen()
			w.must(w.create("f"))
			w.must(w.write("f", 0, []byte("content")))
			w.must(w.write("base3", 0, []byte("x")))
			w.mustClose()
			w.sound()
			b.do(w)
			before := listing(t, w.dir)
			r, err := check(w.dir, false, w.o)
			w.must(err)
			if len(r.Findings) != 1 || !strings.Contains(r.Findings[0].What, b.says) || r.Findings[0].Repaired {
				t.Fatalf("findings: got %+v", r.Findings)
			}
			if after := listing(t, w.dir); after != before {
				t.Errorf("a check changed the files: before\n%s\nafter\n%s", before, after)
			}
			r, err = check(w.dir, true, w.o)
			w.must(err)
			if len(r.Findings) != 1 || !r.Findings[0].Repaired {
				t.Fatalf("findings of the repair: got %+v", r.Findings)
			}
			w.sound()
			w.mustOpen()
			if b.name != "directory's parent" {
				w.compare()
			}
			w.mustClose()
		})
	}
}

func TestDamagedLog(t *testing.T) {
	w := newWorld(t, filepath.Join(t.TempDir(), "overlay"), Options{})
	w.mustOpen()
	for _, name := range []string{"a", "damaged", "c"} {
		w.must(w.create(name))
		w.must(w.write(name, 0, []byte(name)))
	}
	w.mustClose()
	path := filepath.Join(w.dir, "log")
	log, err := os.ReadFile(path)
	w.must(err)
	at := strings.LastIndex(string(log), "damaged") // the name in the record that created the file
	log[at] ^= 0xff
	w.must(os.WriteFile(path, log, 0o600))

	if _, err := w.open(); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Fatalf("open a damaged overlay: got %v", err)
	}
	w.o.ReadOnly = true
	if rec := w.mustOpen(); len(rec.Problems) == 0 {
		t.Error("recovery reports no problem")
	}
	if _, p := w.l.Entry(root, "a"); p != Present {
		t.Error("a file from before the damage is missing")
	}
	w.mustClose()
	w.o.ReadOnly = false
	r, err := check(w.dir, true, w.o)
	w.must(err)
	if len(r.Findings) == 0 || !r.Findings[0].Repaired {
		t.Errorf("check with repair: got %+v, want a repaired finding", r)
	}
	w.sound()
	w.mustOpen()
	if got, ok, err := w.look("a"); !ok || err != nil || string(got.data) != "a" {
		t.Errorf("file a after the repair: got %+v, %v", got, err)
	}
	for _, name := range w.lost() {
		t.Log("kept:", name)
	}
	if len(w.lost()) < 2 { // the log, and the contents to which only its damaged part refers
		t.Errorf("lost+found: %v", w.lost())
	}
	w.mustClose()
}
