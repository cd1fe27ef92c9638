package capture_test

import (
	"context"
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
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/capture"
	"github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/carry"
)

// carry makes a checkpoint for a fork, and takes the files that k selects.
func (w *world) carry(k capture.Carrying) (session.Checkpoint, capture.Report) {
	w.t.Helper()
	if k.Begin == nil {
		k.Begin = func() (*worktree.Seal, error) {
			w.sealed++
			return w.tree.Overlay().BeginSeal(fmt.Sprintf("%026d", w.sealed))
		}
	}
	p, report, err := w.c.Checkpoint(w.ctx, session.Forking, "", k)
	must(w.t, err)
	return p, report
}

// gone removes a file if it exists.
func (w *world) gone(path string) {
	w.t.Helper()
	if _, err := os.Lstat(w.at(path)); err == nil {
		w.remove(path)
	}
}

// fork returns a Tree of the checkpoint p with the files in c.
func (w *world) fork(p session.Checkpoint, c *carry.Files) *worktree.Tree {
	w.t.Helper()
	dir := w.t.TempDir()
	tree, err := worktree.Open(filepath.Join(dir, "table"), objects{w.repo, map[string]int{}}, worktree.Options{
		Root: p.Tree, Time: time.Unix(1_700_000_000, 0), Overlay: filepath.Join(dir, "overlay"),
		Journal: filepath.Join(dir, "journal"), Shares: w.shares(), Segments: c.Segments, KeepRemoved: true,
	})
	must(w.t, err)
	w.t.Cleanup(func() { tree.Close() })
	must(w.t, tree.Overlay().Adopt(w.ctx, c))
	return tree
}

// filesOf returns the contents of all files and the targets of all links of a Tree, by path, except .git. Directories
// have the text "dir".
func (w *world) filesOf(tree *worktree.Tree) map[string]string {
	w.t.Helper()
	all := map[string]string{}
	var visit func(dir worktree.Node, at string)
	visit = func(dir worktree.Node, at string) {
		var list []worktree.Entry
		must(w.t, tree.ReadDir(w.ctx, dir, 0, func(e worktree.Entry) bool {
			e.Name = strings.Clone(e.Name)
			if e.Name != "." && e.Name != ".." {
				list = append(list, e)
			}
			return true
		}))
		for _, e := range list {
			p := path.Join(at, e.Name)
			switch e.Mode & syscall.S_IFMT {
			case syscall.S_IFDIR:
				all[p] = "dir"
				visit(e.Node, p)
			case syscall.S_IFLNK:
				target, err := tree.Readlink(w.ctx, e.Node)
				must(w.t, err)
				all[p] = "-> " + string(target)
			default:
				a, err := tree.Attr(w.ctx, e.Node)
				must(w.t, err)
				text := make([]byte, a.Size)
				n, err := tree.Read(w.ctx, e.Node, text, 0)
				must(w.t, err)
				all[p] = fmt.Sprintf("%o %s", a.Mode&0o777, text[:n])
			}
		}
	}
	visit(worktree.Root, "")
	delete(all, ".git")
	return all
}

// wantSame compares the files of a fork with those of its parent.
func wantSame(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	for p := range want {
		if got[p] != want[p] {
			t.Errorf("%s: %q: got %q, want %q", what, p, got[p], want[p])
		}
	}
	for p := range got {
		if _, ok := want[p]; !ok {
			t.Errorf("%s: got another path %q", what, p)
		}
	}
}

// The tree of a checkpoint and the carried files are together the working tree.
func TestCarriedIsWhatIsLeftOut(t *testing.T) {
	w := newWorld(t, object.SHA1, map[string]gittest.File{
		".gitignore": text("*.o\nbuild/\n/local*\n"), "a": text("a"), "dir/c": text("c"), "dir/sub/d": text("d"),
	})
	w.o.Rules = capture.Rules{MaxFileSize: 100, Exclude: []string{"excluded/"}}
	w.openCapturer()
	names := []string{"a", "b", "dir/c", "dir/x.o", "dir/sub/y.o", "build/one", "build/sub/two", "build/sub/.env", ".env",
		"dir/id_rsa", "local", "local2/file", "large", "excluded/file", "new/only.o", "plain/file"}
	r := rand.New(rand.NewPCG(3, 4))
	rounds := 25
	if testing.Short() {
		rounds = 8
	}
	for round := range rounds {
		for range 6 {
			name := names[r.IntN(len(names))]
			size := r.IntN(60)
			if name == "large" {
				size += 100
			}
			if r.IntN(5) == 0 {
				w.gone(name)
				continue
			}
			w.write(name, strings.Repeat(string(rune('a'+r.IntN(26))), size))
		}
		switch round % 8 {
		case 3:
			w.write(".gitignore", "*.o\nbuild/\n")
		case 5:
			w.write(".gitignore", "*.o\nbuild/\n/local*\nplain/\n")
		}
		p, report := w.carry(capture.Carrying{})
		must(t, report.NotCarried)
		wantSame(t, fmt.Sprint("round ", round), w.filesOf(w.fork(p, report.Carried.Files)), w.filesOf(w.tree))
		if len(report.Carried.Left) > 0 {
			t.Errorf("round %d: got %v as not carried", round, report.Carried.Left)
		}
		if t.Failed() {
			return
		}
	}
}

// If the checkpoint that is made once more for the paths to carry fails, the first one is returned.
func TestCarryFailsAfterTheCheckpoint(t *testing.T) {
	w := newWorld(t, object.SHA1, map[string]gittest.File{".gitignore": text("*.o\n"), "a": text("a")})
	w.o.Rules = capture.Rules{}
	calls, fail := 0, errors.New("write-back failed")
	w.o.WriteBack = func(context.Context) error {
		if calls++; calls == 2 {
			return fail
		}
		return nil
	}
	w.openCapturer()
	w.write("new", "new")
	w.write("x.o", "ignored")
	p, report := w.carry(capture.Carrying{})
	if p.ID == "" || !report.Made || !errors.Is(report.NotCarried, fail) || report.Carried != nil {
		t.Fatalf("checkpoint: got %+v, %+v", p, report)
	}
	want := map[string]string{".gitignore": "644 *.o\n", "a": "644 a", "new": "644 new"}
	wantSame(t, "first", w.filesOf(w.fork(p, &carry.Files{})), want)
	p, report = w.carry(capture.Carrying{})
	must(t, report.NotCarried)
	wantSame(t, "second", w.filesOf(w.fork(p, report.Carried.Files)), w.filesOf(w.tree))
}

// The file .worktreeinclude and the globs choose the carried files.
func TestCarriedChoice(t *testing.T) {
	w := newWorld(t, object.SHA1, map[string]gittest.File{
		".gitignore": text("*.o\nbuild/\n.env\n/local\n"), "a": text("a"),
	})
	w.o.Rules = capture.Rules{}
	w.openCapturer()
	for _, dir := range []string{"build", "build/keep", "build/deep", "build/deep/down", "dir"} {
		w.mkdir(dir)
	}
	for _, name := range []string{"build/keep/x", "build/keep/no", "build/deep/down/.env", "build/deep/y", "dir/z.o",
		"dir/.env", ".env", "local"} {
		w.write(name, name)
	}
	all := ".env build build/deep build/deep/down build/deep/down/.env build/deep/y build/keep build/keep/no " +
		"build/keep/x dir/.env dir/z.o local"
	for _, test := range []struct {
		what, include string // text of .worktreeinclude; "-": there is no such file
		k             capture.Carrying
		want          string
	}{
		{"everything", "-", capture.Carrying{}, all},
		{"an empty file", "", capture.Carrying{}, ""},
		{"names at any depth", "# secrets\n.env\n", capture.Carrying{},
			".env build build/deep build/deep/down build/deep/down/.env dir/.env"},
		{"names in the root", "/.env\n/local\n", capture.Carrying{}, ".env local"},
		{"a directory", "build/\n", capture.Carrying{},
			"build build/deep build/deep/down build/deep/down/.env build/deep/y build/keep build/keep/no build/keep/x"},
		{"a negated name", "build/*\n!build/deep\n", capture.Carrying{}, "build build/keep build/keep/no build/keep/x"},
		{"all in spite of the file", ".env\n", capture.Carrying{All: true}, all},
		{"globs in addition to the file", "/local\n", capture.Carrying{Include: []string{"*.o"}}, "dir/z.o local"},
		{"globs without a file", "-", capture.Carrying{Include: []string{"./dir/*"}}, "dir/.env dir/z.o"},
		{"exceptions", "-", capture.Carrying{Exclude: []string{"build/keep/no", ".env", "*.o"}},
			"build build/deep build/deep/down build/deep/y build/keep build/keep/x local"},
		{"a directory as exception", "-", capture.Carrying{Exclude: []string{"build/"}}, ".env dir/.env dir/z.o local"},
	} {
		if test.include == "-" {
			w.gone(capture.IncludeName)
		} else {
			w.write(capture.IncludeName, test.include)
		}
		p, report := w.carry(test.k)
		must(t, report.NotCarried)
		without := w.filesOf(w.fork(p, &carry.Files{}))
		got := slices.DeleteFunc(slices.Sorted(maps.Keys(w.filesOf(w.fork(p, report.Carried.Files)))), func(p string) bool {
			_, ok := without[p]
			return ok
		})
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: got %q, want %q", test.what, got, test.want)
		}
		var missing, secrets []string
		for _, path := range []string{".env", "build/", "dir/.env", "dir/z.o", "local"} {
			for _, p := range strings.Fields(all) {
				if (p+"/" == path || p == path || strings.HasPrefix(p, path) && strings.HasSuffix(path, "/")) &&
					!slices.Contains(got, p) && !slices.Contains(missing, path) {
					missing = append(missing, path)
				}
			}
			if strings.HasSuffix(path, ".env") && slices.Contains(got, path) {
				secrets = append(secrets, path)
			}
		}
		var named []string
		for _, l := range report.Carried.Missing {
			named = append(named, l.Path)
		}
		if !slices.Equal(named, missing) || report.Carried.All != int64(len(missing)) {
			t.Errorf("%s: got %d missing paths %q, want %q", test.what, report.Carried.All, named, missing)
		}
		if !slices.Equal(report.Carried.Secrets, secrets) {
			t.Errorf("%s: got the secrets %q, want %q", test.what, report.Carried.Secrets, secrets)
		}
	}
}

// Nothing is sealed if there is nothing to carry.
func TestNoSealWithoutFilesToCarry(t *testing.T) {
	w := newWorld(t, object.SHA1, map[string]gittest.File{".gitignore": text("*.o\nbuild/\n"), "a": text("a")})
	w.write("a", "changed")
	for _, step := range []struct {
		what string
		k    capture.Carrying
		make func()
		want int // number of seals
	}{
		{"no ignored files", capture.Carrying{}, func() {}, 0},
		{"no listed files", capture.Carrying{Listed: true}, func() { w.write("x.o", "x") }, 0},
		{"other listed files", capture.Carrying{Include: []string{"build/"}}, func() {}, 0},
		{"excluded files", capture.Carrying{Exclude: []string{"*.o"}}, func() {}, 0},
		{"ignored files", capture.Carrying{}, func() {}, 1},
		{"new ignored files", capture.Carrying{Include: []string{"build/"}}, func() { w.write("build/y", "y") }, 1},
		{"files that were removed", capture.Carrying{Exclude: []string{"x.o"}}, func() { w.remove("build") }, 1},
		{"no ignored files any more", capture.Carrying{Exclude: []string{"x.o"}}, func() {}, 0},
	} {
		step.make()
		before := w.sealed
		p, report := w.carry(step.k)
		if report.NotCarried != nil || report.Carried == nil || w.sealed-before != step.want {
			t.Fatalf("%s: got %d seals, want %d, and %+v", step.what, w.sealed-before, step.want, report)
		}
		_, built := w.filesOf(w.fork(p, report.Carried.Files))["build/y"]
		if built != (step.what == "new ignored files") {
			t.Errorf("%s: build/y in the fork: %v", step.what, built)
		}
	}
}

// If the contents cannot be sealed, the checkpoint is made nevertheless.
func TestCheckpointWithoutASeal(t *testing.T) {
	w := newWorld(t, object.SHA1, map[string]gittest.File{".gitignore": text("*.o\n"), "a": text("a")})
	w.write("a", "changed")
	w.write("x.o", "x")
	p, report := w.carry(capture.Carrying{Begin: func() (*worktree.Seal, error) { return nil, syscall.ENOSPC }})
	if !errors.Is(report.NotCarried, syscall.ENOSPC) || report.Carried != nil || !report.Made {
		t.Errorf("checkpoint without a seal: got %+v", report)
	}
	if got := w.filesOf(w.fork(p, &carry.Files{}))["a"]; !strings.HasSuffix(got, " changed") {
		t.Errorf("file of the checkpoint: got %q", got)
	}
	again, report := w.carry(capture.Carrying{})
	if report.NotCarried != nil || report.Made || again.ID != p.ID {
		t.Errorf("checkpoint of the same state: got %+v", report)
	}
	if got := w.filesOf(w.fork(again, report.Carried.Files))["x.o"]; !strings.HasSuffix(got, " x") {
		t.Errorf("ignored file: got %q", got)
	}
}

// Carried files that are removed in a fork are not kept for a checkpoint, because checkpoints leave them out.
func TestRemovedCarriedFiles(t *testing.T) {
	w := newWorld(t, object.SHA1, map[string]gittest.File{".gitignore": text("build/\n"), "a": text("a")})
	for i := range 20 {
		w.write(fmt.Sprintf("build/file%d", i), fmt.Sprint("text ", i))
	}
	p, report := w.carry(capture.Carrying{})
	must(t, report.NotCarried)
	fork := w.fork(p, report.Carried.Files)
	dir, err := fork.Resolve(w.ctx, "build")
	must(t, err)
	for i := range 20 {
		must(t, fork.Unlink(w.ctx, dir, fmt.Sprintf("file%d", i)))
	}
	if _, _, many := fork.Removals().Requested(); many {
		t.Error("the removal of carried files has requested a checkpoint")
	}
}
