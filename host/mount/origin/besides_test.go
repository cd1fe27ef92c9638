package origin

import (
	"slices"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session/capture"
	"github.com/artifactfs/artifactfs/worktree/carry"
)

func taken(c carry.Files) *capture.Taken { return &capture.Taken{Files: &c} }

func TestReplyOfBesides(t *testing.T) {
	for what, b := range map[string]Besides{"no request": {}, "no files": {Taken: taken(carry.Files{})}} {
		if c := b.Reply(); c != nil {
			t.Errorf("%s: got %+v", what, c)
		}
	}
	if c := (Besides{Failed: "no space"}).Reply(); c == nil || c.Failed != "no space" {
		t.Errorf("failure: got %+v", c)
	}
	b := Besides{Taken: taken(carry.Files{Files: 3, Dirs: 2, Bytes: 5,
		Left: []carry.Left{{Path: "s", Why: carry.NoSocket}, {Path: "u", Why: carry.NotFetched}}})}
	b.Taken.Secrets = []string{".env"}
	if c := b.Reply(); c == nil || c.Files != 3 || c.Dirs != 2 || c.Bytes != 5 || len(c.Secrets) != 1 || c.Failed != "" {
		t.Errorf("files: got %+v", c)
	}
	want := []control.LeftOut{{Path: "s", Why: "type"}, {Path: "u", Why: "unread"}}
	if got := b.Lacks(); !slices.Equal(got, want) {
		t.Errorf("paths that are not carried: got %+v, want %+v", got, want)
	}
}
