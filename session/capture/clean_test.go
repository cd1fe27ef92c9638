package capture_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/convert"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// TestConvertedFiles checks that files that git converts have the same blobs in the tree of a checkpoint as after git
// add, even after their attributes have changed.
func TestConvertedFiles(t *testing.T) {
	w := newWorld(t, object.SHA1, map[string]gittest.File{
		".gitattributes": text("*.txt text\n*.up filter=upper\n*.id ident\nraw.txt -text\n*.u16 text working-tree-encoding=UTF-16LE\n*.auto text=auto\n"),
		"a.txt":          text("one\ntwo\n"), "raw.txt": text("r\r\n"), "crlf.auto": text("old\r\nfile\r\n"),
		"b.bin": text("\x00"),
	})
	w.git(w.plain, "config", "filter.upper.clean", "tr a-z A-Z")
	w.git(w.plain, "config", "filter.upper.smudge", "cat")
	w.git(w.plain, "config", "filter.broken.clean", "false")
	w.git(w.plain, "config", "filter.broken.required", "true")
	settings := convert.Settings{Drivers: map[string]convert.Driver{"upper": {Name: "upper", Clean: true}}}
	attributes, err := os.ReadFile(w.at(".gitattributes"))
	must(t, err)
	base := []*convert.File{settings.Parse(attributes, true)}
	w.o.Converts = func(_ context.Context, path string) (bool, error) { return convert.Returns(settings, base, path), nil }
	w.openCapturer()

	w.write("a.txt", "one\r\nthree\r\n")
	w.write("raw.txt", "x\r\ny\r\n")
	w.write("new.up", "shout\n")
	w.write("v.id", "$Id: 1234 $\n")
	w.write("x.u16", "h\x00i\x00\n\x00")
	w.write("crlf.auto", "old\r\nstays\r\n") // git keeps CRLF, because the index has CRLF
	w.write("crlf2.auto", "new\r\ngoes\r\n")
	w.write("b.bin", "\r\n")
	w.write("empty.txt", "")
	w.check("converted")

	w.write("sub/.gitattributes", "*.bin text\n")
	w.write("sub/c.bin", "text\r\nnow\r\n")
	w.write("sub/deep/d.bin", "deep\r\n")
	w.check("attributes of a directory")
	w.restart()
	w.write("sub/e.bin", "later\r\n")
	w.check("attributes that came before")
	w.remove("sub/.gitattributes")
	w.write("sub/f.bin", "as it is\r\n")
	w.check("attributes that went")

	if err := w.rename("a.txt", "a.bin"); err != nil {
		t.Fatal(err)
	}
	w.check("moved to where nothing is converted")

	w.write(".gitattributes", "*.brk filter=broken\n*.txt text\n")
	w.write("z.brk", "not\r\nstored\n")
	w.write("z.txt", "z\r\n")
	p, _ := w.checkpoint("manual")
	if mode, content := w.in(p.Tree, "z.brk"); mode != 0 {
		t.Errorf("file that git add refuses: got mode %o and contents %q, want none", mode, content)
	}
	if _, content := w.in(p.Tree, "z.txt"); content != "z\n" {
		t.Errorf("z.txt beside the refused file: got %q", content)
	}
	left, _ := filepath.Glob(filepath.Join(w.repo.Dir(), "artifactfs-clean-*"))
	if len(left) > 0 {
		t.Errorf("temporary files: got %v, want none", left)
	}
}

// in returns the mode and the contents of a file in a tree of the session repository.
func (w *world) in(tree object.ID, path string) (object.Mode, string) {
	w.t.Helper()
	dir, name, deep := strings.Cut(path, "/")
	entries, err := w.repo.Tree(tree)
	must(w.t, err)
	for _, e := range entries {
		if e.Name != dir {
			continue
		}
		if deep {
			return w.in(e.ID, name)
		}
		_, text, err := w.repo.Get(e.ID, 1<<30)
		must(w.t, err)
		return e.Mode, string(text)
	}
	return 0, ""
}
