package integration

import (
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
)

// shown returns the checkpoint that a name refers to.
func (m mounted) shown(name string) control.SessionShowReply {
	m.w.Helper()
	var s control.SessionShowReply
	m.w.json(&s, "session", "show", name, "-C", m.Dir)
	return s
}

// Checkpoints can be named by age, time and commit, and a note can be added to a named checkpoint.
func TestCheckpointNames(t *testing.T) {
	w := newWorld(t)
	w.sized(2, 2)
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("sized.git"), "--wait", "git", "--session", "work", "--checkpoint",
		"before-risk")
	w.sh(m.Dir, "echo 1 >one")
	first := m.checkpoint()
	began := time.Now()
	w.sh(m.Dir, "echo 2 >two && git add two && git commit -qm two")
	head := strings.TrimSpace(w.git(m.Dir, "rev-parse", "HEAD"))
	ofHead := m.shown("HEAD")
	if ofHead.Head != head {
		t.Errorf("HEAD of the checkpoint named HEAD: got %s, want %s", ofHead.Head, head)
	}
	w.sh(m.Dir, "echo 3 >three")
	newest := m.checkpoint()
	if got := m.shown("HEAD").ID; got != ofHead.ID {
		t.Errorf("checkpoint named HEAD after another one: got %s, want the first with that commit, %s", got, ofHead.ID)
	}
	if id := session.CheckpointID(newest.ID); time.Since(id.Time()) < time.Second {
		w.until("the newest checkpoint is a second old", func() bool { return time.Since(id.Time()) > time.Second })
	}
	if got := m.shown("1s").ID; got != newest.ID {
		t.Errorf("checkpoint named 1s: got %s, want %s", got, newest.ID)
	}
	for _, name := range []string{began.Format(time.RFC3339Nano), first.ID,
		strings.ToLower(first.ID[:22]) + first.ID[22:]} {
		if got := m.shown(name).ID; got != first.ID {
			t.Errorf("checkpoint named %s: got %s, want %s", name, got, first.ID)
		}
	}
	if got := m.shown(time.Now().Format(time.DateOnly)).ID; got != newest.ID {
		t.Errorf("checkpoint named by today's date: got %s, want %s", got, newest.ID)
	}
	w.refusal(w.afs("session", "show", "3d", "-C", m.Dir), control.ExitNotMounted,
		"no such checkpoint: oldest checkpoint was made at", "run artifactfs session log to list the checkpoints")
	w.refusal(w.afs("session", "pin", "10m", "-C", m.Dir), control.ExitUsage, `invalid pin name "10m"`, "")
	w.ok("session", "restore", began.Format(time.RFC3339Nano), "-C", m.Dir)
	if exists(m.path("two")) || exists(m.path("three")) || !exists(m.path("one")) {
		t.Error("restore by a time did not restore the files of that time")
	}
	last := m.shown("@")

	var note control.SessionNoteReply
	w.json(&note, "session", "note", "@", `{"tests":"passed"}`, "-C", m.Dir)
	if note.Commit != last.Commit {
		t.Errorf("commit of a note on @: got %s, want the newest checkpoint's, %s", note.Commit, last.Commit)
	}
	w.json(&note, "session", "note", "HEAD", `{"tests":"passed"}`, "-C", m.Dir)
	if note.Commit != head {
		t.Errorf("commit of a note on HEAD: got %s, want %s", note.Commit, head)
	}
	w.json(&note, "session", "note", first.ID, `{"tests":"failed"}`, "-C", m.Dir)
	if text := w.git(m.Dir, "notes", "--ref", "agent", "show", first.Commit); !strings.Contains(text, "failed") {
		t.Errorf("note on checkpoint %s: got %q, want one with failed", first.ID, text)
	}
}
