package worktree_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	. "github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

func TestBaseWalk(t *testing.T) {
	files := lazyFiles()
	// In trees and in the index a directory's name is followed by a slash.
	for _, path := range []string{"foo/x", "foo.bar", "foo-x", "foo0", "foo.d/y", "foobar/z", "a/foo/1",
		"a/foo-/2", "a/foo!"} {
		files[path] = worktreetest.File{Data: path}
	}
	files["module"] = worktreetest.File{Mode: object.ModeGitlink}
	w := newWorkspace(t, files)
	w.ok(w.unlink("foo.bar"))
	w.ok(w.rename("dir", "gone"))
	for range 2 {
		dirs := map[string]bool{}
		var got []string
		w.ok(w.Base().Walk(t.Context(), func(e BaseEntry) error {
			parent := ""
			if i := strings.LastIndexByte(e.Path, '/'); i >= 0 {
				parent = e.Path[:i]
			}
			if (e.Path != "") != dirs[parent] && e.Path != "" {
				t.Errorf("path %s was returned before its directory", e.Path)
			}
			if e.Path == "module" && (e.Mode != object.ModeGitlink || e.Attr.Mode != 0o40755) ||
				e.Path != "module" && e.ID != w.src.ID(e.Path) {
				t.Errorf("base entry %s is %+v", e.Path, e)
			}
			if e.Attr.Mtime != commitTime.UnixNano() || e.Attr.Node == 0 {
				t.Errorf("base entry %s has the attributes %+v", e.Path, e.Attr)
			}
			if e.Mode == object.ModeDir {
				dirs[e.Path] = true
				return nil
			}
			got = append(got, e.Path)
			return nil
		}))
		if len(got) != len(files) || !slices.IsSorted(got) {
			t.Errorf("walk returned %d of %d files: %q", len(got), len(files), got)
		}
	}
	stop := errors.New("stop")
	w.want("an error", w.Base().Walk(t.Context(), func(e BaseEntry) error {
		if e.Path == "foo-x" {
			return stop
		}
		return nil
	}), stop)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w.want("an end", w.Base().Walk(ctx, func(BaseEntry) error { return nil }), context.Canceled)
}

// BenchmarkBaseWalk walks a tree of 108,000 files, first and again.
func BenchmarkBaseWalk(b *testing.B) {
	files := make(map[string]worktreetest.File)
	for i := range 108_000 {
		path := fmt.Sprintf("component-%d/src/main/package%d/part%d/SourceFileNumber%d.java", i%7, i/2000, i/20%100, i)
		files[path] = worktreetest.File{Data: fmt.Sprint(i)}
	}
	src := worktreetest.New(files)
	walk := func(b *testing.B, tree *Tree) {
		n := 0
		if err := tree.Base().Walk(b.Context(), func(BaseEntry) error { n++; return nil }); err != nil || n < 108_000 {
			b.Fatalf("walk over the base tree: %d entries, %v", n, err)
		}
	}
	open := func(b *testing.B) *Tree {
		tree, err := Open(filepath.Join(b.TempDir(), "inodes"), src, Options{Root: src.Root, Time: commitTime})
		if err != nil {
			b.Fatal(err)
		}
		return tree
	}
	b.Run("first", func(b *testing.B) {
		for range b.N {
			b.StopTimer()
			tree := open(b)
			b.StartTimer()
			walk(b, tree)
			b.StopTimer()
			tree.Close()
		}
	})
	b.Run("again", func(b *testing.B) {
		tree := open(b)
		defer tree.Close()
		for b.Loop() {
			walk(b, tree)
		}
	})
}
