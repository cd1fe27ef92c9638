package overlay

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/disktest"
)

const root = Node(1)

// baseFiles are the base's files, nodes 2 and up in the root, named base2 ...
const baseFiles = 6

func baseName(n Node) string { return fmt.Sprintf("base%d", n) }

func baseContents(n Node) []byte {
	return bytes.Repeat([]byte(fmt.Sprintf("contents of base file %d. ", n)), 40*int(n))
}

// world is a layer over a small base, and a model of its expected state.
type world struct {
	t      testing.TB
	dir    string
	o      Options
	l      *Layer
	files  map[string]*modelFile
	serial int
	names  []string           // in order of creation, for choices that repeat
	synced func(m *modelFile) // called after each fsync; may be nil
	pinned []pinnedFile
	sealed map[string][]byte // contents of the files in shares, by path
}

// modelFile is the expected state of a file.
type modelFile struct {
	node Node
	base bool // the file has the contents of the base tree
	data []byte
	mode uint32
}

func quick(o Options) Options {
	o.pause, o.quiet = time.Millisecond, time.Millisecond
	if o.boot == "" {
		o.boot = "boot-1"
	}
	if o.FS == nil {
		o.FS = disktest.Unsynced(disk.OS)
	}
	return o
}

// newWorld returns a world whose layer is not open yet.
func newWorld(t testing.TB, dir string, o Options) *world {
	w := &world{t: t, dir: dir, o: quick(o), files: map[string]*modelFile{}}
	for n := root + 1; n < root+1+baseFiles; n++ {
		w.files[baseName(n)] = &modelFile{node: n, base: true, data: baseContents(n), mode: syscall.S_IFREG | 0o644}
		w.names = append(w.names, baseName(n))
	}
	return w
}

func (w *world) open() (Recovery, error) {
	l, rec, err := Open(w.dir, w.o)
	if err == nil {
		w.l = l
	}
	return rec, err
}

func (w *world) mustOpen() Recovery {
	w.t.Helper()
	rec, err := w.open()
	if err != nil {
		w.t.Fatal(err)
	}
	return rec
}

// kill closes the files of the layer without further writes, as the kill of its process does.
func (w *world) kill() {
	close(w.l.janitor.stop)
	w.l.janitor.busy.Wait()
	w.l.abandon()
	w.l, w.pinned = nil, nil
}

func (w *world) mustClose() {
	w.t.Helper()
	w.release()
	if err := w.l.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.l = nil
}

// create creates a file with a name that must not exist.
func (w *world) create(name string) error {
	var node Node
	err := w.l.Update(func(tx *Tx) error {
		n, err := tx.NewNode()
		if err != nil {
			return err
		}
		node = n
		now := Now()
		tx.PutInode(Inode{Node: n, Mode: syscall.S_IFREG | 0o644, Nlink: 1, Atime: now, Mtime: now, Ctime: now, Parent: root})
		tx.SetEntry(root, name, n)
		return nil
	})
	if err == nil {
		w.l.Remember(node)
		w.files[name] = &modelFile{node: node, mode: syscall.S_IFREG | 0o644}
		w.names = append(w.names, name)
	}
	return err
}

// promote puts a base file's inode into the layer.
func (w *world) promote(tx *Tx, m *modelFile) Inode {
	in, ok := tx.Inode(m.node)
	if !ok {
		in = Inode{Node: m.node, Mode: m.mode, Nlink: 1, Size: SizeOfBase, Parent: root}
		tx.PutInode(in)
	}
	return in
}

func (w *world) promoted(m *modelFile) error {
	if _, ok := w.l.Inode(m.node); ok || m.node.Own() {
		return nil
	}
	return w.l.Update(func(tx *Tx) error { w.promote(tx, m); return nil })
}

func (w *world) write(name string, off int64, p []byte) error {
	m := w.files[name]
	f := w.l.File(m.node)
	defer f.Done()
	n, err := 0, error(nil)
	write := func() error { n, err = f.WriteAt(p, off); return err }
	if err = separately(f, math.MaxInt64, write); errors.Is(err, ErrBase) {
		if !m.base {
			w.t.Fatalf("%s: got ErrBase for a file with contents in the overlay", name)
		}
		if err := w.promoted(m); err != nil {
			return err
		}
		if err := f.CopyUp(bytes.NewReader(baseContents(m.node)), int64(len(m.data))); err != nil {
			return err
		}
		m.base = false
		err = separately(f, math.MaxInt64, write)
	}
	if n > 0 {
		if grow := off + int64(n) - int64(len(m.data)); grow > 0 {
			m.data = append(m.data, make([]byte, grow)...)
		}
		copy(m.data[off:], p[:n])
	}
	if err == nil && n < len(p) {
		w.t.Fatalf("%s: wrote %d of %d bytes without an error", name, n, len(p))
	}
	return err
}

func (w *world) truncate(name string, size int64) error {
	m := w.files[name]
	if err := w.promoted(m); err != nil {
		return err
	}
	f := w.l.File(m.node)
	defer f.Done()
	truncate := func() error { return f.Truncate(size) }
	err := separately(f, size, truncate)
	if errors.Is(err, ErrBase) {
		if err := f.CopyUp(bytes.NewReader(baseContents(m.node)), int64(len(m.data))); err != nil {
			return err
		}
		m.base = false
		err = separately(f, size, truncate)
	}
	if err != nil {
		return err
	}
	m.base = false
	m.data = append(m.data[:min(size, int64(len(m.data))):min(size, int64(len(m.data)))],
		make([]byte, max(0, size-int64(len(m.data))))...)
	return nil
}

// separately calls do, which changes the contents of a file, as package worktree does.
func separately(f *File, most int64, do func() error) error {
	for {
		err := do()
		if !errors.Is(err, ErrSealed) {
			return err
		}
		if err := f.Separate(most, func(change func() error) error { return change() }); err != nil {
			return err
		}
	}
}

func (w *world) remove(name string) error {
	m := w.files[name]
	err := w.l.Update(func(tx *Tx) error {
		in := w.promote(tx, m)
		in.Nlink--
		tx.PutInode(in)
		tx.Hide(root, name)
		return nil
	})
	if err == nil {
		w.forget(m)
		delete(w.files, name)
		w.names = slices.DeleteFunc(w.names, func(s string) bool { return s == name })
	}
	return err
}

func (w *world) forget(m *modelFile) {
	if m.node.Own() {
		w.l.Forget(m.node, 1)
	} else {
		w.l.Release(m.node)
	}
}

// rename moves a file over another or to a free name.
func (w *world) rename(from, to string) error {
	m, over := w.files[from], w.files[to]
	err := w.l.Update(func(tx *Tx) error {
		in := w.promote(tx, m)
		in.Ctime = Now()
		tx.PutInode(in)
		if over != nil {
			in := w.promote(tx, over)
			in.Nlink--
			tx.PutInode(in)
		}
		tx.Hide(root, from)
		tx.SetEntry(root, to, m.node)
		return nil
	})
	if err == nil {
		if over != nil {
			w.forget(over)
		}
		delete(w.files, from)
		w.files[to] = m
		w.names = slices.DeleteFunc(w.names, func(s string) bool { return s == from || s == to })
		w.names = append(w.names, to)
	}
	return err
}

func (w *world) chmod(name string, mode uint32) error {
	m := w.files[name]
	err := w.l.Update(func(tx *Tx) error {
		in := w.promote(tx, m)
		in.Mode = syscall.S_IFREG | mode
		tx.PutInode(in)
		return nil
	})
	if err == nil {
		m.mode = syscall.S_IFREG | mode
	}
	return err
}

func (w *world) fsync(name string) error {
	f := w.l.File(w.files[name].node)
	defer f.Done()
	err := f.Sync()
	if err == nil && w.synced != nil {
		w.synced(w.files[name])
	}
	return err
}

// step runs a random operation.
func (w *world) step(r *rand.Rand) error {
	w.serial++
	fresh := fmt.Sprintf("file%d", w.serial)
	if len(w.names) == 0 {
		return w.create(fresh)
	}
	name := w.names[r.IntN(len(w.names))]
	switch r.IntN(14) {
	case 0, 1, 2:
		return w.create(fresh)
	case 3, 4, 5:
		p := make([]byte, 1+r.IntN(9000))
		for i := range p {
			p[i] = byte(r.Uint32())
		}
		return w.write(name, int64(r.IntN(6000)), p)
	case 6:
		return w.truncate(name, int64(r.IntN(2)*r.IntN(8000)))
	case 7:
		return w.remove(name)
	case 8:
		if r.IntN(2) == 0 {
			return w.rename(name, fresh)
		}
		if to := w.names[r.IntN(len(w.names))]; to != name {
			return w.rename(name, to)
		}
		return nil
	case 9:
		return w.chmod(name, r.Uint32N(0o1000))
	case 10:
		if len(w.pinned) > 0 && r.IntN(2) == 0 {
			w.comparePins()
			w.release()
		}
		w.freeze()
		return nil
	case 11:
		if w.o.Shares != "" {
			return w.seal()
		}
	}
	return w.fsync(name)
}

// look returns the state of a file of the layer.
func (w *world) look(name string) (*modelFile, bool, error) {
	n, p := w.l.Entry(root, name)
	if p == Hidden {
		return nil, false, nil
	}
	if p == Unknown {
		for n = root + 1; n < root+1+baseFiles && baseName(n) != name; n++ {
		}
		if n == root+1+baseFiles {
			return nil, false, nil
		}
	}
	m := &modelFile{node: n, mode: syscall.S_IFREG | 0o644}
	in, ok := w.l.Inode(n)
	if ok {
		m.mode = in.Mode
	}
	if n.Own() && !ok {
		return nil, false, fmt.Errorf("%s refers to node %d, which does not exist", name, n)
	}
	f := w.l.File(n)
	defer f.Done()
	p1 := make([]byte, max(64<<10, in.Size+1))
	k, err := f.ReadAt(p1, 0)
	switch {
	case errors.Is(err, ErrBase):
		if ok && in.Size != SizeOfBase {
			return nil, false, fmt.Errorf("%s: got the contents of the base with size %d", name, in.Size)
		}
		m.base, m.data = true, baseContents(n)
	case err != nil:
		return nil, false, err
	default:
		m.data = p1[:k]
		if in.Size != int64(k) {
			return nil, false, fmt.Errorf("%s: got size %d, but %d bytes", name, in.Size, k)
		}
	}
	return m, true, nil
}

// compare compares the layer with the model.
func (w *world) compare() {
	w.t.Helper()
	for name, want := range w.files {
		got, ok, err := w.look(name)
		switch {
		case err != nil:
			w.t.Errorf("look at %s: %v", name, err)
		case !ok:
			w.t.Errorf("%s is missing", name)
		case got.node != want.node || got.base != want.base || got.mode != want.mode:
			w.t.Errorf("%s: got node %d, base %v, mode %o, want %d, %v, %o", name, got.node, got.base, got.mode, want.node,
				want.base, want.mode)
		case !bytes.Equal(got.data, want.data):
			w.t.Errorf("contents of %s differ: got %d bytes, want %d", name, len(got.data), len(want.data))
		}
	}
	w.l.View(func(r Reader) {
		r.ReadDir(root, 0, func(_ uint64, name string, n Node, p Presence) bool {
			if _, ok := w.files[name]; p == Present && !ok {
				w.t.Errorf("file %s exists and should not", name)
			}
			return true
		})
	})
	w.comparePins()
	for path, want := range w.sealed {
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			w.t.Errorf("sealed contents file %s: got %d bytes and error %v, want the %d bytes that were sealed", path, len(got),
				err, len(want))
		}
	}
}

// seal seals all contents, and remembers the contents of the share. A contents file that no inode has named may still be
// written, by a copy that is discarded at its end.
func (w *world) seal() error {
	w.serial++
	var numbers []uint64
	note := func(r Reader) {
		r.EachInode(func(in Inode) bool { numbers = append(numbers, in.Content); return true })
	}
	w.l.View(note)
	err := seal(w.l, shareOf(w.serial))
	if err != nil {
		return err
	}
	w.l.View(note)
	if w.sealed == nil {
		w.sealed = map[string][]byte{}
	}
	for _, number := range numbers {
		path := pathIn(filepath.Join(w.o.Shares, shareOf(w.serial), "contents"), number)
		data, err := os.ReadFile(path)
		if err == nil && number != 0 {
			w.sealed[path] = data
		} else if !errors.Is(err, fs.ErrNotExist) && number != 0 {
			return err
		}
	}
	return nil
}

// seal seals all contents at one moment, and moves them to the share with the given ID.
func seal(l *Layer, id string) error {
	s, err := BeginSeal(l, id)
	if err != nil {
		return err
	}
	defer s.Close()
	s.Freeze(func(Reader) bool { return true })
	return s.Publish()
}

// shareOf returns an ID of a share for a number.
func shareOf(n int) string { return fmt.Sprintf("%026d", n) }

// sound runs Check on the closed layer, which must find nothing.
func (w *world) sound() {
	w.t.Helper()
	o := w.o
	o.FS = disktest.Unsynced(disk.OS)
	r, err := check(w.dir, false, o)
	if err != nil {
		w.t.Error(err)
	}
	for _, f := range r.Findings {
		w.t.Errorf("finding of the check: %s", f.What)
	}
}
