package origin

import (
	"testing"

	"github.com/artifactfs/artifactfs/worktree/carry"
)

func TestReplyOfBesides(t *testing.T) {
	for what, b := range map[string]Besides{"no request": {}, "no files": {Files: &carry.Files{}}} {
		if c := b.Reply(); c != nil {
			t.Errorf("%s: got %+v", what, c)
		}
	}
	if c := (Besides{Failed: "no space"}).Reply(); c == nil || c.Failed != "no space" {
		t.Errorf("failure: got %+v", c)
	}
	b := Besides{Secrets: []string{".env"}, Files: &carry.Files{Files: 3, Dirs: 2, Bytes: 5,
		Left: []carry.Left{{Path: "s", Why: carry.NoSocket}}}}
	if c := b.Reply(); c == nil || c.Files != 3 || c.Dirs != 2 || c.Bytes != 5 || len(c.Secrets) != 1 || c.Failed != "" ||
		len(c.Left) != 1 || c.Left[0].Path != "s" || c.Left[0].Why != "socket" {
		t.Errorf("files: got %+v", c)
	}
}
