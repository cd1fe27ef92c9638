package capture_test

import (
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
)

func TestCheckpoint(t *testing.T) {
	w := newWorld(t, object.SHA1, map[string]gittest.File{
		"README": text("hello\n"), "src/a.c": text("int a;\n"), "src/deep/b.c": text("int b;\n"),
		".gitignore": text("*.o\nbuild/\n"),
	})
	if p, r := w.checkpoint(session.Idle); r.Made || p.ID != "" {
		t.Errorf("checkpoint without changes: got %+v, want none", p)
	}
	w.write("src/a.c", "int a = 1;\n")
	w.write("new/x.txt", "x\n")
	w.write("new/x.o", "object\n")
	w.write("build/out", "out\n")
	w.remove("README")
	p, r := w.check("edits")
	if !r.Made || p.Changed != 3 || p.Left != 2 || p.Prev != "" || p.Segment != 1 {
		t.Errorf("checkpoint: got %+v, report %+v", p, r)
	}
	if q, r := w.checkpoint(session.Idle); r.Made || q.ID != p.ID {
		t.Errorf("second checkpoint without a change: got %+v", q)
	}
	w.write("src/a.c", "int a = 2;\n")
	q, r := w.check("more")
	if !r.Made || q.Prev != p.ID || q.Changed != 1 {
		t.Errorf("checkpoint: got %+v, report %+v", q, r)
	}
	w.git(w.plain, "add", "-A")
	s, r := w.check("staged")
	if !r.Made || s.Tree != q.Tree {
		t.Errorf("checkpoint after a change was staged: got %+v", r)
	}
	w.git(w.plain, "commit", "-q", "-m", "mine")
	c, _ := w.check("committed")
	if c.Head.String() != w.git(w.plain, "rev-parse", "HEAD") {
		t.Errorf("HEAD of the checkpoint: got %s", c.Head)
	}
	list, err := w.repo.Checkpoints(0)
	if err != nil || len(list) != 4 || list[0] != c || list[3] != p {
		t.Errorf("list of checkpoints: got %+v, %v", list, err)
	}
	w.git(w.dir+"/session.git", "fsck", "--strict")
	if len(w.opened) > 0 {
		t.Errorf("contents of unchanged files were read: %v", w.opened)
	}
}
