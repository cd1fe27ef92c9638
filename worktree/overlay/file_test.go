package overlay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// opened returns a world with an open layer, which is closed at the end of the test.
func opened(t testing.TB, o Options) *world {
	w := newWorld(t, filepath.Join(t.TempDir(), "overlay"), o)
	w.mustOpen()
	t.Cleanup(func() {
		if w.l != nil {
			w.mustClose()
			w.sound()
		}
	})
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) file(name string) *File {
	f := w.l.File(w.files[name].node)
	w.t.Cleanup(f.Done)
	return f
}

// contents returns the number of contents files.
func (w *world) contents() (n int) {
	c := &contents{fs: w.o.FS, overlay: w.dir}
	c.setSegments(nil)
	w.must(c.each(0, func(uint64) error { n++; return nil }))
	return n
}

func (w *world) lost() []string {
	entries, err := os.ReadDir(filepath.Join(w.dir, "lost+found"))
	if err != nil && !os.IsNotExist(err) {
		w.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestBaseFileIsReadElsewhere(t *testing.T) {
	w := opened(t, Options{})
	f := w.file("base3")
	if _, err := f.ReadAt(make([]byte, 1), 0); !errors.Is(err, ErrBase) {
		t.Errorf("read a base file: got %v", err)
	}
	if _, err := f.WriteAt([]byte("x"), 0); !errors.Is(err, ErrBase) {
		t.Errorf("write to a base file: got %v", err)
	}
	if err := f.Truncate(7); !errors.Is(err, ErrBase) {
		t.Errorf("truncate a base file: got %v", err)
	}
	if err := f.Fallocate(0, 0, 10); !errors.Is(err, ErrBase) {
		t.Errorf("fallocate a base file: got %v", err)
	}
	if _, err := f.Seek(0, unix.SEEK_HOLE); !errors.Is(err, ErrBase) {
		t.Errorf("seek in a base file: got %v", err)
	}
	w.must(w.create("own"))
	if _, err := w.file("own").CopyRange(f, 0, 0, 10); !errors.Is(err, ErrSourceBase) {
		t.Errorf("copy from a base file: got %v", err)
	}
	w.compare()
}

func TestTruncateOfBaseReadsNothing(t *testing.T) {
	w := opened(t, Options{})
	w.must(w.truncate("base2", 0))
	w.must(w.write("base2", 3, []byte("new")))
	w.compare()
}

// slowBase blocks its reader until it is released.
type slowBase struct {
	io.ReaderAt
	reached, proceed chan struct{}
	once             sync.Once
}

func (b *slowBase) ReadAt(p []byte, off int64) (int, error) {
	b.once.Do(func() { close(b.reached); <-b.proceed })
	return b.ReaderAt.ReadAt(p, off)
}

func TestSlowCopyUpHoldsNobodyAndCanLose(t *testing.T) {
	w := opened(t, Options{})
	w.must(w.promoted(w.files["base4"]))
	b := &slowBase{ReaderAt: bytes.NewReader(baseContents(4)), reached: make(chan struct{}), proceed: make(chan struct{})}
	f := w.file("base4")
	done := make(chan error)
	go func() { done <- f.CopyUp(b, int64(len(baseContents(4)))) }()
	<-b.reached
	w.must(w.create("other"))
	w.must(w.write("other", 0, []byte("not held")))
	w.must(w.truncate("base4", 0)) // the truncation of the same file wins
	w.must(w.write("base4", 0, []byte("first")))
	close(b.proceed)
	w.must(<-done)
	w.compare()
	if n := w.contents(); n != 2 {
		t.Errorf("contents files: got %d, want 2", n)
	}
}

func TestCopyUpOfShortBaseChangesNothing(t *testing.T) {
	w := opened(t, Options{})
	w.must(w.promoted(w.files["base4"]))
	err := w.file("base4").CopyUp(bytes.NewReader([]byte("short")), 10)
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("copy-up of a failing base: got %v", err)
	}
	w.compare()
	if n := w.contents(); n != 0 {
		t.Errorf("contents files: got %d", n)
	}
}

// section is a base whose bytes are in the middle of a file.
type section struct {
	io.ReaderAt
	f      *os.File
	off, n int64
}

func (s section) Section() (*os.File, int64, int64) { return s.f, s.off, s.n }

func TestCopyUpFromSection(t *testing.T) {
	w := opened(t, Options{})
	path := filepath.Join(t.TempDir(), "segment")
	w.must(os.WriteFile(path, append([]byte("before "), baseContents(5)...), 0o600))
	seg, err := os.Open(path)
	w.must(err)
	defer seg.Close()
	m := w.files["base5"]
	w.must(w.promoted(m))
	size := int64(len(m.data))
	w.must(w.file("base5").CopyUp(section{io.NewSectionReader(seg, 7, size), seg, 7, size}, size))
	m.base = false
	w.compare()
}

func TestRangesAndHoles(t *testing.T) {
	w := opened(t, Options{})
	w.must(w.create("a"))
	w.must(w.create("b"))
	w.must(w.write("a", 0, []byte("0123456789")))
	a, b := w.file("a"), w.file("b")
	if n, err := b.CopyRange(a, 2, 4, 100); n != 8 || err != nil {
		t.Fatalf("copy: copied %d bytes, %v", n, err)
	}
	w.files["b"].data = []byte("\x00\x00\x00\x0023456789")
	if n, err := a.CopyRange(a, 0, 20, 5); n != 5 || err != nil {
		t.Fatalf("copy within the file: copied %d bytes, %v", n, err)
	}
	w.files["a"].data = []byte("0123456789\x00\x00\x00\x00\x00\x00\x00\x00\x00\x0001234")
	w.compare()
	w.must(b.Truncate(1 << 20))
	if at, err := b.Seek(8192, unix.SEEK_HOLE); at != 8192 || err != nil {
		t.Errorf("hole: got offset %d, %v", at, err)
	}
	if _, err := b.Seek(8192, unix.SEEK_DATA); !errors.Is(err, syscall.ENXIO) {
		t.Errorf("data after the hole: got %v", err)
	}
	w.must(b.Fallocate(0, 0, 2<<20))
	if size, err := b.Size(); size != 2<<20 || err != nil {
		t.Errorf("size after the truncate: got %d, %v", size, err)
	}
	if n, err := b.Blocks(); n < 2<<20/512 || err != nil {
		t.Errorf("blocks of the file: got %d, %v", n, err)
	}
	if in, _ := w.l.Inode(w.files["b"].node); in.Size != 2<<20 {
		t.Errorf("size of the inode: got %d", in.Size)
	}
	w.must(b.Fallocate(unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE, 0, 4096))
	p := make([]byte, 12)
	if n, err := b.ReadAt(p, 0); n != 12 || err != nil || !bytes.Equal(p, make([]byte, 12)) {
		t.Errorf("contents: got %q, %v", p[:n], err)
	}
	w.must(b.Truncate(0))
	w.files["b"].data = nil
	w.compare()
}

func TestDescriptorsAreBounded(t *testing.T) {
	w := opened(t, Options{idle: 8})
	before := descriptors(t)
	for i := range 100 {
		name := fmt.Sprint("f", i)
		w.must(w.create(name))
		w.must(w.write(name, 0, []byte(name)))
	}
	if n := descriptors(t) - before; n > 12 {
		t.Errorf("got %d more descriptors than before", n)
	}
	w.compare()
}

// fewFiles is a file system that has a limited number of free descriptors.
type fewFiles struct {
	disk.FS
	free *atomic.Int64
}

func (f fewFiles) OpenFile(name string, flag int, perm os.FileMode) (disk.File, error) {
	if f.free.Add(-1) < 0 {
		f.free.Add(1)
		return nil, &os.PathError{Op: "open", Path: name, Err: syscall.EMFILE}
	}
	file, err := f.FS.OpenFile(name, flag, perm)
	if err != nil {
		f.free.Add(1)
		return nil, err
	}
	return countedFile{file, f.free}, nil
}

type countedFile struct {
	disk.File
	free *atomic.Int64
}

func (f countedFile) Close() error {
	f.free.Add(1)
	return f.File.Close()
}

// If the process has no free descriptor, idle files are closed, and the change succeeds.
func TestIdleFilesMakeRoomForDescriptors(t *testing.T) {
	free := new(atomic.Int64)
	free.Store(1 << 20)
	w := opened(t, Options{FS: fewFiles{disk.OS, free}})
	free.Store(8)
	for i := range 100 {
		name := fmt.Sprint("f", i)
		w.must(w.create(name))
		w.must(w.write(name, 0, []byte(name)))
	}
	w.compare()
	free.Store(0)
	w.l.files.spare()
	free.Store(0)
	if err := w.create("last"); err == nil {
		if err = w.write("last", 0, []byte("x")); !errors.Is(err, syscall.EMFILE) {
			t.Errorf("write without any descriptor: got %v, want EMFILE", err)
		}
	}
	free.Store(1 << 20)
}

func descriptors(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	return len(entries)
}

func TestDeletedFileLivesUntilForgotten(t *testing.T) {
	w := opened(t, Options{})
	w.must(w.create("f"))
	w.must(w.write("f", 0, []byte("still here")))
	node := w.files["f"].node
	w.l.Remember(node) // a second lookup, because a process has the file open
	w.must(w.remove("f"))
	f := w.l.File(node)
	p := make([]byte, 10)
	if n, err := f.ReadAt(p, 0); string(p[:n]) != "still here" || err != nil {
		t.Errorf("contents: got %q, %v", p[:n], err)
	}
	if _, err := f.WriteAt([]byte("S"), 0); err != nil {
		t.Error(err)
	}
	f.Done()
	w.l.Forget(node, 1)
	if _, ok := w.l.Inode(node); ok {
		t.Error("the inode exists after its last lookup was forgotten")
	}
	await.Until(t, "the contents file is removed", func() bool { return w.contents() == 0 })
	f = w.l.File(node)
	defer f.Done()
	if _, err := f.ReadAt(p, 0); !errors.Is(err, syscall.ESTALE) {
		t.Errorf("read of a forgotten node: got %v", err)
	}
}

func TestConcurrentUse(t *testing.T) {
	w := opened(t, Options{idle: 2})
	for i := range 4 {
		w.must(w.create(fmt.Sprint("f", i)))
	}
	nodes := make([]Node, 4)
	for i := range nodes {
		nodes[i] = w.files[fmt.Sprint("f", i)].node
	}
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			p := make([]byte, 4096)
			for i := range 150 {
				n, m := nodes[(g+i)%4], nodes[(g*i)%4]
				f, from := w.l.File(n), w.l.File(m)
				var err error
				switch i % 6 {
				case 0, 1:
					_, err = f.WriteAt(p, int64(i)*512)
				case 2:
					_, err = f.ReadAt(p, 0)
				case 3:
					_, err = f.CopyRange(from, 0, 8192, 4096)
					if n == m && errors.Is(err, syscall.EINVAL) {
						err = nil
					}
				case 4:
					err = f.Truncate(int64(g) * 4096)
				case 5:
					err = w.l.Update(func(tx *Tx) error {
						in, _ := tx.Inode(n)
						in.Mtime = int64(i)
						tx.PutInode(in)
						return nil
					})
					if g == 0 && err == nil {
						err = f.Sync()
					}
				}
				if err != nil {
					t.Error(err)
				}
				f.Done()
				from.Done()
			}
		})
	}
	wg.Go(func() {
		for range 5 {
			if err := w.l.janitor.compact(); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	for _, n := range nodes {
		f := w.l.File(n)
		size, err := f.Size()
		w.must(err)
		in, _ := w.l.Inode(n)
		if info, ok, err := w.l.contents.stat(in.Content); !ok || err != nil || info.Size() != size || in.Size != size {
			t.Errorf("sizes: got %d, of the inode %d, of the contents file %v, %v", size, in.Size, info, err)
		}
		f.Done()
	}
}
