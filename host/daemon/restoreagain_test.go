package daemon

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/checkout"
	"github.com/artifactfs/artifactfs/session"
)

// intentFile is the name of the file that contains the intents of a mount (package checkout). It is in the home
// directory of the mount.
const intentFile = "checkout.json"

// interrupted stores the intent of a restore in the home directory of a mount.
func interrupted(t *testing.T, home string, in checkout.RestoreIntent) {
	t.Helper()
	if _, err := checkout.OpenJournal(home).Begin(checkout.Intent{Restore: &in}); err != nil {
		t.Fatal(err)
	}
}

// noIntents checks that every intent in the home directory of a mount has ended.
func noIntents(t *testing.T, home string) {
	t.Helper()
	if list := checkout.OpenJournal(home).Pending(); len(list) > 0 {
		t.Errorf("intents after the restore was finished: got %+v, want none", list)
	}
}

// TestARestoreThatWasInterruptedIsFinished checks that a successor finishes an interrupted restore and keeps the paths
// that were changed after the interruption.
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
	note := func(in checkout.RestoreIntent) {
		t.Helper()
		interrupted(t, home, in)
		// The restore was interrupted while it wrote the new index.
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
		k.until("status has a note about the restore", func() bool { return slices.ContainsFunc(k.status(dir).Notes, has) })
	}

	restore(control.RestoreRequest{ID: old.ID, Paths: []string{"a"}}) // restores only some of the paths
	k.kill()
	note(checkout.RestoreIntent{Checkpoint: session.CheckpointID(old.ID), Before: session.CheckpointID(now.ID),
		Staged: true, Nonce: "mine"})
	k.start()
	k.await()
	// a client that has received no reply repeats the request with the same nonce
	again := restore(control.RestoreRequest{ID: old.ID, Staged: true, Nonce: "mine"})
	if again.Before == nil || again.Before.ID != now.ID || len(again.Changes) != 5 {
		t.Errorf("reply to the repeated request: got %+v", again)
	}
	told("then completed")
	if p := k.checkpoint(dir); p.Tree != old.Tree {
		t.Errorf("tree after the restore: got %s, want %s", p.Tree, old.Tree)
	}
	if got := k.sh(dir, "git status --porcelain"); got != "A  a\n?? b\n?? c\n?? d/\n" {
		t.Errorf("git status after the restore printed %s", got)
	}
	noIntents(t, home)
	if again = restore(control.RestoreRequest{ID: old.ID, Nonce: "mine"}); len(again.Changes) != 0 {
		t.Errorf("the second repetition of the request: got %+v", again)
	}

	// A user changes files before the restore is finished. This time the mount itself had ended.
	restore(control.RestoreRequest{ID: now.ID, Staged: true})
	restore(control.RestoreRequest{ID: old.ID, Paths: []string{"a"}})
	k.sh(dir, "echo newer >b; echo mine >g")
	k.unmount(dir)
	note(checkout.RestoreIntent{Checkpoint: session.CheckpointID(old.ID), Before: session.CheckpointID(now.ID)})
	k.mount(r)
	told("then completed")
	if got := k.sh(dir, "cat a b c d/e g; ls f || true"); !strings.HasPrefix(got, "old\nnewer\nold\nold\nmine\nls: ") {
		t.Errorf("files after the restore: got %s", got)
	}

	// A restore of a checkpoint that was dropped in the meantime is abandoned.
	k.kill()
	note(checkout.RestoreIntent{Checkpoint: session.NewCheckpointID(again.Checkpoint.Time),
		Before: session.CheckpointID(now.ID)})
	k.start()
	k.await()
	told("cannot be completed")
	if got := k.sh(dir, "cat a b c; git add a"); got != "old\nnewer\nold\n" {
		t.Errorf("files after the restore: got %s", got)
	}
	noIntents(t, home)
	k.unmount(dir)
}

// TestARestoreThatWasInterruptedLeavesNoEmptyDirectories checks two kinds of kills: a kill between the removal of files
// and that of their directories leaves empty directories, and a kill between the removal of a file and the creation of
// a directory at its path leaves nothing there. The restore must be completed in both cases, and a user's directory
// must be kept.
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
	k.sh(dir,
		"mkdir -p gone/deep/er below.new/deep file.new; for d in gone/deep/er below.new/deep file.new; do echo new >$d/f; done; rm file below; mv file.new file; mv below.new below; rmdir empty; echo new >empty")
	now := k.checkpoint(dir)
	intent := checkout.RestoreIntent{Checkpoint: session.CheckpointID(old.ID), Before: session.CheckpointID(now.ID)}
	finished := func() {
		t.Helper()
		k.until("the restore is finished", func() bool {
			return slices.ContainsFunc(k.status(dir).Notes,
				func(note string) bool { return strings.Contains(note, "then completed") })
		})
	}

	k.sh(dir, "rm gone/deep/er/f file/f below/deep/f empty; rmdir below/deep")
	k.kill()
	interrupted(t, home, intent)
	k.start()
	k.await()
	finished()
	if p := k.checkpoint(dir); p.Tree != old.Tree {
		t.Errorf("tree after the restore: got %s, want %s; files of the mount: %s", p.Tree, old.Tree,
			k.sh(dir, "find [a-z]*"))
	}
	k.unmount(dir)

	// This time the restore itself has created the directories, and no checkpoint was made since.
	k.mount(r)
	if _, err := k.client.Restore(t.Context(), control.RestoreRequest{Dir: dir, ID: now.ID}, nil); err != nil {
		t.Fatal(err)
	}
	k.sh(dir, "rm gone/deep/er/f empty; mkdir mine empty")
	k.unmount(dir)
	interrupted(t, home, intent)
	k.mount(r)
	finished()
	if got := k.sh(dir, "cat file below; ls -d mine empty; ls -d gone || true"); !strings.HasPrefix(got,
		"old\nold\nempty\nmine\nls: ") {
		t.Errorf("files with directories that a user created: got %s", got)
	}
	k.unmount(dir)
}
