package writeback

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// TestFirstPush checks that the first push to an empty session remote contains a checkpoint that is being made when it
// begins, and takes two requests. A call of Sync that begins during the push is answered by this push, unless a ref has
// changed since.
func TestFirstPush(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newTestRemote(t, "http", object.SHA1, "")
	exists := func(name string) bool { _, err := os.Stat(filepath.Join(to.dir, name)); return err == nil }
	hook := "#!/bin/sh\ntouch begun\nuntil [ -e go ]; do sleep 0.01; done\n"
	if err := os.WriteFile(filepath.Join(to.dir, "hooks", "pre-receive"), []byte(hook), 0o755); err != nil {
		t.Fatal(err)
	}
	p.copier()
	p.Carried(p.Commit("a", "one"))
	waiting, made := make(chan struct{}), make(chan struct{})
	q := p.queue(to, QueueOptions{BaseURL: baseURL, Settled: func(context.Context) { close(waiting); <-made }})
	<-waiting
	checkpoint := p.Checkpoint("manual")
	close(made)
	syncWhilePushing := func(move func()) {
		await.Until(t, "a push waits in the server", func() bool { return exists("begun") })
		move()
		before, _ := q.calls.open()
		done := make(chan error, 1)
		go func() { done <- syncAll(t, q) }()
		await.Until(t, "the call of Sync is counted", func() bool { n, _ := q.calls.open(); return n > before })
		if err := os.WriteFile(filepath.Join(to.dir, "go"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatalf("sync during a push: %v", err)
		}
	}
	syncWhilePushing(func() {})
	if !q.Has(checkpoint) {
		t.Error("the first push has ended without the checkpoint")
	}
	var asked, pushed int
	for _, r := range to.server.Log().Requests() {
		switch {
		case r.Command == gittest.Push && r.Method == "POST":
			pushed++
		case r.Command == gittest.Push || r.Command == gittest.LsRefs:
			asked++
		}
	}
	if asked != 1 || pushed != 1 {
		t.Errorf("requests of the first push: got %d for refs and %d pushes, want one of each:\n%s", asked, pushed,
			to.server.Log())
	}
	run(t, to.dir, "", "fsck", "--strict")

	for _, name := range []string{"begun", "go"} {
		if err := os.Remove(filepath.Join(to.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	p.Carried(p.Commit("a", "two"))
	var three object.ID
	syncWhilePushing(func() {
		three = p.Commit("a", "three")
		p.Carried(three)
	})
	if got := q.Acknowledged("refs/heads/main"); got != three {
		t.Errorf("branch after a sync that began with a newer commit than the push: got %s, want %s", got, three)
	}
}
