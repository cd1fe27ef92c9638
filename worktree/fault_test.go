package worktree_test

import (
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

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/disktest"
	. "github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// faultBoot1 is the UUID of the boot in which a faultTree is opened.
const faultBoot1 = "11111111-1111-1111-1111-111111111111"

var faultDirs = []string{"", "a", "b", "b/deep"}

func faultBase() map[string]worktreetest.File {
	files := map[string]worktreetest.File{}
	for i, dir := range faultDirs {
		for k := range 3 {
			files[path.Join(dir, fmt.Sprintf("base%d%d", i, k))] =
				worktreetest.File{Data: strings.Repeat(fmt.Sprintf("base %d %d. ", i, k), 200)}
		}
	}
	return files
}

// faultTree is a Tree on a disk that fails, and a model of what must be in it.
type faultTree struct {
	*Tree
	t       *testing.T
	dir     string
	options Options
	src     *worktreetest.Source
	serial  int
	files   map[string]string // contents by path
	durable map[string]string // the files that were fsynced and not changed since
	doubted map[Node]bool     // files whose fsync failed
	changed []string          // paths in the order of their changes
	tokens  []faultToken
}

// faultToken is a journal position, how many changes had been made before it was returned, and the sizes of the files
// then.
type faultToken struct {
	token string
	after int
	sizes map[string]int
}

func newFaultTree(t *testing.T, dir string, fs disk.FS) *faultTree {
	base := faultBase()
	w := &faultTree{t: t, dir: dir, src: worktreetest.New(base), files: map[string]string{}, durable: map[string]string{},
		doubted: map[Node]bool{}}
	w.options = Options{
		FS: disktest.Booted(fs, faultBoot1), Root: w.src.Root, Time: commitTime, GitFile: "gitdir: elsewhere\n",
		Overlay: filepath.Join(dir, "overlay"), Journal: filepath.Join(dir, "journal"),
	}
	for name, f := range base {
		w.files[name], w.durable[name] = f.Data, f.Data
	}
	return w
}

func (w *faultTree) open() error {
	tree, err := Open(filepath.Join(w.dir, "inodes"), w.src, w.options)
	if err == nil {
		w.Tree = tree
	}
	return err
}

func (w *faultTree) at(name string) (dir Node, base string, err error) {
	dir, err = w.Resolve(w.t.Context(), path.Dir("/" + name)[1:])
	return dir, path.Base(name), err
}

// step makes one random call.
func (w *faultTree) step(r *rand.Rand) error {
	names := slices.Sorted(maps.Keys(w.files))
	name := names[r.IntN(len(names))]
	w.serial++
	fresh := path.Join(faultDirs[r.IntN(len(faultDirs))], fmt.Sprint("file", w.serial))
	switch r.IntN(10) {
	case 0, 1:
		return w.create(fresh)
	case 2, 3:
		return w.write(name, r.IntN(3000), strings.Repeat(fmt.Sprint(w.serial, " "), 1+r.IntN(2000)))
	case 4:
		return w.rename(name, fresh)
	case 5:
		return w.rename(name, names[r.IntN(len(names))])
	case 6:
		return w.unlink(name)
	case 7:
		return w.fsync(name)
	}
	return w.ask()
}

func (w *faultTree) touched(names ...string) {
	w.changed = append(w.changed, names...)
	for _, name := range names {
		delete(w.durable, name)
	}
}

func (w *faultTree) create(name string) error {
	dir, base, err := w.at(name)
	if err != nil {
		return err
	}
	w.touched(name)
	if _, err = w.Mknod(w.t.Context(), dir, base, syscall.S_IFREG|0o644, 0, Cred{}); err == nil {
		w.files[name] = ""
	}
	return err
}

func (w *faultTree) write(name string, off int, text string) error {
	n, err := w.Resolve(w.t.Context(), name)
	if err != nil {
		return err
	}
	w.touched(name)
	k, err := w.Write(w.t.Context(), n, []byte(text), int64(off), false)
	if k > 0 {
		data := []byte(w.files[name])
		data = append(data, make([]byte, max(0, off+k-len(data)))...)
		copy(data[off:], text[:k])
		w.files[name] = string(data)
	}
	return err
}

func (w *faultTree) rename(from, to string) error {
	if from == to {
		return nil
	}
	dir, base, err := w.at(from)
	if err != nil {
		return err
	}
	newDir, newBase, err := w.at(to)
	if err != nil {
		return err
	}
	w.touched(from, to)
	if err = w.Rename(w.t.Context(), dir, base, newDir, newBase, 0); err == nil {
		w.files[to] = w.files[from]
		delete(w.files, from)
	}
	return err
}

func (w *faultTree) unlink(name string) error {
	dir, base, err := w.at(name)
	if err != nil {
		return err
	}
	w.touched(name)
	if err = w.Unlink(w.t.Context(), dir, base); err == nil {
		delete(w.files, name)
	}
	return err
}

func (w *faultTree) fsync(name string) error {
	n, err := w.Resolve(w.t.Context(), name)
	if err != nil {
		return err
	}
	err = w.Fsync(w.t.Context(), n, false)
	switch {
	case err != nil:
		w.doubted[n] = true // an error is reported once: the next fsync of the file may succeed without the bytes
	case !w.doubted[n]:
		w.durable[name] = w.files[name]
	}
	return err
}

// ask asks for the changes since the last token, and keeps the next.
func (w *faultTree) ask() error {
	token := ""
	if k := len(w.tokens); k > 0 {
		token = w.tokens[k-1].token
	}
	c, err := w.Monitor().Changes(token)
	if err == nil {
		sizes := map[string]int{}
		for name, data := range w.files {
			sizes[name] = len(data)
		}
		w.tokens = append(w.tokens, faultToken{c.Token, len(w.changed), sizes})
	}
	return err
}

// checkTokens asks with every token of the past and returns how many the journal knows.
func (w *faultTree) checkTokens() (known int) {
	w.t.Helper()
	for _, before := range w.tokens {
		c, err := w.Monitor().Changes(before.token)
		if err != nil {
			w.t.Error(err)
		}
		if c.All {
			continue
		}
		known++
		changed := slices.Clone(w.changed[before.after:])
		for name, data := range w.files {
			if size, ok := before.sizes[name]; !ok || size != len(data) {
				changed = append(changed, name)
			}
		}
		for name := range before.sizes {
			if _, ok := w.files[name]; !ok {
				changed = append(changed, name)
			}
		}
		for _, name := range changed {
			if !slices.Contains(c.Paths, name) {
				w.t.Errorf("changes since %s: %q is missing", before.token, name)
			}
		}
	}
	return known
}

// contents returns the contents of every file by path.
func (w *faultTree) contents() map[string]string {
	w.t.Helper()
	all := map[string]string{}
	err := walk(w.Tree, Root, func(name string, a Attr) {
		name = strings.TrimPrefix(name, "/")
		if a.Mode&syscall.S_IFMT != syscall.S_IFREG || name == ".git" {
			return
		}
		p := make([]byte, a.Size+1)
		k, err := w.Read(w.t.Context(), a.Node, p, 0)
		if err != nil || int64(k) != a.Size {
			w.t.Errorf("read %s: got %d bytes of %d, %v", name, k, a.Size, err)
		}
		all[name] = string(p[:k])
	})
	if err != nil {
		w.t.Error(err)
	}
	return all
}

func (w *faultTree) compare() {
	w.t.Helper()
	got := w.contents()
	for name, want := range w.files {
		if data, ok := got[name]; !ok || data != want {
			w.t.Errorf("contents of %s differ: got %d bytes (present: %v), want %d", name, len(data), ok, len(want))
		}
	}
	for name := range got {
		if _, ok := w.files[name]; !ok {
			w.t.Errorf("path %s exists and should not", name)
		}
	}
}

// TestEveryFault lets the n-th disk operation of a working tree fail, and in a second round some more behind it, for
// every n until a run has no fault. The caller gets the error, what failed did not happen, what comes next works, and
// no change is missing from the journal.
func TestEveryFault(t *testing.T) { disktest.EveryFault(t, 7, 11, faultRun) }

func faultRun(t *testing.T, f *disktest.Faults, errno error) {
	r := rand.New(rand.NewPCG(1, 2))
	top, err := os.MkdirTemp("/dev/shm", "")
	if err != nil {
		top = t.TempDir()
	}
	defer os.RemoveAll(top)
	dir := filepath.Join(top, "life")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	w := newFaultTree(t, dir, disktest.Faulty(disktest.Unsynced(disk.OS), f.Fail))
	attempt := func(what string, do func() error) bool {
		err := f.During(do)
		if err != nil && !errors.Is(err, errno) {
			t.Errorf("%s failed with %v, want the injected error", what, err)
		}
		return err == nil
	}
	open := func() {
		if !attempt("open", w.open) {
			if err := w.open(); err != nil {
				t.Fatalf("open again: %v", err)
			}
		}
		if p := w.Overlay().Recovery().Problems; len(p) > 0 {
			t.Errorf("problems at open: %q", p)
		}
	}
	for life := range 4 {
		w.options.TakeOver = life == 2
		open()
		for i := range 12 {
			attempt(fmt.Sprint("step ", i), func() error { return w.step(r) })
		}
		w.compare()
		w.checkTokens()
		if life%2 == 0 {
			attempt("close", w.Close)
			continue
		}
		old := w.Tree // the state that a kill leaves
		defer old.Close()
		w.dir = filepath.Join(top, fmt.Sprint("life", life))
		if err := copyLive(w.dir, filepath.Dir(w.options.Overlay)); err != nil {
			t.Fatal(err)
		}
		w.options.Overlay, w.options.Journal = filepath.Join(w.dir, "overlay"), filepath.Join(w.dir, "journal")
	}
	w.options.TakeOver = false
	open()
	w.compare()
	w.checkTokens()
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}
