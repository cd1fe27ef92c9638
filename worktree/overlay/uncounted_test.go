package overlay

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// A file that does not count exists, is stored, and is not reported as a change.
func TestUncounted(t *testing.T) {
	dir := t.TempDir()
	layer := func(o Options) *Layer {
		l, _, err := Open(dir, o)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	put := func(l *Layer, name string, uncounted bool) (n Node) {
		err := l.Update(func(tx *Tx) (err error) {
			if n, err = tx.NewNode(); err != nil {
				return err
			}
			tx.PutInode(Inode{Node: n, Mode: syscall.S_IFREG | 0o644, Nlink: 1, Parent: 1})
			tx.SetEntry(1, name, n)
			if uncounted {
				tx.Uncount(n)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		f := l.File(n)
		defer f.Done()
		if _, err := f.WriteAt([]byte(name), 0); err != nil {
			t.Fatal(err)
		}
		return n
	}
	check := func(what string, l *Layer, changed int64) {
		t.Helper()
		s := l.Stats()
		if got := l.Changed(); got != changed || s.Entries != changed || s.Inodes != changed || s.Contents != changed ||
			s.Bytes != 5*changed {
			t.Errorf("%s: got %d changed paths, statistics %+v", what, got, s)
		}
	}
	l := layer(Options{})
	hidden := put(l, "hidden", true)
	check("made", l, 0)
	put(l, "shown", false)
	check("and another", l, 1)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = layer(Options{ReadOnly: true})
	check("opened again", l, 1)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = layer(Options{})
	defer l.Close()
	err := l.Update(func(tx *Tx) error {
		in, _ := tx.Inode(hidden)
		in.Nlink = 0
		tx.PutInode(in)
		tx.ClearEntry(1, "hidden")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := l.Changed(); n != 1 {
		t.Errorf("changed paths after the removal: got %d", n)
	}
}

func TestNames(t *testing.T) {
	l, _, err := Open(t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	err = l.Update(func(tx *Tx) error {
		tx.PutInode(Inode{Node: 5, Mode: syscall.S_IFREG | 0o644, Nlink: 2, Parent: 1, Size: SizeOfBase})
		for dir := Node(1); dir < 4; dir++ {
			tx.SetEntry(dir, "x", 9)
			tx.SetEntry(dir, fmt.Sprint("n", dir), 5)
			tx.Hide(dir, "gone")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	l.View(func(r Reader) {
		r.Names(5, 1<<20, func(dir Node, name string) bool {
			got = append(got, fmt.Sprint(dir, "/", name))
			return len(got) < 3
		})
		r.Names(9, 1<<20, func(Node, string) bool { got = append(got, "first"); return false })
	})
	slices.Sort(got)
	if want := []string{"1/n1", "2/n2", "3/n3", "first"}; !slices.Equal(got, want) {
		t.Errorf("contents of the file: got %q, want %q", got, want)
	}
}

// A file of the base tree counts as changed after it was changed, also after the layer was opened again.
func TestTimesDoNotCount(t *testing.T) {
	dir := t.TempDir()
	l, _, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	base := func(n Node) Inode {
		return Inode{Node: n, Mode: syscall.S_IFREG | 0o644, Nlink: 1, Parent: 1, Size: SizeOfBase, Mtime: int64(n), Ctime: 100}
	}
	update := func(f func(tx *Tx)) {
		t.Helper()
		if err := l.Update(func(tx *Tx) error { f(tx); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	update(func(tx *Tx) {
		for n := Node(2); n < 9; n++ {
			tx.PutTimes(base(n))
		}
	})
	update(func(tx *Tx) {
		tx.PutTimes(base(9))
		times, mode, owner, links := base(2), base(3), base(4), base(5)
		times.Atime, times.Ctime = 5, 101
		mode.Mode, owner.UID, links.Nlink = syscall.S_IFREG|0o600, 7, 2
		for _, in := range []Inode{times, mode, owner, links} {
			tx.PutInode(in)
		}
		tx.SetXattr(6, "user.x", []byte("x"))
		earlier, _ := tx.Inode(8) // as an earlier version changes it
		earlier.Mode, earlier.Ctime = syscall.S_IFREG|0o600, 101
		tx.put(earlier)
	})
	f := l.File(7)
	err = f.CopyUp(strings.NewReader("base"), 4)
	f.Done()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got := l.Changed(); got != 7 { // the nodes 2 to 8
			t.Errorf("changed paths: got %d, want 7", got)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if l, _, err = Open(dir, Options{ReadOnly: true}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}
