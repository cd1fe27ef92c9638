package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/session/agent"
	"github.com/artifactfs/artifactfs/host/session/catalog"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session"
)

// TestACheckpointIsMadeSoonAfterGit checks that a git command that moves refs soon causes a checkpoint, with each
// policy.
func TestACheckpointIsMadeSoonAfterGit(t *testing.T) {
	for _, policy := range []control.Policy{control.PolicyIdle, control.PolicyBeforeRisk, "interval=1h"} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			k := newKeep(t)
			remote, dir := k.dir("remote"), k.dir("mnt")
			sample(t, remote)
			k.start()
			k.await()
			r := k.request(remote, dir)
			r.SessionOptions.Policy = policy
			k.mount(r)
			k.sh(dir, "git config user.name a; git config user.email a@b; git config gc.auto 0")
			before := ""
			for _, command := range []string{
				"echo one >one; git add one; git commit -qm one", "git commit -q --allow-empty -m two", "git branch side",
				"git tag mine", "echo more >one; git commit -qam three",
				"echo even >>one; git stash -q", "echo odd >>one; git stash -q", "git stash drop -q stash@{1}",
				"git checkout -q --detach", "git branch -q -D side", "git notes add -m said",
			} {
				k.sh(dir, command)
				at, reason := time.Now(), ""
				k.until("a checkpoint has the result of: "+command, func() bool {
					log, err := k.client.SessionLog(t.Context(), control.SessionLogRequest{Of: dir, Limit: 1})
					if err != nil || len(log.Checkpoints) == 0 || log.Checkpoints[0].ID == before {
						return false
					}
					before, reason = log.Checkpoints[0].ID, log.Checkpoints[0].Reason
					return true
				})
				// after this time the idle policy makes a checkpoint anyway
				if took := time.Since(at); took > 9*time.Second && reason == string(session.Idle) {
					t.Errorf("checkpoint after %s took %s, and git was not its reason", command, took)
				}
			}
			log, err := k.client.SessionLog(t.Context(), control.SessionLogRequest{Of: dir})
			if err != nil || strings.TrimSpace(k.sh(dir, "git rev-parse HEAD")) != log.Checkpoints[0].Head ||
				log.Checkpoints[0].Branch != "" {
				t.Errorf("session log: got error %v and checkpoints %+v, want the detached HEAD in the last one", err,
					log.Checkpoints)
			}
			if policy != control.PolicyIdle {
				for _, p := range log.Checkpoints {
					if p.Reason != "git" && p.Reason != "before-risk" {
						t.Errorf("checkpoint %+v has a reason that the policy does not allow", p)
					}
				}
			}
			k.unmount(dir)
		})
	}
}

// until waits for a condition, and prints the log of the daemon if it does not hold in time.
func (k *testKeeper) until(what string, is func() bool) {
	k.t.Helper()
	for end := time.Now().Add(takeoverTime); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			k.t.Fatalf("timed out waiting for: %s", what)
		}
	}
}

func TestWorkIsCarriedIntoTheEmbeddedRepository(t *testing.T) {
	t.Parallel()
	k := newKeep(t)
	remote := k.dir("remote")
	sample(t, remote)
	k.start()
	k.await()
	dir := k.dir("mnt")
	before := k.mount(k.request(remote, dir))
	repo := filepath.Join(k.state, "mounts", before.Session, statedir.SessionRepoName)
	if st := k.status(dir).Session; st.Mode != "embedded" || st.SessionRemote != repo || st.Dirty || st.Checkpoints != 0 ||
		st.State != "active" {
		t.Errorf("status of a new mount: got %+v", st)
	}
	if _, err := os.Lstat(repo); err == nil {
		t.Error("a mount without changes has a session repository")
	}
	k.sh(dir, "echo new > new; echo more >> README.md; git add new; git commit -qm one; echo later > later")
	head := strings.TrimSpace(k.sh(dir, "git rev-parse HEAD"))
	k.until("the commit is in the session repository", func() bool {
		out, _ := os.ReadFile(filepath.Join(repo, "refs/heads/main"))
		return strings.TrimSpace(string(out)) == head
	})
	clone := k.dir("clone")
	k.sh("/", "git clone -q "+remote+" "+clone)
	if got := k.sh(clone,
		"git fetch -q "+repo+
			" main; git checkout -q FETCH_HEAD; git rev-parse HEAD; git fsck --no-dangling; cat new"); got != head+"\nnew\n" {
		t.Errorf("clone that has fetched from the session repository: got %q", got)
	}
	k.until("a checkpoint was made", func() bool { st := k.status(dir).Session; return st.Checkpoints > 0 && !st.Dirty })
	log, err := k.client.SessionLog(t.Context(), control.SessionLogRequest{Of: dir})
	if err != nil || len(log.Checkpoints) == 0 || log.Checkpoints[0].Head != head || log.Checkpoints[0].Branch != "main" ||
		!log.Checkpoints[0].Synced {
		t.Fatalf("session log: got error %v and %+v, want a pushed checkpoint of main", err, log)
	}
	if got := k.sh(repo, "git show "+log.Checkpoints[0].Commit+":later"); got != "later\n" {
		t.Errorf("file in the checkpoint: got %q", got)
	}
	checkpoints := log.Checkpoints[0].ID
	k.sh(dir, "git add later; git commit -qm two; git branch side/way") // no file changes
	k.until("a checkpoint of the commit was made",
		func() bool { st := k.status(dir).Session; return st.LastCheckpoint != checkpoints && !st.Dirty })
	if log, err = k.client.SessionLog(t.Context(), control.SessionLogRequest{Of: dir, Limit: 1}); err != nil ||
		log.Checkpoints[0].Head != strings.TrimSpace(k.sh(dir, "git rev-parse side/way")) {
		t.Errorf("session log after the commit and the new branch: got error %v and %+v", err, log)
	}
	k.sh(dir, "echo last > last")
	k.again() // the worker is killed and replaced
	k.sh(dir, "echo after > after")
	reply := k.unmount(dir)
	if reply.Session != before.Session || reply.Pending != 0 {
		t.Errorf("reply of unmount: got %+v", reply)
	}
	if log, err = k.client.SessionLog(t.Context(), control.SessionLogRequest{Of: before.Session, Limit: 1}); err != nil ||
		len(log.Checkpoints) != 1 || log.Checkpoints[0].Reason != "unmount" && log.Checkpoints[0].Reason != "idle" {
		t.Fatalf("session log after the unmount: got %v, %+v", err, log)
	}
	if got := k.sh(repo, "git show "+log.Checkpoints[0].Commit+":last; git show "+log.Checkpoints[0].Commit+
		":after; git fsck --no-dangling"); got != "last\nafter\n" {
		t.Errorf("file in the last checkpoint: got %q", got)
	}
	all, err := k.client.Sessions(t.Context())
	if err != nil || len(all.Sessions) != 1 || all.Sessions[0].Mounted || all.Sessions[0].State != "paused" ||
		all.Sessions[0].Checkpoints < 2 || len(all.Sessions[0].History) < 3 {
		t.Errorf("session list after the unmount: got error %v and %+v, want one paused session", err, all)
	}
	if kept, err := catalog.Unmounted(k.state); err != nil || len(kept) != 1 ||
		kept[0].Session.LastCheckpoint != log.Checkpoints[0].ID {
		t.Errorf("unmounted sessions: got error %v and %+v", err, kept)
	}
	again := k.mount(k.request(remote, dir))
	if !again.Resumed || k.sh(dir, "cat last after") != "last\nafter\n" {
		t.Errorf("reply of the next mount: got %+v", again)
	}
	k.until("all changes are in a checkpoint",
		func() bool { st := k.status(dir).Session; return st.State == "active" && !st.Dirty })
	if _, err := k.client.Unmount(t.Context(), control.UnmountRequest{Dir: dir, Discard: true}); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(filepath.Join(k.state, "mounts")); len(left) != 0 {
		t.Errorf("files after the session was discarded: got %v, want none", left)
	}
}

func TestACheckpointIsMadeBeforeGitThrowsWorkAway(t *testing.T) {
	t.Parallel()
	k := newKeep(t)
	remote := k.dir("remote")
	sample(t, remote)
	k.start()
	k.await()
	dir := k.dir("mnt")
	r := k.request(remote, dir)
	r.SessionOptions.Policy = control.PolicyBeforeRisk
	k.mount(r)
	k.sh(dir, "git checkout -q .")
	if st := k.status(dir).Session; st.Checkpoints != 0 {
		t.Errorf("status before the first change: got %+v", st)
	}
	k.sh(dir, "echo lost >> README.md; git reset -q --hard; echo lost > new; git clean -fdq; git stash list")
	log, err := k.client.SessionLog(t.Context(), control.SessionLogRequest{Of: dir})
	if err != nil || len(log.Checkpoints) != 2 || log.Checkpoints[0].Reason != "before-risk" {
		t.Fatalf("session log after reset and clean: got error %v and %+v, want two checkpoints, the last before-risk", err,
			log)
	}
	diff, err := k.client.SessionDiff(t.Context(),
		control.SessionDiffRequest{Of: dir, B: log.Checkpoints[1].ID, Patch: true, Stat: true})
	if err != nil || len(diff.Changes) != 1 || diff.Changes[0].Path != "README.md" || diff.Changes[0].Added != 1 ||
		!strings.Contains(diff.Patch, "\n+lost\n") {
		t.Errorf("diff of the first checkpoint: got error %v and %+v", err, diff)
	}
	show, err := k.client.SessionShow(t.Context(), control.SessionShowRequest{Of: dir, ID: "@"})
	if err != nil || len(show.Changes) != 2 || show.Changes[0].Status != "M" || show.Changes[1].Path != "new" ||
		show.Changes[1].Status != "A" {
		t.Errorf("show of the second checkpoint: got error %v and %+v", err, show)
	}
	k.unmount(dir)
}

func TestWorkReachesTheSessionRemote(t *testing.T) {
	t.Parallel()
	k := newKeep(t)
	remote, second, dir := k.dir("remote"), k.dir("second.git"), k.dir("mnt")
	sample(t, remote)
	k.sh("/", "git clone -q --bare "+remote+" "+second)
	k.start()
	k.await()
	r := k.request(remote, dir)
	r.SessionOptions.Remote = second
	session := k.mount(r).Session
	k.sh(dir, "echo new > new; git add new; git commit -qm one")
	head := k.sh(dir, "git rev-parse HEAD")
	k.until("the commit is on the session remote", func() bool {
		return k.sh(second, "git rev-parse --verify --quiet afs/"+session+"/main || true") == head
	})
	k.until("a checkpoint of the commit was made",
		func() bool { st := k.status(dir).Session; return st.Checkpoints > 0 && !st.Dirty })
	k.sh(dir, "echo more > more")
	p, err := k.client.Checkpoint(t.Context(), control.CheckpointRequest{Dir: dir, Message: "said", Pin: "good",
		Sync: true}, nil)
	if err != nil || !p.Synced || !p.Made || p.Reason != "manual" || len(p.Pins) != 1 {
		t.Errorf("manual checkpoint: got error %v and %+v, want a pushed one with one pin", err, p)
	}
	if got := k.sh(second, "git rev-parse refs/afs/pin/"+session+"/good; git fsck --no-dangling"); got != p.Commit+"\n" {
		t.Errorf("pin and git fsck on the session remote: got %q", got)
	}
	if st := k.status(dir).Session; st.Mode != "shared" || st.Pending != 0 || st.LastSync == nil ||
		st.SessionRemote != second {
		t.Errorf("status of the session: got %+v, want shared mode and nothing pending", st)
	}
	k.again()
	k.sh("/", "mv "+second+" "+second+".away")
	k.sh(dir, "echo late > late")
	reply, err := k.client.Unmount(t.Context(), control.UnmountRequest{Dir: dir, Timeout: -1})
	if err != nil || reply.Pending == 0 || reply.Why == "" || reply.Session != session {
		t.Errorf("unmount without the session remote: got error %v and %+v, want pending refs and the reason", err, reply)
	}
	k.sh("/", "mv "+second+".away "+second)
	r.SessionOptions.Remote = "" // the session remote of the first mount
	k.mount(r)
	k.until("everything is on the session remote", func() bool {
		st := k.status(dir).Session
		return st.LastSync != nil && st.Pending == 0 && st.SessionRemote == second
	})
	log, err := k.client.SessionLog(t.Context(), control.SessionLogRequest{Of: dir, Limit: 1})
	// The successor makes a checkpoint at once, so the unmount may find one that contains all changes.
	if err != nil || !log.Checkpoints[0].Synced || log.Checkpoints[0].Reason != "unmount" &&
		log.Checkpoints[0].Reason != "idle" {
		t.Fatalf("session log: got error %v and %+v, want a pushed checkpoint of the unmount", err, log)
	}
	if got := k.sh(second, "git show "+log.Checkpoints[0].Commit+":late"); got != "late\n" {
		t.Errorf("file in the last checkpoint: got %q", got)
	}
	if reply := k.unmount(dir); reply.Pending != 0 {
		t.Errorf("unmount with the session remote: got %+v, want nothing pending", reply)
	}
}

func TestNothingIsCarriedWhereNothingIsToBe(t *testing.T) {
	t.Parallel()
	k := newKeep(t)
	remote, dir := k.dir("remote"), k.dir("mnt")
	sample(t, remote)
	k.start()
	k.await()
	r := k.request(remote, dir)
	r.SessionOptions.Remote = control.RemoteNone
	session := k.mount(r).Session
	k.sh(dir, "echo new > new; git add new; git commit -qm one; git reset -q --hard HEAD~1")
	if _, err := k.client.Checkpoint(t.Context(), control.CheckpointRequest{Dir: dir}, nil); err == nil {
		t.Error("a checkpoint without a session remote succeeded")
	}
	if st := k.status(dir).Session; st.Mode != agent.ModeNone || st.SessionRemote != "" || st.Checkpoints != 0 {
		t.Errorf("status of a mount without a session remote: got %+v", st)
	}
	k.sh(dir, "echo more > more")
	if reply := k.unmount(dir); reply.Session != session ||
		statedir.HasSessionRepo(filepath.Join(k.state, "mounts", session)) {
		t.Errorf("unmount without a session remote: got %+v, or a session repository exists", reply)
	}
	r.SessionOptions = control.SessionOptions{Remote: control.RemoteEmbedded, Policy: control.PolicyOff}
	k.mount(r)
	k.sh(dir, "git commit -q --allow-empty -m two")
	k.checkpoint(dir)
	if st := k.status(dir).Session; st.Dirty || st.Checkpoints != 1 {
		t.Errorf("status after the checkpoint: got %+v", st)
	}
	if _, err := k.client.Unmount(t.Context(), control.UnmountRequest{Dir: dir, Discard: true}); err != nil {
		t.Fatal(err)
	}
	k.mount(r)
	k.sh(dir, "echo evenmore > more; git reset -q --hard")
	if reply := k.unmount(dir); statedir.HasSessionRepo(filepath.Join(k.state, "mounts", session)) {
		t.Errorf("unmount after a mount without a session remote: got %+v, or a session repository exists", reply)
	}
}
