package worktree_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	. "github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/overlay"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

type files = map[string]worktreetest.File

// grafter is a workspace that the test switches between trees.
type grafter struct {
	*workspace
	trees []files
	roots []object.ID
}

func newGrafter(t *testing.T, trees ...files) *grafter {
	g := &grafter{workspace: newWorkspace(t, trees[0]), trees: trees}
	for _, f := range trees {
		g.roots = append(g.roots, g.src.Add(f))
	}
	return g
}

func idOf(t *testing.T, f worktreetest.File) (object.Mode, object.ID) {
	t.Helper()
	id, err := object.Hash(object.SHA1, object.Blob, []byte(f.Data))
	if err != nil {
		t.Fatal(err)
	}
	if f.Mode == 0 {
		return object.ModeFile, id
	}
	return f.Mode, id
}

// plan returns the steps that make the mount show a tree, starting from any state of the paths in the trees.
func (g *grafter) plan(to int) (list []Graft) {
	g.t.Helper()
	paths := map[string]bool{}
	for _, f := range g.trees {
		for path := range f {
			paths[path] = true
		}
	}
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		over, err := g.Find(g.t.Context(), path)
		if err != nil {
			g.t.Fatal(err)
		}
		f, wanted := g.trees[to][path]
		p := Graft{Path: path, Over: over}
		if wanted {
			p.Mode, p.ID = idOf(g.t, f)
		} else if over.Node == 0 || over.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			continue
		}
		if over.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			p.Over = Found{} // the removals remove this path completely
		}
		list = append(list, p)
	}
	return list
}

func (g *grafter) graft(to int) Stale {
	g.t.Helper()
	sizes, opens := g.src.Calls("Size"), g.src.Calls("Open")
	r, err := g.Graft(g.t.Context(), g.roots[to], g.plan(to), "")
	if err != nil {
		g.t.Fatal(err)
	}
	r.Keep()
	for i, d := range r.Done {
		if d.Kept {
			g.t.Errorf("path %d of the graft was not replaced: %+v", i, d)
		}
	}
	if g.src.Calls("Size") != sizes || g.src.Calls("Open") != opens {
		g.t.Error("a graft requested contents")
	}
	return r.Stale
}

// shown lists files and links of the mount: type, permissions, contents.
func (g *grafter) shown() map[string]string {
	g.t.Helper()
	list := map[string]string{}
	g.each(Root, "", func(path string, a Attr) {
		switch a.Mode & syscall.S_IFMT {
		case syscall.S_IFREG:
			p := make([]byte, a.Size)
			if n, err := g.Read(g.t.Context(), a.Node, p, 0); err != nil || int64(n) != a.Size {
				g.t.Errorf("read %s: got %d bytes, %v", path, n, err)
			}
			mode := uint32(syscall.S_IFREG | 0o644) // the mode as git stores it
			if a.Mode&0o100 != 0 {
				mode |= 0o111
			}
			list[path] = fmt.Sprintf("%o %s", mode, p)
		case syscall.S_IFLNK:
			target, err := g.Readlink(g.t.Context(), a.Node)
			if err != nil {
				g.t.Errorf("read link %s: %v", path, err)
			}
			list[path] = fmt.Sprintf("%o %s", syscall.S_IFLNK|0o777, target)
		}
	})
	return list
}

// each visits all names; those of directories end with a slash.
func (g *grafter) each(dir Node, prefix string, visit func(path string, a Attr)) {
	g.t.Helper()
	for _, name := range names(g.t, g.Tree, dir, 0) {
		a, err := g.Lookup(g.t.Context(), dir, name)
		if err == nil {
			a, err = g.Attr(g.t.Context(), a.Node)
		}
		if err != nil {
			g.t.Fatal(err)
		}
		if a.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			g.each(a.Node, prefix+name+"/", visit)
			name += "/"
		}
		visit(prefix+name, a)
	}
}

func expected(f files) map[string]string {
	list := map[string]string{}
	for path, f := range f {
		mode := uint32(syscall.S_IFREG | 0o644)
		switch f.Mode {
		case object.ModeExec:
			mode = syscall.S_IFREG | 0o755
		case object.ModeSymlink:
			mode = syscall.S_IFLNK | 0o777
		}
		list[path] = fmt.Sprintf("%o %s", mode, f.Data)
	}
	return list
}

func (g *grafter) want(what string, want map[string]string) {
	g.t.Helper()
	got := g.shown()
	for path, text := range want {
		if got[path] != text {
			g.t.Errorf("%s: path %s: got %.60q, want %.60q", what, path, got[path], text)
		}
	}
	for path, text := range got {
		if _, ok := want[path]; !ok {
			g.t.Errorf("%s: path %s: got %.60q, want no file", what, path, text)
		}
	}
	if g.t.Failed() {
		g.t.FailNow()
	}
}

func graftTrees() []files {
	return []files{
		{"same": {Data: "same\n"}, "changed": {Data: "one\n"}, "gone/deep/file": {Data: "x"}, "gone/other": {Data: "y"},
			"tool": {Data: "#!", Mode: object.ModeFile}, "link": {Data: "same", Mode: object.ModeSymlink},
			"dir/keep": {Data: "k"}, "turn": {Data: "file"}},
		{"same": {Data: "same\n"}, "changed": {Data: "two, longer\n"}, "new/deep/file": {Data: "z"},
			"tool": {Data: "#!", Mode: object.ModeExec}, "link": {Data: "changed", Mode: object.ModeSymlink},
			"dir/keep": {Data: "k"}, "turn/into": {Data: "directory"}},
	}
}

func TestGraft(t *testing.T) {
	g := newGrafter(t, graftTrees()...)
	same, keep := stat(t, g.Tree, "same"), stat(t, g.Tree, "dir/keep")
	g.graft(1)
	g.want("there", expected(g.trees[1]))
	if now := stat(t, g.Tree, "same"); now != same {
		t.Errorf("an unchanged path: got %+v, want %+v", now, same)
	}
	if now := stat(t, g.Tree, "dir/keep"); now != keep {
		t.Errorf("an unchanged path: got %+v, want %+v", now, keep)
	}
	if a := stat(t, g.Tree, "changed"); a.Mtime < same.Mtime || a.Mtime < time.Now().Add(-time.Minute).UnixNano() {
		t.Errorf("mtime of a changed file: got the old one, %v", time.Unix(0, a.Mtime))
	}
	before := g.nodes()
	g.reopen()
	if after := g.nodes(); !slices.Equal(before, after) {
		t.Errorf("tree after reopening: got %q, want %q", after, before)
	}
	g.want("reopened", expected(g.trees[1]))
	g.graft(0)
	g.want("back", expected(g.trees[0]))
	if s := g.Overlay().Stats(); s.Entries+s.Hidden+s.Contents != 0 {
		t.Errorf("overlay after the switch back to the base tree: got %+v", s)
	}
	if n := g.Overlay().Changed(); n != 0 {
		t.Errorf("changed paths after the switch back to the base tree: got %d, want 0", n)
	}
}

// A file that a graft created behaves like an unchanged file in all operations.
func TestGraftedFilesAreFiles(t *testing.T) {
	g := newGrafter(t, graftTrees()...)
	g.graft(1)
	ctx := t.Context()
	opens := g.src.Calls("Open")
	n := lookup(t, g.Tree, "changed")
	if err := g.Rename(ctx, Root, "changed", lookup(t, g.Tree, "dir"), "moved", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Link(ctx, n, Root, "second"); err != nil {
		t.Fatal(err)
	}
	if _, err := g.SetAttr(ctx, n, Change{Set: SetMode, Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
	if err := g.Unlink(ctx, lookup(t, g.Tree, "new/deep"), "file"); err != nil {
		t.Fatal(err)
	}
	if g.src.Calls("Open") != opens {
		t.Error("changes of names requested contents")
	}
	if _, err := g.Write(ctx, n, []byte("TWO"), 0, false); err != nil {
		t.Fatal(err)
	}
	g.reopen()
	want := expected(g.trees[1])
	delete(want, "changed")
	delete(want, "new/deep/file")
	want["dir/moved"], want["second"] = "100644 TWO, longer\n", "100644 TWO, longer\n"
	g.want("changed", want)
	// The node of "changed" is used for another path, so this path gets another node.
	g.graft(0)
	g.graft(1)
	want = expected(g.trees[1])
	want["dir/moved"], want["second"] = "100644 TWO, longer\n", "100644 TWO, longer\n"
	g.want("again", want)
}

// Paths that were not expected to be replaced are kept.
func TestGraftKeeps(t *testing.T) {
	g := newGrafter(t, graftTrees()...)
	plan := g.plan(1)
	ctx := t.Context()
	if _, err := g.Write(ctx, lookup(t, g.Tree, "changed"), []byte("mine"), 0, false); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Mknod(ctx, Root, "new", 0o644, 0, Cred{}); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Graft(ctx, g.roots[1], plan, ""); err == nil {
		t.Error("a file is at the path of a needed directory, but the graft returned no error")
	}
	if err := g.Unlink(ctx, Root, "new"); err != nil {
		t.Fatal(err)
	}
	r, err := g.Graft(ctx, g.roots[1], plan, "")
	if err != nil {
		t.Fatal(err)
	}
	r.Keep()
	for i, d := range r.Done {
		if want := plan[i].Path == "changed"; d.Kept != want {
			t.Errorf("path %s was kept: got %t, want %t", plan[i].Path, d.Kept, want)
		}
	}
	want := expected(g.trees[1])
	want["changed"] = "100644 mine"
	g.want("kept", want)
}

// TestGraftModel switches between random trees, with random edits between them that are kept or discarded, and compares
// the result with a map. AFS_MODEL_SEED selects another run.
func TestGraftModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if n, err := strconv.ParseUint(os.Getenv("AFS_MODEL_SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Logf("AFS_MODEL_SEED=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	trees := make([]files, 5)
	for i := range trees {
		trees[i] = randomTree(rng)
	}
	g := newGrafter(t, trees...)
	g.src.KnowsSizes.Store(rng.IntN(2) == 0)
	copied := newCopied(g.workspace)
	freeze := func(what string) {
		if rng.IntN(2) == 0 {
			copied.freeze(g.workspace, FreezeOptions{}).Release()
			copied.compare(g.workspace, what)
		}
	}
	for step := range 120 {
		to := rng.IntN(len(trees))
		g.sweep()
		g.graft(to)
		what := fmt.Sprintf("seed %d, step %d, tree %d", seed, step, to)
		g.want(what, expected(trees[to]))
		freeze(what)
		for range rng.IntN(6) {
			g.edit(rng)
		}
		freeze(what)
		if rng.IntN(8) == 0 {
			before := g.nodes()
			g.reopen()
			if after := g.nodes(); !slices.Equal(before, after) {
				t.Fatalf("%s: tree after reopening: got %q, want %q", what, after, before)
			}
		}
	}
	g.close()
	r, err := overlay.Check(filepath.Join(g.dir, "overlay"), false, "")
	if err != nil || len(r.Findings) != 0 {
		t.Errorf("check of the overlay: got %+v, %v", r.Findings, err)
	}
	g.open()
}

func randomTree(rng *rand.Rand) files {
	f := files{}
	for range 4 + rng.IntN(20) {
		path := string(rune('a' + rng.IntN(4)))
		for range rng.IntN(3) {
			path += "/" + string(rune('a'+rng.IntN(4)))
		}
		clash := false
		for have := range f {
			clash = clash || strings.HasPrefix(have, path+"/") || strings.HasPrefix(path, have+"/")
		}
		if !clash {
			f[path] = []worktreetest.File{
				{Data: fmt.Sprint("content ", rng.IntN(3))}, {Data: fmt.Sprint("program ", rng.IntN(3))},
				{Data: fmt.Sprint("program ", rng.IntN(3)), Mode: object.ModeExec},
				{Data: fmt.Sprint("link ", rng.IntN(3)), Mode: object.ModeSymlink},
			}[rng.IntN(4)]
		}
	}
	return f
}

// sweep removes the paths that no tree has, and directories without a file.
func (g *grafter) sweep() {
	g.t.Helper()
	tracked := map[string]bool{}
	for _, f := range g.trees {
		for path := range f {
			tracked[path] = true
		}
	}
	for more := true; more; {
		more = false
		var all []string
		g.each(Root, "", func(path string, _ Attr) { all = append(all, path) })
		for _, path := range all {
			plain, isDir := strings.CutSuffix(path, "/")
			dir := lookup(g.t, g.Tree, filepath.Dir(plain))
			switch {
			case isDir:
				more = g.Rmdir(g.t.Context(), dir, filepath.Base(plain)) == nil || more
			case !tracked[plain]:
				more = g.Unlink(g.t.Context(), dir, filepath.Base(plain)) == nil || more
			}
		}
	}
}

// edit makes a random change to a random file.
func (g *grafter) edit(rng *rand.Rand) {
	ctx := g.t.Context()
	var all []Attr
	var paths []string
	g.each(Root, "",
		func(path string, a Attr) { all, paths = append(all, a), append(paths, strings.TrimSuffix(path, "/")) })
	if len(all) == 0 {
		return
	}
	i := rng.IntN(len(all))
	dir, name := lookup(g.t, g.Tree, filepath.Dir(paths[i])), filepath.Base(paths[i])
	other := rng.IntN(len(all))
	otherDir := lookup(g.t, g.Tree, filepath.Dir(paths[other]))
	var err error
	switch rng.IntN(8) {
	case 0:
		_, err = g.Write(ctx, all[i].Node, []byte("written"), int64(rng.IntN(5)), false)
	case 1:
		_, err = g.SetAttr(ctx, all[i].Node, Change{Set: SetSize, Size: int64(rng.IntN(2) * 3)})
	case 2:
		_, err = g.SetAttr(ctx, all[i].Node, Change{Set: SetMode, Mode: 0o700})
	case 3:
		err = g.Unlink(ctx, dir, name)
	case 4, 5:
		err = g.Rename(ctx, dir, name, otherDir, string(rune('a'+rng.IntN(5))), 0)
	case 6:
		_, err = g.Link(ctx, all[i].Node, otherDir, string(rune('a'+rng.IntN(5))))
	case 7:
		_, err = g.Mknod(ctx, dir, string(rune('a'+rng.IntN(5))), 0o644, 0, Cred{})
	}
	_ = err // most pairs are invalid: the tree returns an error and stays unchanged
}

// A graft reports each changed name with its nodes, and directories that it has created or removed.
func TestGraftReportsChangedNames(t *testing.T) {
	g := newGrafter(t, files{"kept": {Data: "k"}, "changed": {Data: "1"}, "gone": {Data: "g"}, "old/dir/x": {Data: "x"},
		"turns": {Data: "t"}},
		files{"kept": {Data: "k"}, "changed": {Data: "2"}, "new": {Data: "n"}, "fresh/dir/z": {Data: "z"},
			"turns/in": {Data: "i"}})
	before := map[string]Node{}
	node := func(path string) (n Node) {
		f, err := g.Find(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		return f.Node
	}
	for _, path := range []string{"changed", "gone", "old", "old/dir", "old/dir/x", "turns"} {
		before[path] = node(path)
	}
	plan := slices.DeleteFunc(g.plan(1), func(p Graft) bool { return p.Path == "kept" })
	r, err := g.Graft(t.Context(), g.roots[1], plan, "")
	if err != nil {
		t.Fatal(err)
	}
	r.Keep()
	got := map[string]string{}
	for _, c := range r.Changed {
		state := func(s NameState, n Node) string {
			return fmt.Sprintf("%t %t", s.Node == n && n != 0, s.Dir)
		}
		what := state(c.Old, before[c.Path])
		if c.New.Node != 0 {
			what += " > " + state(c.New, node(c.Path))
		}
		got[c.Path] += what + "; "
	}
	const file, dir, none = "true false", "true true", "false false"
	want := map[string]string{
		"changed": file + " > " + file + "; ", "gone": file + "; ", "old/dir/x": file + "; ", "old/dir": dir + "; ",
		"old": dir + "; ",
		"new": none + " > " + file + "; ", "fresh": none + " > " + dir + "; ", "fresh/dir": none + " > " + dir + "; ",
		"fresh/dir/z": none + " > " + file + "; ", "turns": file + "; " + none + " > " + dir + "; ",
		"turns/in": none + " > " + file + "; ",
	}
	if !maps.Equal(got, want) {
		t.Errorf("changed names: got %q, want %q", got, want)
	}
}
