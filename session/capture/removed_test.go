package capture_test

import (
	"fmt"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
)

// TestRemovalOfFilesThatTheLastCheckpointHas checks a checkpoint before a mass removal that equals the previous
// checkpoint, so that it is not written. The next checkpoint must then not start from the tree without the removed
// files, because no repository has that tree. This happens after a takeover, when the Tree does not know yet which
// files the last checkpoint has.
func TestRemovalOfFilesThatTheLastCheckpointHas(t *testing.T) {
	w := newWorld(t, object.SHA1, map[string]gittest.File{"a": text("a")})
	must(t, w.tree.Close())
	w.keep = true
	w.openTree()
	w.openCapturer()
	for i := range 8 {
		w.write(fmt.Sprintf("dir/file%d", i), fmt.Sprint("text ", i))
	}
	w.write("kept", "kept") // the tree without the removed files is not the base tree
	first, _ := w.check("files made")
	// The process is killed, and a successor opens the working tree and the repository.
	must(t, w.tree.Close())
	w.openTree()
	w.openCapturer()
	w.remove("dir")
	if _, _, many := w.tree.Removals().Requested(); !many {
		t.Fatal("the removal of 8 files that the tree does not know to be saved requested no checkpoint")
	}
	if p, report := w.checkpoint(session.Removal); report.Made || p.ID != first.ID {
		t.Fatalf("checkpoint before the removal: got %s, made %v, want the previous one, %s", p.ID, report.Made, first.ID)
	}
	w.write("b", "b")
	w.check("a file made after the removal")
	w.remove("b")
	w.check("the file removed")
}
