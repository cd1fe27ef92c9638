package overlay

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

// A second layer gives sealed contents to its nodes. Both layers then change them on their own, and each may be
// removed.
func TestAdopt(t *testing.T) {
	top := t.TempDir()
	w := opened(t, sharing(t, top, Options{}))
	text := bytes.Repeat([]byte("contents of a"), 1000)
	w.must(w.create("a"))
	w.must(w.write("a", 0, text))
	w.must(w.create("b"))
	w.must(w.write("b", 0, text))
	s, err := BeginSeal(w.l, shareOf(1))
	w.must(err)
	s.Freeze(func(Reader) bool { return true })
	w.must(s.Publish())
	o := w.o
	o.Segments = s.Segments()
	dir := filepath.Join(top, "fork")
	fork, _, err := Open(dir, o)
	w.must(err)
	adopt := func(in Inode) (n Node, err error) {
		err = fork.Update(func(tx *Tx) (err error) {
			if n, err = tx.NewNode(); err != nil {
				return err
			}
			in.Node = n
			tx.SetEntry(1, "a", n)
			return tx.Adopt(in)
		})
		return n, err
	}
	in, _ := s.Names().Inode(w.files["a"].node)
	n, err := adopt(in)
	w.must(err)
	if _, err := adopt(Inode{Mode: in.Mode, Nlink: 1, Content: 1024, Size: 1}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("adopt contents that are not sealed: got %v", err)
	}
	s.Close()
	check := func(want []byte) {
		t.Helper()
		f := fork.File(n)
		defer f.Done()
		got := make([]byte, len(want)+1)
		if k, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got[:k], want) {
			t.Errorf("contents in the second layer: got %d bytes, %v, want %d bytes", k, err, len(want))
		}
	}
	check(text)
	if ids, err := ListedShares(dir); err != nil || !slices.Equal(ids, []string{shareOf(1)}) {
		t.Errorf("list of the second layer: got %q, %v", ids, err)
	}
	changed := func(paths, size int64) {
		t.Helper()
		if got, s := fork.Changed(), fork.Stats(); got != paths || s.Bytes != size || s.Carried != 1-paths {
			t.Errorf("second layer: got %d changed paths, %+v, want %d and %d bytes", got, s, paths, size)
		}
	}
	changed(0, 0)
	touch := func(change func(in *Inode)) {
		t.Helper()
		w.must(fork.Update(func(tx *Tx) error {
			in, _ := tx.Inode(n)
			change(&in)
			tx.PutInode(in)
			return nil
		}))
	}
	touch(func(in *Inode) { in.Atime++ })
	changed(0, 0)
	w.must(w.write("a", 5, []byte("changed by the first")))
	w.must(w.remove("b"))
	w.must(w.l.janitor.tidy(true))
	check(text)
	f := fork.File(n)
	err = separately(f, math.MaxInt64, func() error { _, err := f.WriteAt([]byte("second"), 3); return err })
	w.must(err)
	f.Done()
	want := bytes.Clone(text)
	copy(want[3:], "second")
	check(want)
	changed(1, int64(len(text)))
	w.compare()
	w.mustClose()
	w.must(os.RemoveAll(w.dir)) // the share does not belong to the first layer
	w.must(fork.Close())
	fork, rec, err := Open(dir, o)
	w.must(err)
	if len(rec.Problems) > 0 || len(fork.state.Segments) != 1 {
		t.Errorf("open the second layer again: got the problems %q and the segments %+v", rec.Problems, fork.state.Segments)
	}
	check(want)
	w.must(fork.Close())
	if r, err := Check(dir, false, o.Shares); err != nil || len(r.Findings) > 0 {
		t.Errorf("check the second layer: got %+v, %v", r, err)
	}
}

// fork returns a world over the same base that has adopted all files with contents in the layer. Its serial numbers,
// and so the IDs of its shares, begin at serial.
func (w *world) fork(dir string, serial int) *world {
	w.t.Helper()
	w.serial++
	s, err := BeginSeal(w.l, shareOf(w.serial))
	w.must(err)
	defer s.Close()
	s.Freeze(func(Reader) bool { return true })
	w.must(s.Publish())
	o := w.o
	o.TakeOver, o.Segments = false, s.Segments()
	f := newWorld(w.t, dir, o)
	f.serial = serial
	f.mustOpen()
	for _, name := range w.names {
		m := w.files[name]
		if m.base {
			continue
		}
		in, ok := s.Names().Inode(m.node)
		if !ok || in.Size != int64(len(m.data)) {
			w.t.Fatalf("%s: got inode %+v (present: %v), want %d bytes", name, in, ok, len(m.data))
		}
		var node Node
		w.must(f.l.Update(func(tx *Tx) (err error) {
			if node, err = tx.NewNode(); err != nil {
				return err
			}
			in.Node, in.Parent = node, root
			tx.SetEntry(root, name, node)
			return tx.Adopt(in)
		}))
		f.l.Remember(node)
		if f.files[name] == nil {
			f.names = append(f.names, name)
		}
		f.files[name] = &modelFile{node: node, data: bytes.Clone(m.data), mode: m.mode}
	}
	f.o.Segments = nil // the log has them from now on
	return f
}

// A family of forks changes on its own, over kills, takeovers, compactions and the end of single members.
func TestForksAreIndependent(t *testing.T) {
	seeds := uint64(12)
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		top := t.TempDir()
		r := rand.New(rand.NewPCG(seed, 11))
		first := newWorld(t, filepath.Join(top, "0"), sharing(t, top, Options{idle: 3}))
		first.mustOpen()
		family := []*world{first}
		for round := 1; round < 20; round++ {
			for _, w := range family {
				for range 8 {
					w.must(w.step(r))
				}
			}
			w := family[r.IntN(len(family))]
			switch r.IntN(6) {
			case 0, 1:
				if len(family) < 5 {
					family = append(family, w.fork(filepath.Join(top, fmt.Sprint(round)), round*1_000_000))
				}
			case 2, 3:
				w.kill()
				w.o.TakeOver = r.IntN(2) == 0
				if rec := w.mustOpen(); len(rec.Problems) > 0 {
					t.Errorf("open after a kill: got the problems %q", rec.Problems)
				}
			case 4:
				w.must(w.l.janitor.compact())
			case 5:
				w.mustClose()
				w.sound()
				if len(family) > 1 && r.IntN(2) == 0 { // its shares stay, as long as others list them
					w.must(os.RemoveAll(w.dir))
					family = slices.DeleteFunc(family, func(other *world) bool { return other == w })
					break
				}
				w.o.TakeOver = false
				w.mustOpen()
			}
			for _, w := range family {
				w.compare()
			}
			if t.Failed() {
				t.Fatalf("seed %d, round %d", seed, round)
			}
		}
		for _, w := range family {
			w.mustClose()
			w.sound()
		}
	}
}

// A missing share of a new overlay is damage also after a power cut. Nothing is changed, so that all files are there
// again when the share is back.
func TestMissingShareOfAnAdoptedFile(t *testing.T) {
	top := t.TempDir()
	w := opened(t, sharing(t, top, Options{}))
	w.must(w.create("a"))
	w.must(w.write("a", 0, []byte("contents")))
	s, err := BeginSeal(w.l, shareOf(1))
	w.must(err)
	s.Freeze(func(Reader) bool { return true })
	w.must(s.Publish())
	o := w.o
	o.Segments = s.Segments()
	in, _ := s.Names().Inode(w.files["a"].node)
	s.Close()
	dir := filepath.Join(top, "fork")
	fork, _, err := Open(dir, o)
	w.must(err)
	w.must(fork.Update(func(tx *Tx) error {
		n, err := tx.NewNode()
		in.Node = n
		tx.SetEntry(root, "a", n)
		return errors.Join(err, tx.Adopt(in))
	}))
	fork.Remember(in.Node)
	w.must(fork.Close())
	o.Segments = nil
	away := filepath.Join(top, "away")
	w.must(os.Rename(o.Shares, away))
	w.must(os.Mkdir(o.Shares, 0o700))
	for _, boot := range []string{o.boot, "boot-2"} {
		o.boot = boot
		if _, _, err := Open(dir, o); !errors.Is(err, ErrDamaged) {
			t.Fatalf("open without the share in boot %s: got %v, want ErrDamaged", boot, err)
		}
		if _, err := check(dir, true, o); !errors.Is(err, ErrDamaged) {
			t.Errorf("repair without the share in boot %s: got %v, want ErrDamaged", boot, err)
		}
	}
	w.must(os.Remove(o.Shares))
	w.must(os.Rename(away, o.Shares))
	fork, _, err = Open(dir, o)
	w.must(err)
	f := fork.File(in.Node)
	got := make([]byte, 20)
	if n, err := f.ReadAt(got, 0); err != nil || string(got[:n]) != "contents" {
		t.Errorf("file after the share is back: got %q, %v", got[:n], err)
	}
	f.Done()
	w.must(fork.Close())
}
