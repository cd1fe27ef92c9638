package capture_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/capture"
	"github.com/artifactfs/artifactfs/worktree"
)

// A checkpoint for a fork has the times of its paths; a path that changes while the checkpoint is made has the time of
// the checkpoint.
func TestTimesForForks(t *testing.T) {
	w := newWorld(t, object.SHA1, map[string]gittest.File{
		".gitignore": text("*.o\nbuild/\n"), "a": text("a"), "b": text("b"), "dir/c": text("c"),
	})
	touch := func(path string, at int64) {
		n, err := w.tree.Resolve(t.Context(), path)
		if err == nil {
			_, err = w.tree.SetAttr(t.Context(), n, worktree.Change{Set: worktree.SetMtime, Mtime: at})
		}
		if err != nil {
			t.Error(err)
		}
	}
	var meanwhile func() // changes the tree after the freeze
	w.o.Converts = func(_ context.Context, path string) (bool, error) {
		if meanwhile != nil && path == "new" {
			meanwhile()
			meanwhile = nil
		}
		return false, nil
	}
	w.openCapturer()
	w.write("b", "other")
	touch("b", 1000)
	touch("a", 2000)
	w.mkdir("build")
	w.write("build/object", "x")
	w.write("dir/c.o", "x")
	if _, report := w.checkpoint(session.Manual); report.Times != nil {
		t.Errorf("times of a checkpoint for no fork: got %+v", report.Times)
	}
	for _, c := range []struct {
		what     string
		change   func()
		recorded string // paths that have the time of the freeze
		unknown  bool
	}{
		{"no change", nil, "", false},
		{"changes of files", func() { w.write("b", "third"); w.write("build/object", "y"); w.remove("dir/c") }, "b dir/c",
			false},
		{"a new directory", func() { w.mkdir("later"); w.write("later/file", "x") }, "later later/file",
			false},
		{"a renamed directory", func() {
			if err := w.rename("dir", "renamed"); err != nil {
				t.Error(err)
			}
		}, "", true},
	} {
		w.write("new", c.what)
		touch("new", 3000)
		touch("b", 1000)
		began := time.Now().Add(-time.Second).UnixNano()
		meanwhile = c.change
		_, report := w.checkpoint(session.Forking)
		if meanwhile != nil {
			t.Fatalf("%s: the hook was not called", c.what)
		}
		if (report.Times == nil) != c.unknown {
			t.Errorf("%s: got the times %+v, want unknown: %v", c.what, report.Times, c.unknown)
		}
		if report.Times == nil {
			continue
		}
		var recorded []string
		for _, p := range report.Times.Paths {
			switch {
			case strings.HasSuffix(p.Path, ".o") || strings.HasPrefix(p.Path, "build"):
				t.Errorf("%s: got times of the ignored path %s", c.what, p.Path)
			case p.Mtime >= began && p.Path != "" && p.Path != "dir":
				recorded = append(recorded, p.Path)
			case p.Path == "a" && p.Mtime != 2000 || p.Path == "new" && p.Mtime != 3000:
				t.Errorf("%s: got %+v", c.what, p)
			}
		}
		if slices.Sort(recorded); strings.Join(recorded, " ") != c.recorded {
			t.Errorf("%s: got the time of the freeze for %q, want %q", c.what, recorded, c.recorded)
		}
		if c.change == nil && len(report.Times.Paths) != 5 {
			t.Errorf("%s: got %+v, want the times of the root, a, b, dir and new", c.what, report.Times.Paths)
		}
	}
}

// A fork has the contents of the base tree at excluded paths, and these paths have the time of the checkpoint.
func TestTimesOfExcludedFiles(t *testing.T) {
	for _, exclude := range []string{"src/*.c", "src", "none"} {
		w := ruledWorld(t, capture.Rules{Exclude: []string{exclude, "dist"}})
		began := time.Now().Add(-time.Second).UnixNano()
		w.write("src/a.c", "edited\n")
		w.mkdir("dist")
		w.write("dist/object", "x")
		n, err := w.tree.Resolve(t.Context(), "src/a.c")
		if err == nil {
			_, err = w.tree.SetAttr(t.Context(), n, worktree.Change{Set: worktree.SetMtime, Mtime: 1000})
		}
		must(t, err)
		_, report := w.checkpoint(session.Forking)
		if report.Times == nil {
			t.Fatalf("exclude %s: the times are unknown", exclude)
		}
		var at int64
		for _, p := range report.Times.Paths {
			if p.Path == "src/a.c" {
				at = p.Mtime
			}
		}
		if (at >= began) != (exclude != "none") {
			t.Errorf("exclude %s: got the mtime %d of src/a.c", exclude, at)
		}
	}
}
