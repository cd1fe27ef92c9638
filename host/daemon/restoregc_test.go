package daemon

import (
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
)

// TestWhatWasRestoredOutlivesItsCheckpoint checks that restored files and directories can be read from the objects of a
// checkpoint even after gc has dropped the checkpoint.
func TestWhatWasRestoredOutlivesItsCheckpoint(t *testing.T) {
	t.Parallel()
	k := newKeep(t)
	remote, dir := k.dir("remote"), k.dir("mnt")
	sample(t, remote)
	k.start()
	k.await()
	r := k.request(remote, dir)
	r.SessionOptions.Policy = control.PolicyOff
	k.mount(r)
	k.sh(dir, "mkdir -p d/deep; for i in 1 2 3 4; do echo $i >d/$i; echo $i >d/deep/$i; done; echo one >a; echo one >b")
	old := k.checkpoint(dir)
	k.sh(dir, "rm -r d; echo two >a; echo two >b")
	k.checkpoint(dir)
	if _, err := k.client.Restore(t.Context(), control.RestoreRequest{Dir: dir, ID: old.ID}, nil); err != nil {
		t.Fatal(err)
	}
	k.sh(dir, "echo changed >d/1; echo changed >d/deep/1; rm d/2; echo three >a")
	k.checkpoint(dir)
	gc, err := k.client.SessionGC(t.Context(), control.SessionGCRequest{Of: dir, All: time.Millisecond,
		Daily: time.Millisecond}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", gc)
	k.kill()
	k.start()
	k.await()
	if got := k.sh(dir,
		"cat a b d/[0-9] d/deep/*; git status --porcelain; git fsck --no-dangling"); got != "three\none\nchanged\n3\n4\nchanged\n2\n3\n4\n?? a\n?? b\n?? d/\n" {
		t.Errorf("files after the restore and gc: got %s", got)
	}
	k.sh(dir, "git -C "+k.state+"/mounts/*/session.git fsck --strict --no-dangling")
	k.unmount(dir)
}
