package writeback

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/await"
)

// TestFigures checks that Figures counts pushed refs, refused refs and failed pushes.
func TestFigures(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newTestRemote(t, "http", object.SHA1, p.Origin.Path)
	p.copier()
	p.Carried(p.Commit("a", "one"))
	q := p.queue(to, QueueOptions{})
	wantSync(t, q)
	quiet := q.Figures()
	if quiet.Pushes < 1 || quiet.Refs < 1 || quiet.Bytes < 100 || quiet.Took <= 0 || quiet.Failures != 0 ||
		quiet.Refused != 0 {
		t.Errorf("figures after a push: got %+v", quiet)
	}

	hook := filepath.Join(to.dir, "hooks", "pre-receive")
	if err := os.WriteFile(hook, []byte("#!/bin/sh\ncat >/dev/null; exit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	p.Carried(p.Commit("a", "two"))
	if err := syncAll(t, q); err == nil {
		t.Error("sync succeeded although the push was refused")
	}
	refused := q.Figures()
	if refused.Refused <= quiet.Refused || refused.Failures <= quiet.Failures || refused.Bytes <= quiet.Bytes ||
		refused.Refs != quiet.Refs {
		t.Errorf("figures after a refusal: got %+v, before %+v", refused, quiet)
	}
	if err := os.Remove(hook); err != nil {
		t.Fatal(err)
	}

	to.server.Down()
	q.Wake()
	await.Until(t, "a failure is counted", func() bool { return q.Figures().Failures > refused.Failures })
	if now := q.Figures(); now.Refs != refused.Refs {
		t.Errorf("figures without a session remote: got %+v, before %+v", now, refused)
	}
	if err := to.server.Up(); err != nil {
		t.Fatal(err)
	}
	wantSync(t, q)
	if now := q.Figures(); now.Refs <= refused.Refs || now.Pushes <= refused.Pushes || now.Took <= refused.Took {
		t.Errorf("figures in the end: got %+v, before %+v", now, refused)
	}
}
