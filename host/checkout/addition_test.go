package checkout_test

import (
	"errors"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	. "github.com/artifactfs/artifactfs/host/checkout"
	"github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// add adds the files of all to the working tree, below the directory dir. last is the last step of the addition.
func (w *world) add(c *Checkout, all files, dir string, last func() error) error {
	w.Helper()
	to := w.src.Add(all)
	var list []Difference
	for _, at := range slices.Sorted(maps.Keys(all)) {
		if strings.HasPrefix(at, dir+"/") {
			list = append(list, Difference{Path: at, NewMode: modeOf(all[at]), New: idOf(all[at])})
		}
	}
	lock, err := c.Lock(w.Context())
	w.must(err)
	defer lock.Release()
	return c.Add(w.Context(), lock, to, list, WorktreesIntent{State: "x", Paths: []string{dir}}, last)
}

// TestAdd checks that an addition creates files and changes no existing file. If its last step fails, or an existing
// file has the path of a new one, it adds nothing. After a kill at any step, a repetition completes the addition.
func TestAdd(t *testing.T) {
	t.Parallel()
	base := files{"f": {Data: "f\n"}, "d/x": {Data: "x\n"}}
	more := maps.Clone(base)
	maps.Copy(more, files{"w/t/f": {Data: "f\n"}, "w/t/d/x": {Data: "new\n"}, "w/t/d/y": {Data: "y\n"}})
	nothing := func() error { return nil }
	w := newRepo(t, base).world(t)
	entries := w.entries()
	failure := errors.New("last step")
	if err := w.add(w.checkout(OpenJournal(w.home())), more, "w/t", func() error { return failure }); !errors.Is(err,
		failure) || w.withDirs().String() != base.String() {
		t.Errorf("addition whose last step fails: got %v and%s", err, w.withDirs())
	}
	k := &kills{w: w}
	w.must(w.add(k.on(w.checkout(OpenJournal(w.home()))), more, "w/t", nothing))
	if got := w.withDirs(); got.String() != more.String() || w.entries() != entries {
		t.Errorf("after the addition:%s\nwant%s\nindex %s", got, more, w.entries())
	}
	for n, left := range k.left {
		w.must(left.git.BreakLocks(t.Context()))
		j := OpenJournal(left.home())
		for _, p := range j.Pending() {
			if p.Err != nil || p.Worktrees == nil || p.Worktrees.State != "x" || p.Worktrees.Paths[0] != "w/t" {
				t.Errorf("intent after a kill at %q: %+v", k.at[n], p)
			}
			w.must(left.add(left.checkout(j), more, "w/t", nothing))
			w.must(p.End())
			if got := left.withDirs(); got.String() != more.String() {
				t.Errorf("completed after a kill at %q:%s\nwant%s", k.at[n], got, more)
			}
		}
		if list := OpenJournal(left.home()).Pending(); len(list) > 0 {
			t.Errorf("after a kill at %q, %d intents are left", k.at[n], len(list))
		}
	}

	other := newRepo(t, base).world(t)
	write := func(at, text string) {
		dir := worktree.Root
		for _, name := range strings.Split(path.Dir(at), "/") {
			a, err := other.tree.Lookup(t.Context(), dir, name)
			if err != nil {
				a, err = other.tree.Mkdir(t.Context(), dir, name, 0o755, worktree.Cred{})
			}
			w.must(err)
			dir = a.Node
		}
		a, err := other.tree.Mknod(t.Context(), dir, path.Base(at), 0o644, 0, worktree.Cred{})
		w.must(err)
		_, err = other.tree.Write(t.Context(), a.Node, []byte(text), 0, false)
		w.must(err)
	}
	write("w/t/d/x", "mine\n")
	w.must(other.add(other.checkout(OpenJournal(other.home())), more, "w/t", nothing))
	want := maps.Clone(more)
	want["w/t/d/x"] = worktreetest.File{Data: "mine\n"}
	if got := other.withDirs(); got.String() != want.String() {
		t.Errorf("with a file of the user:%s\nwant%s", got, want)
	}
	more["f/t/x"] = worktreetest.File{Data: "x\n"}
	delete(more, "f")
	if err := other.add(other.checkout(OpenJournal(other.home())), more, "f/t", nothing); !errors.Is(err, ErrInTheWay) ||
		other.withDirs().String() != want.String() {
		t.Errorf("addition below a file: got %v and%s", err, other.withDirs())
	}
}
