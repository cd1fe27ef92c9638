package removed

import (
	"io"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// world is an overlay with files in its root, and the Set of the removed ones.
type world struct {
	*Set
	t     *testing.T
	dir   string
	layer *overlay.Layer
	nodes map[string]overlay.Node
	kept  []overlay.KeptFile // files that Open found
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, dir: filepath.Join(t.TempDir(), "overlay"), nodes: map[string]overlay.Node{}}
	w.open()
	t.Cleanup(func() { w.layer.Close() })
	return w
}

// open opens the overlay and the Set.
func (w *world) open() {
	w.t.Helper()
	layer, recovery, err := overlay.Open(w.dir, overlay.Options{FS: disk.OS, Log: zap.NewNop()})
	if err != nil {
		w.t.Fatal(err)
	}
	w.layer, w.kept = layer, recovery.Kept
	w.Set = Open(layer, Options{Keep: true, Kept: recovery.Kept, Find: w.find, Log: zap.NewNop()})
}

// find returns the path of a node of the root directory.
func (w *world) find(n overlay.Node) (in overlay.Inode, paths []string, short bool) {
	in, _ = w.layer.Inode(n)
	for name, node := range w.nodes {
		if node == n && w.Wants(&in) {
			paths = append(paths, name)
		}
	}
	return in, paths, false
}

// ok fails the test if err is not nil.
func (w *world) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// write makes a file in the root directory.
func (w *world) write(name, text string) {
	w.t.Helper()
	w.ok(w.layer.Update(func(tx *overlay.Tx) error {
		n, err := tx.NewNode()
		w.nodes[name] = n
		tx.PutInode(overlay.Inode{Node: n, Mode: syscall.S_IFREG | 0o644, Nlink: 1, Parent: 1, Mtime: overlay.Now(),
			Ctime: overlay.Now()})
		tx.SetEntry(1, name, n)
		return err
	}))
	f := w.layer.File(w.nodes[name])
	defer f.Done()
	_, err := f.WriteAt([]byte(text), 0)
	w.ok(err)
}

// unlink removes a file of the root directory.
func (w *world) unlink(name string) {
	w.t.Helper()
	w.unlinkAs(name, name)
}

// unlinkAs removes a file of the root directory, and tells the Set another path.
func (w *world) unlinkAs(name, path string) {
	w.t.Helper()
	w.ok(w.layer.Update(func(tx *overlay.Tx) error {
		in, _ := tx.Inode(w.nodes[name])
		if w.Wants(&in) && w.Remove(tx, &in, path, "", true) == nil {
			w.t.Errorf("remove %s: the contents are not kept", name)
		}
		in.Nlink = 0
		tx.PutInode(in)
		tx.ClearEntry(1, name)
		return nil
	}))
}

// taken returns the paths and contents that Take returns, each as PATH=CONTENTS, and calls done.
func (w *world) taken(saved bool) (list []string) {
	w.t.Helper()
	files, lost, done := w.Take()
	for _, k := range files {
		text, err := io.ReadAll(io.NewSectionReader(k.Content, 0, k.Size))
		w.ok(err)
		list = append(list, k.Path+"="+string(text))
	}
	if lost != 0 {
		w.t.Errorf("lost files: got %d, want 0", lost)
	}
	done(saved)
	return list
}

// want compares what Take returns.
func (w *world) want(what string, saved bool, want ...string) {
	w.t.Helper()
	if got := w.taken(saved); !slices.Equal(got, want) {
		w.t.Errorf("kept files %s: got %q, want %q", what, got, want)
	}
}

// requested reports whether the Set has requested a checkpoint.
func (w *world) requested() bool {
	_, _, ok := w.Requested()
	return ok
}

func TestManyRemovalsRequestACheckpoint(t *testing.T) {
	w := newWorld(t)
	names := []string{"a", "b", "c", "d", "e", "f"}
	var all []string
	for _, name := range names {
		w.write(name, "text of "+name)
		all = append(all, name+"=text of "+name)
	}
	for i, name := range names {
		if w.requested() {
			t.Fatalf("a checkpoint is requested after %d removals, want it after %d", i, len(names))
		}
		w.unlink(name)
	}
	select {
	case <-w.Mass():
	default:
		t.Error("the channel Mass is empty after 6 removals")
	}
	w.want("of a checkpoint that fails", false, all...)
	if !w.requested() {
		t.Error("no checkpoint is requested after one has failed")
	}
	w.want("of a checkpoint that is made", true, all...)
	w.want("after the checkpoint", true)
}

func TestRemovalOfADirectoryRequestsACheckpoint(t *testing.T) {
	w := newWorld(t)
	w.write("a", "text")
	w.unlinkAs("a", "dir/a")
	for _, other := range []string{"di", "dir/a", "other"} {
		if w.RemoveDir(other); w.requested() {
			t.Errorf("removing %s requests a checkpoint for dir/a", other)
		}
	}
	if !w.Waits() {
		t.Error("the Set does not wait for the removal of a directory")
	}
	if w.RemoveDir("dir"); !w.requested() {
		t.Error("removing dir requests no checkpoint for dir/a")
	}
}

func TestOverwrittenContentsAreKept(t *testing.T) {
	w := newWorld(t)
	w.write("changed", "before")
	w.write("emptied", "all of it")
	w.write("appended", "begin")
	change := func(name string, do func(n overlay.Node, f *overlay.File) error) {
		f := w.layer.File(w.nodes[name])
		defer f.Done()
		w.ok(do(w.nodes[name], f))
	}
	write := func(text string, off int64) func(overlay.Node, *overlay.File) error {
		return func(n overlay.Node, f *overlay.File) error {
			w.BeforeWrite(n, f, []byte(text), off)
			_, err := f.WriteAt([]byte(text), off)
			return err
		}
	}
	change("changed", write("after!", 0))
	change("changed", write("again!", 0))
	change("appended", write("end", 5))
	change("emptied", func(n overlay.Node, f *overlay.File) error {
		w.BeforeEmpty(n, f)
		return f.Truncate(0)
	})
	w.want("after the writes", true, "changed=before", "emptied=all of it")
}

func TestFilesOfACheckpointAreNotKept(t *testing.T) {
	w := newWorld(t)
	w.write("a", "text")
	w.unlink("a")
	w.Saved(1<<62, map[string]bool{"out": true})
	w.want("after a checkpoint", true)
	for dir, want := range map[string]bool{"": false, "out": true, "out/of/it": true, "outer": false} {
		if got := w.LeavesOut(dir); got != want {
			t.Errorf("LeavesOut(%q): got %v, want %v", dir, got, want)
		}
	}
}

func TestSuccessorKeepsTheFiles(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		w.write(name, name)
		w.unlink(name)
	}
	w.Set.Close() // keeps the files, because a checkpoint is requested
	w.ok(w.layer.Close())
	w.open()
	if len(w.kept) != 6 || !w.requested() {
		t.Errorf("files that the successor found: got %d, want 6; checkpoint requested: got %v, want true", len(w.kept),
			w.requested())
	}
	w.want("of the successor", true, "a=a", "b=b", "c=c", "d=d", "e=e", "f=f")
	w.ok(w.layer.Close())
	w.open()
	if len(w.kept) != 0 || w.requested() {
		t.Errorf("files that remain after the checkpoint: got %d, want 0; checkpoint requested: got %v, want false",
			len(w.kept), w.requested())
	}
}
