package capture_test

import (
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/capture"
)

// TestRefsOfRemoteMakeNoCheckpoint checks that new refs of the mounted remote cause no checkpoint, but new tags and
// branches of the user do.
func TestRefsOfRemoteMakeNoCheckpoint(t *testing.T) {
	w := newWorld(t, object.SHA1, map[string]gittest.File{"a": text("a\n")})
	theirs := []packedrefs.Ref{{Name: "refs/tags/v1", ID: w.commit}}
	w.o.InitialState = &capture.InitialState{Branch: "refs/heads/main", Commit: w.commit, Tree: w.root,
		Refs: func() []packedrefs.Ref { return theirs }}
	w.openCapturer()
	w.write("a", "1")
	last, _ := w.checkpoint(session.Idle)
	id := w.commit.String()
	for _, c := range []struct {
		ref  string
		made bool
	}{
		{"refs/remotes/origin/main", false}, {"refs/tags/v1", false}, {"refs/tags/mine", true},
		{"refs/remotes/origin/next", false},
		{"refs/heads/topic", true},
	} {
		w.git(w.plain, "update-ref", c.ref, id)
		p, r := w.checkpoint(session.Idle)
		if r.Made != c.made || !c.made && p.ID != last.ID {
			t.Errorf("checkpoint after %s was created: made %v, want %v", c.ref, r.Made, c.made)
		}
		last = p
	}
}
