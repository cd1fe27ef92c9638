package capture_test

import (
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// TestLinksAsFiles checks that the index determines the types of paths if symbolic links are shown as files, also after
// checkouts between branches in which a path is a link, a file, or missing.
func TestLinksAsFiles(t *testing.T) {
	link := func(target string) gittest.File { return gittest.File{Data: []byte(target), Mode: "120000"} }
	w := newWorld(t, object.SHA1, map[string]gittest.File{"a": text("a\n"), "turns": link("a")})
	w.git(w.plain, "branch", "base")
	w.git(w.plain, "checkout", "--quiet", "-b", "other")
	w.git(w.plain, "config", "core.symlinks", "false")
	target, file := w.git(w.plain, "rev-parse", ":turns"), w.git(w.plain, "rev-parse", ":a")
	w.git(w.plain, "update-index", "--add", "--cacheinfo", "120000,"+target+",more",
		"--cacheinfo", "100644,"+file+",turns")
	w.git(w.plain, "commit", "--quiet", "--message", "Change types")
	w.remove("turns")
	w.git(w.plain, "checkout", "--quiet", "--force", "base")
	w.o.LinksAsFiles = true
	w.openCapturer()
	// create makes a file in the Tree only: a checkout has made it in the clone.
	create := func(path, text string) {
		t.Helper()
		dir, name := w.parent(path)
		_, err := w.tree.Mknod(w.ctx, dir, name, syscall.S_IFREG|0o644, 0, cred)
		must(t, err)
		w.put(path, text)
	}
	create("turns", "a")
	w.check("a link of the base commit")

	w.git(w.plain, "checkout", "--quiet", "other")
	w.put("turns", "a\n")
	create("more", "a")
	w.check("a link that became a file, and a new link")
	w.restart()
	w.write("turns", "edited\n")
	w.write("more", "elsewhere")
	w.check("both edited")

	w.git(w.plain, "checkout", "--quiet", "--force", "base")
	w.put("turns", "a")
	dir, name := w.parent("more")
	must(t, w.tree.Unlink(w.ctx, dir, name))
	w.check("back")

	// A checkpoint is made after git has written the files, and before it writes the index.
	create("more", "a")
	w.put("turns", "a\n")
	w.checkpoint("manual")
	w.git(w.plain, "checkout", "--quiet", "other")
	w.check("the index changed after the files")

	// The index has no entry for the path, so HEAD decides.
	w.git(w.plain, "rm", "--quiet", "--cached", "more")
	w.write("more", "b")
	p, _ := w.checkpoint("manual")
	if mode, content := w.in(p.Tree, "more"); mode != object.ModeSymlink || content != "b" {
		t.Errorf("link that was removed from the index: got mode %o and contents %q", mode, content)
	}
}
