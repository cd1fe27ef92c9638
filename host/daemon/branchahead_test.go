package daemon

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
)

// TestABranchThatIsAheadOfTheCheckpointStays checks that a mount that resumes a session does not overwrite commits on
// the session remote's branch that are newer than the newest checkpoint. This host has never had them, so they may come
// from another machine.
func TestABranchThatIsAheadOfTheCheckpointStays(t *testing.T) {
	t.Parallel()
	k := newKeep(t)
	k.start()
	k.await()
	remote, sessions := served(t)
	dir := k.dir("m")
	r := k.request(remote, dir)
	r.Session, r.SessionOptions.Policy, r.SessionOptions.Remote = "hour", control.PolicyOff, sessions
	r.SessionOptions.Base = control.BaseSeed // another user moves branches without the session's prefix there
	k.mount(r)
	k.sh(dir,
		"git config user.name a; git config user.email a@b; echo one >one; git add one; git commit -q -m one; echo secret >.env")
	p := k.checkpoint(dir)
	checkpoint := strings.TrimSpace(k.sh(dir, "git rev-parse HEAD"))
	k.unmount(dir)
	clone := k.dir("clone")
	k.sh("/", "git clone -q -b main "+sessions+" "+clone)
	k.sh(clone,
		"git config user.name b; git config user.email b@c; echo two >two; git add two; git commit -q -m two; git push -q origin HEAD:main")
	ahead := strings.TrimSpace(k.sh(clone, "git rev-parse HEAD"))

	other := newKeep(t)
	other.start()
	other.await()
	there := other.dir("m")
	r = other.request(remote, there)
	r.Session, r.Wait = "hour", control.WaitGit
	r.SessionOptions.Remote, r.SessionOptions.Policy = sessions, control.PolicyOff
	var said []string
	if _, err := other.client.Mount(t.Context(), r,
		func(p control.Progress) { said = append(said, p.Message) }); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(other.sh(there, "git rev-parse HEAD; git status --porcelain")); got != checkpoint {
		t.Errorf("HEAD and git status of the resumed session: got %s, want those of the checkpoint", got)
	}
	if show, err := other.client.SessionShow(t.Context(), control.SessionShowRequest{Of: there, ID: p.ID}); err != nil ||
		len(show.LeftOut) != 1 || show.LeftOut[0].Path != ".env" {
		t.Errorf("excluded paths of the checkpoint on the other host: got %v, %+v, want .env", err, show.LeftOut)
	}
	tells := func(notes []string) bool {
		return slices.ContainsFunc(notes, func(s string) bool { return strings.Contains(s, "git merge "+ahead[:12]) })
	}
	if !tells(said) {
		t.Errorf("mount does not report that the branch has newer commits: %q", said)
	}
	if _, err := other.client.Sync(t.Context(), control.SyncRequest{Dir: there}, nil); err != nil {
		t.Error(err)
	}
	tip := func() string { return strings.TrimSpace(k.sh(sessions, "git rev-parse main")) }
	if got := tip(); got != ahead {
		t.Errorf("main on the session remote: want %s unchanged, got %s", ahead, got)
	}
	if st := other.status(there); !tells(st.Notes) || st.Session.Pending != 0 || len(st.Session.Diverged) != 0 {
		t.Errorf("status after the take-over: got %+v with notes %q, want a note about the branch, nothing pending and no diverged ref",
			st.Session, st.Notes)
	}
	if got := k.sh(sessions, "git for-each-ref --format='%(objectname)' refs/afs/kept"); strings.TrimSpace(got) != ahead {
		t.Errorf("kept commits on the session remote: got %q", got)
	}
	// A commit that does not descend from the branch is pushed under another name and reported as diverged.
	other.sh(there, "echo three >three; git add three; git commit -q -m three")
	if reply, err := other.client.Sync(t.Context(), control.SyncRequest{Dir: there}, nil); err != nil ||
		len(reply.Session.DivergedRefs) != 1 {
		t.Errorf("sync of a branch that is pushed beside another user's: got %v, %+v, want one diverged ref", err,
			reply.Session)
	}
	if st := other.status(there).Session; len(st.Diverged) != 1 || tip() != ahead {
		t.Errorf("main on the session remote is %s; status is %+v, want one diverged ref and main unchanged", tip(), st)
	}
	other.sh(there, "git merge -q -m both "+ahead[:12]+"; cat two three")
	if _, err := other.client.Sync(t.Context(), control.SyncRequest{Dir: there}, nil); err != nil {
		t.Error(err)
	}
	if st, merged := other.status(there), strings.TrimSpace(other.sh(there, "git rev-parse HEAD")); tip() != merged ||
		len(st.Session.Diverged) != 0 || tells(st.Notes) {
		t.Errorf("main on the session remote is %s; status after the merge is %+v with notes %q, want no diverged ref and no note",
			tip(), st.Session, st.Notes)
	}
	if got :=
		strings.TrimSpace(k.sh(sessions,
			"git for-each-ref refs/afs/diverged; git fsck --no-dangling 2>/dev/null")); got != "" {
		t.Errorf("diverged refs after the merge: got %s", got)
	}
	other.unmount(there)
}

// TestABranchThatTheSessionMovedLastIsItsOwn checks a commit that the session itself pushed after its newest
// checkpoint, just before its mount was killed. The commit must not block the branch of the resumed session: it is kept
// under another name, the mount reports it, and the next commit replaces it on the branch.
func TestABranchThatTheSessionMovedLastIsItsOwn(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"a session remote", "embedded"} {
		t.Run(kind, func(t *testing.T) {
			k := newKeep(t)
			k.start()
			k.await()
			remote, sessions := served(t)
			dir := k.dir("m")
			r := k.request(remote, dir)
			r.Session, r.SessionOptions.Policy, r.SessionOptions.Remote = "hour", control.PolicyOff, sessions
			r.SessionOptions.Base = control.BaseSeed // another user moves branches without the session's prefix there
			if kind == "embedded" {
				r.SessionOptions.Remote = ""
				sessions = filepath.Join(k.state, "mounts", "hour", "session.git")
			}
			k.mount(r)
			k.sh(dir, "git config user.name a; git config user.email a@b; echo one >one; git add one; git commit -q -m one")
			k.checkpoint(dir)
			if _, err := k.client.Sync(t.Context(), control.SyncRequest{Dir: dir}, nil); err != nil {
				t.Fatal(err)
			}
			checkpoint := strings.TrimSpace(k.sh(dir, "git rev-parse HEAD"))
			k.sh(dir, "echo two >two; git add two; git commit -q -m two")
			lost := strings.TrimSpace(k.sh(dir, "git rev-parse HEAD"))
			tip := func() string { return strings.TrimSpace(k.sh("/", "git -C "+sessions+" rev-parse main")) }
			k.until("the commit is pushed", func() bool { return tip() == lost })
			k.kill()
			// a killed daemon may leave lock files, which git cannot distinguish from those of a running process
			if kind == "embedded" {
				k.sh(sessions,
					"for r in heads/main afs/carried/hour/heads/main; do test -e refs/$r.lock || ln artifactfs.lock refs/$r.lock; done")
			}

			other := newKeep(t)
			other.start()
			other.await()
			there := other.dir("m")
			r = other.request(remote, there)
			r.Session, r.Wait = "hour", control.WaitGit
			r.SessionOptions = control.SessionOptions{Remote: sessions, Policy: control.PolicyOff, TakeOver: true}
			var said []string
			if _, err := other.client.Mount(t.Context(), r,
				func(p control.Progress) { said = append(said, p.Message) }); err != nil {
				t.Fatal(err)
			}
			if got := strings.TrimSpace(other.sh(there, "git rev-parse HEAD; git status --porcelain")); got != checkpoint {
				t.Errorf("HEAD and git status of the resumed session: got %s, want those of the checkpoint", got)
			}
			if !slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, "run git show "+lost[:12]) }) {
				t.Errorf("mount does not report that the branch has newer commits: %q", said)
			}
			other.sh(there, "git show -s "+lost+"; echo three >three; git add three; git commit -q -m three")
			if _, err := other.client.Sync(t.Context(), control.SyncRequest{Dir: there}, nil); err != nil {
				t.Error(err)
			}
			three := strings.TrimSpace(other.sh(there, "git rev-parse HEAD"))
			if st := other.status(there).Session; tip() != three || len(st.Diverged) != 0 || st.Pending != 0 {
				t.Errorf("main on the session remote is %s; status is %+v, want the last commit there and nothing pending", tip(),
					st)
			}
			if kept := k.sh("/",
				"git -C "+sessions+" for-each-ref --format='%(objectname)' refs/afs/kept"); !strings.Contains(kept, lost) {
				t.Errorf("kept commits on the session remote: got %q", kept)
			}
			other.unmount(there)
			k.start()
			k.await()
			k.client.Unmount(t.Context(), control.UnmountRequest{Dir: dir}) // another machine holds its lane
		})
	}
}
