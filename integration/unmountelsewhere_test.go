package integration

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// A mount that was unmounted with umount(8), and that another mount namespace or an open file still holds, can be
// unmounted without a long wait, and its session can be mounted again at the same directory.
func TestUnmountOfAMountThatIsHeldElsewhere(t *testing.T) {
	w := newWorld(t)
	r := w.repo("held.git", object.SHA1)
	w.commit(r, map[string]gittest.File{"a": {Data: []byte("a\n")}})
	m := w.mount(w.serve(gittest.ServerOptions{}).URL("held.git"), "--wait", "git")
	check(t, os.WriteFile(m.path("mine"), []byte("mine\n"), 0o644))
	again := func(what string) {
		t.Helper()
		start := now()
		w.ok("unmount", m.Dir, "--timeout", "5s")
		if took := start.elapsed(); took > 10*time.Second {
			t.Errorf("%s: unmount took %s", what, took)
		}
		w.ok("mount", m.Remote, m.Dir, "--wait", "git")
		w.wantFile(m.path("mine"), "mine\n")
	}

	holder := exec.Command("unshare", "--mount", "sh", "-c", "echo ready; exec sleep 1000")
	out := must[io.ReadCloser](t)(holder.StdoutPipe())
	check(t, holder.Start())
	defer holder.Wait()
	defer holder.Process.Kill()
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	if r := w.afs("unmount", m.Dir); r.code == 0 || !strings.Contains(r.stderr, "--detach") {
		t.Errorf("unmount of a mount that a namespace has copied does not name --detach: %s", r)
	}
	check(t, unix.Unmount(m.Dir, 0))
	again("a copy in another namespace")

	held := must[*os.File](t)(os.Open(m.path("a")))
	defer held.Close()
	check(t, unix.Unmount(m.Dir, unix.MNT_DETACH))
	again("an open file after umount -l")
}
