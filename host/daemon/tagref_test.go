package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
)

// TestATagComesWithItsCheckpoint checks that a resumed session has every tag that its checkpoint names, even if the ref
// of the tag was never pushed: the tag object is stored with the checkpoint.
func TestATagComesWithItsCheckpoint(t *testing.T) {
	t.Parallel()
	k := newKeep(t)
	k.start()
	k.await()
	remote, sessions := served(t)
	hook := "#!/bin/sh\ncase $1 in *tags/*) echo no tags; exit 1;; esac\n"
	if err := os.WriteFile(filepath.Join(sessions, "hooks/update"), []byte(hook), 0o755); err != nil {
		t.Fatal(err)
	}
	dir := k.dir("m")
	r := k.request(remote, dir)
	r.Session, r.SessionOptions.Policy, r.SessionOptions.Remote = "hour", control.PolicyOff, sessions
	r.SessionOptions.Base = control.BaseSeed // another user moves branches without the session's prefix there
	k.mount(r)
	k.sh(dir,
		"git config user.name a; git config user.email a@b; echo one >one; git add one; git commit -q -m one; git tag -a -m mine v1; git commit -q --allow-empty -m two; git tag -a -m other v2; git reset -q --soft v1; git tag -a -m tags v3 v2")
	const look = "git for-each-ref --format='%(refname) %(objectname) %(objecttype) %(*objectname)' refs/heads refs/tags; git cat-file tag v3; git log --oneline v2"
	before := k.sh(dir, look)
	p, err := k.client.Checkpoint(t.Context(), control.CheckpointRequest{Dir: dir, Sync: true}, nil)
	if err != nil && p.ID == "" {
		t.Logf("%v", err) // an error is expected, because the session remote refuses tags
	}
	k.until("the checkpoint is pushed",
		func() bool { return k.sh(sessions, "git for-each-ref refs/afs/j refs/heads") != "" })
	if got := k.sh(sessions, "git for-each-ref refs/tags"); got != "" {
		t.Fatalf("the session remote accepted tags: %s", got)
	}
	k.kill()
	// removes objects that were sent with the refused tags
	k.sh(sessions, "git repack -q -a -d; git prune --expire=now")

	other := newKeep(t)
	other.start()
	other.await()
	there := other.dir("m")
	r = other.request(remote, there)
	r.Session, r.Wait = "hour", control.WaitGit
	r.SessionOptions = control.SessionOptions{Remote: sessions, Policy: control.PolicyOff, TakeOver: true}
	other.mount(r)
	if after := other.sh(there, look); after != before {
		t.Errorf("tags of the resumed session:\n%s\nwant\n%s", after, before)
	}
	other.sh(there,
		"git config user.name a; git config user.email a@b; git commit -q --allow-empty -m three; git fsck --connectivity-only")
	head := strings.TrimSpace(other.sh(there, "git rev-parse HEAD"))
	if err := os.Remove(filepath.Join(sessions, "hooks/update")); err != nil {
		t.Fatal(err)
	}
	if _, err := other.client.Sync(t.Context(), control.SyncRequest{Dir: there}, nil); err != nil {
		t.Error(err)
	}
	if got :=
		strings.TrimSpace(k.sh(sessions,
			"git rev-parse main v1^{tag} v2^{tag} v3^{tag} && git fsck --no-dangling")); !strings.HasPrefix(got, head) {
		t.Errorf("tags on the session remote: got %s", got)
	}
	other.unmount(there)
	k.start()
	k.await()
	k.client.Unmount(t.Context(), control.UnmountRequest{Dir: dir}) // another machine holds its lane
}
