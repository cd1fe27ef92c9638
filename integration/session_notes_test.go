package integration

import (
	"strings"
	"testing"
)

// Merging the notes of another session into a mount does not cause a checkpoint.
func TestMergedNotesMakeNoCheckpoint(t *testing.T) {
	w, _, url := newOrigin(t)
	flags := []string{"--wait", "git", "--session-remote", "origin", "--checkpoint", "off", "--session"}
	one, two := w.bare(url, append(flags, "one")...), w.bare(url, append(flags, "two")...)
	for _, m := range []mounted{one, two} {
		w.sh(m.Dir, "git commit -q --allow-empty -m "+m.Session+" && git notes --ref agent add -m mine")
		m.sync()
	}
	w.sh(one.Dir, "git notes --ref agent add -m again HEAD~1")
	one.sync()
	before := two.checkpoint()
	two.sync()
	w.until("the notes of the other session are in the mount", func() bool {
		return strings.Count(w.git(two.Dir, "notes", "--ref", "agent", "list"), "\n") >= 2
	})
	if after := two.checkpoint(); after.ID != before.ID || after.Made {
		t.Errorf("checkpoint after notes were merged: got %s, made %t, want the existing %s", after.ID, after.Made, before.ID)
	}
	w.sh(two.Dir, "git notes --ref agent append -m more HEAD")
	if after := two.checkpoint(); after.ID == before.ID {
		t.Errorf("checkpoint after the user added a note: got %s, want a new one", after.ID)
	}
	w.unmount(one)
	w.unmount(two)
}
