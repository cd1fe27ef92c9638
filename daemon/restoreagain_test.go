package daemon

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/checkout"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session"
)

// intentFile is where the intents of a mount are recorded, in its home (package checkout).
const intentFile = "checkout.json"

// oldRestoreRecord is the intent of a restore as builds before the journal stored it, in restore.json.
type oldRestoreRecord struct {
	Request control.RestoreRequest `json:"request"`
	Before  session.CheckpointID   `json:"before"`
}

// record puts the intent into a mount's home, in the form of an earlier build if old is set.
func (r oldRestoreRecord) record(t *testing.T, home string, old bool) {
	t.Helper()
	var err error
	if old {
		var text []byte
		if text, err = json.Marshal(r); err == nil {
			err = os.WriteFile(filepath.Join(home, "restore.json"), text, 0o600)
		}
	} else {
		in := checkout.RestoreIntent{Checkpoint: session.CheckpointID(r.Request.ID), Before: r.Before, Paths: r.Request.Paths, Staged: r.Request.Staged, Nonce: r.Request.Nonce}
		_, err = checkout.OpenJournal(home).Begin(checkout.Intent{Restore: &in})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// noIntents checks that every intent in a mount's home has ended.
func noIntents(t *testing.T, home string) {
	t.Helper()
	if list := checkout.OpenJournal(home).Pending(); len(list) > 0 {
		t.Errorf("intents after the restore was finished: got %+v, want none", list)
	}
}

// A successor finishes an interrupted restore and keeps the paths that were changed after the interruption.
func TestARestoreThatWasInterruptedIsFinished(t *testing.T) {
	t.Parallel()
	k := newKeep(t)
	remote, dir := k.dir("remote"), k.dir("mnt")
	sample(t, remote)
	k.start()
	k.await()
	r := k.request(remote, dir)
	r.SessionOptions.Policy = control.PolicyOff
	name := k.mount(r).Session
	home := filepath.Join(k.state, "mounts", name)
	k.sh(dir, "echo old >a; echo old >b; echo old >c; mkdir d; echo old >d/e; git add a")
	old := k.checkpoint(dir)
	k.sh(dir, "echo new >a; echo new >b; echo new >c; rm -r d; echo new >f; git add -A")
	now := k.checkpoint(dir)
	restore := func(r control.RestoreRequest) control.RestoreReply {
		t.Helper()
		r.Dir = dir
		reply, err := k.client.Restore(t.Context(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		return reply
	}
	note := func(old bool, record oldRestoreRecord) {
		t.Helper()
		record.record(t, home, old)
		// The new index was being written.
		err := os.WriteFile(filepath.Join(home, "git", "index.artifactfs-1"), []byte("DIRC"), 0o600)
		if err == nil {
			err = os.WriteFile(filepath.Join(home, "git", "index.lock"), []byte("artifactfs switch\n"), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	told := func(word string) {
		t.Helper()
		has := func(note string) bool {
			return strings.Contains(note, word) && strings.Contains(note, "artifactfs session restore -C "+dir+" "+now.ID)
		}
		k.until("status tells of it", func() bool { return slices.ContainsFunc(k.status(dir).Notes, has) })
	}

	restore(control.RestoreRequest{ID: old.ID, Paths: []string{"a"}}) // half of it
	k.kill()
	note(true, oldRestoreRecord{Request: control.RestoreRequest{Dir: dir, ID: old.ID, Staged: true, Nonce: "mine"}, Before: session.CheckpointID(now.ID)})
	k.start()
	k.await()
	again := restore(control.RestoreRequest{ID: old.ID, Staged: true, Nonce: "mine"}) // as one asks whose answer did not come
	if again.Before == nil || again.Before.ID != now.ID || len(again.Changes) != 5 {
		t.Errorf("who asks again is told %+v", again)
	}
	told("and finished")
	if p := k.checkpoint(dir); p.Tree != old.Tree {
		t.Errorf("the tree is %s and not %s", p.Tree, old.Tree)
	}
	if got := k.sh(dir, "git status --porcelain"); got != "A  a\n?? b\n?? c\n?? d/\n" {
		t.Errorf("git status: %s", got)
	}
	noIntents(t, home)
	if again = restore(control.RestoreRequest{ID: old.ID, Nonce: "mine"}); len(again.Changes) != 0 {
		t.Errorf("told twice: %+v", again)
	}

	// Somebody goes on in between; this time the mount itself had ended.
	restore(control.RestoreRequest{ID: now.ID, Staged: true})
	restore(control.RestoreRequest{ID: old.ID, Paths: []string{"a"}})
	k.sh(dir, "echo newer >b; echo mine >g")
	k.unmount(dir)
	note(false, oldRestoreRecord{Request: control.RestoreRequest{Dir: dir, ID: old.ID}, Before: session.CheckpointID(now.ID)})
	k.mount(r)
	told("and finished")
	if got := k.sh(dir, "cat a b c d/e g; ls f || true"); !strings.HasPrefix(got, "old\nnewer\nold\nold\nmine\nls: ") {
		t.Errorf("it holds %s", got)
	}

	// A checkpoint that is gone cannot be gone back to.
	k.kill()
	note(false, oldRestoreRecord{Request: control.RestoreRequest{Dir: dir, ID: string(session.NewCheckpointID(again.Checkpoint.Time))}, Before: session.CheckpointID(now.ID)})
	k.start()
	k.await()
	told("cannot be finished")
	if got := k.sh(dir, "cat a b c; git add a"); got != "old\nnewer\nold\n" {
		t.Errorf("it holds %s", got)
	}
	noIntents(t, home)
	k.unmount(dir)
}

// A kill between the removal of files and that of their directories leaves empty ones, and a kill before a directory is made
// leaves nothing where a file was. The restore is completed nevertheless, and a directory that a user created stays.
func TestARestoreThatWasInterruptedLeavesNoEmptyDirectories(t *testing.T) {
	t.Parallel()
	k := newKeep(t)
	remote, dir := k.dir("remote"), k.dir("mnt")
	sample(t, remote)
	k.start()
	k.await()
	r := k.request(remote, dir)
	r.SessionOptions.Policy = control.PolicyOff
	home := filepath.Join(k.state, "mounts", k.mount(r).Session)
	k.sh(dir, "echo old >file; echo old >below; mkdir empty")
	old := k.checkpoint(dir)
	k.sh(dir, "mkdir -p gone/deep/er below.new/deep file.new; for d in gone/deep/er below.new/deep file.new; do echo new >$d/f; done; rm file below; mv file.new file; mv below.new below; rmdir empty; echo new >empty")
	now := k.checkpoint(dir)
	record := oldRestoreRecord{Request: control.RestoreRequest{Dir: dir, ID: old.ID}, Before: session.CheckpointID(now.ID)}
	finished := func() {
		t.Helper()
		k.until("the restore is finished", func() bool {
			return slices.ContainsFunc(k.status(dir).Notes, func(note string) bool { return strings.Contains(note, "and finished") })
		})
	}

	k.sh(dir, "rm gone/deep/er/f file/f below/deep/f empty; rmdir below/deep")
	k.kill()
	record.record(t, home, false)
	k.start()
	k.await()
	finished()
	if p := k.checkpoint(dir); p.Tree != old.Tree {
		t.Errorf("tree after the restore: got %s, want %s; the mount holds %s", p.Tree, old.Tree, k.sh(dir, "find [a-z]*"))
	}
	k.unmount(dir)

	// This time the directories are the restore's own, and no checkpoint was made since it made them.
	k.mount(r)
	if _, err := k.client.Restore(t.Context(), control.RestoreRequest{Dir: dir, ID: now.ID}, nil); err != nil {
		t.Fatal(err)
	}
	k.sh(dir, "rm gone/deep/er/f empty; mkdir mine empty")
	k.unmount(dir)
	record.record(t, home, true)
	k.mount(r)
	finished()
	if got := k.sh(dir, "cat file below; ls -d mine empty; ls -d gone || true"); !strings.HasPrefix(got, "old\nold\nempty\nmine\nls: ") {
		t.Errorf("with directories of somebody's own it holds %s", got)
	}
	k.unmount(dir)
}
