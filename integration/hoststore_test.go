package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// guestBox runs a script in a container that sees the system's programs, the network, /dev/fuse, and two directories of
// the host: the store of one remote and the cache of contents. Both are read-only.
const guestBox = `
exec unshare --mount --pid --fork --kill-child --propagation private sh -euc '
state=$1 store=$2 program=$3 script=$4
root=$(mktemp -d)
mount -t tmpfs tmpfs $root
cp "$script" $root/script; cp "$program" $root/artifactfs
cd $root
for d in usr bin sbin lib lib64; do
	if [ -L /$d ]; then cp -a /$d .; elif [ -d /$d ]; then mkdir $d; mount --rbind -o ro /$d $d; fi
done
mkdir -p proc dev tmp etc work old host/blobs host/stores/$store
mount -t proc proc proc
for n in null urandom zero fuse; do touch dev/$n; mount --bind /dev/$n dev/$n; done
echo "root:x:0:0::/:/bin/sh" >etc/passwd
mount --bind "$state/blobs" host/blobs
mount --bind "$state/stores/$store" host/stores/$store
for d in host/blobs host/stores/$store; do mount -o remount,bind,ro $d; done
pivot_root . old; umount -l /old; rmdir /old
cd /
exec env -i PATH=/:/usr/bin:/bin:/usr/sbin:/sbin HOME=/tmp LC_ALL=C GIT_CONFIG_NOSYSTEM=1 sh -c "exec 2>&1; . /script"
' sh "$@"`

// inGuest runs a script in a container of the host w that sees the store of the remote url.
func (w *world) inGuest(url, name, script string) result {
	w.Helper()
	file := filepath.Join(w.root, name)
	w.check(os.WriteFile(file, []byte(script), 0o644))
	return w.script(guestBox, w.state, statedir.StoreName(url), binary, file)
}

// guestReads is a script that mounts $1 in a fresh state directory, reads everything, and prints the checksum of all
// files and of the history.
const guestReads = `set -e
export ARTIFACTFS_STATE=/tmp/state$$.$2
artifactfs mount "$1" /work --store-from /host --wait all --history full --prefetch all >/dev/null
cd /work
find . -name .git -prune -o -type f -print | LC_ALL=C sort | xargs cksum | cksum
git status --porcelain; git log -p | cksum; git rev-list --count --all
cd /
artifactfs unmount /work >/dev/null 2>&1
`

// A daemon in a container reads commits, trees and contents from the host, whose directories it cannot change, and asks
// the remote for refs alone.
func TestGuestReadsTheStoreOfItsHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.history("app.git")
	server := w.serve(gittest.ServerOptions{})
	url := server.URL("app.git")
	w.mount(url, "--wait", "all", "--prefetch", "all", "--history", "full")
	host := w.mount(url, "--wait", "git")
	w.git(host.Dir, "log", "-p") // git has the old contents in packs
	clone := w.clone(url)
	want := w.script(`cd "$1"; find . -name .git -prune -o -type f -print | LC_ALL=C sort | xargs cksum | cksum
		git status --porcelain; git log -p | cksum; git rev-list --count --all`, clone)
	server.forget()

	got := w.inGuest(url, "guest", "set -- "+url+" 0\n"+guestReads+`
		! touch /host/blobs/x 2>/dev/null || echo "the host's directory can be written"`)
	if got.code != 0 || got.stdout != want.stdout {
		t.Errorf("guest: got (%d)\n%s%s\nwant\n%s", got.code, got.stdout, got.stderr, want.stdout)
	}
	for _, r := range server.Log().Fetches() {
		t.Errorf("request of the guest for objects: got %d wants, filter %q, %d blobs; want none", len(r.Wants),
			r.Filter, r.Blobs)
	}
	requests := len(server.Log().Requests())
	t.Logf("requests of the guest: %d", requests)
	if requests == 0 {
		t.Error("the guest has sent no request, so another process has served the mount")
	}

	// Without the directory of the host, the same work needs the objects.
	server.forget()
	alone := w.inGuest(url, "alone", "set -- "+url+" 0\n"+strings.ReplaceAll(guestReads, " --store-from /host", ""))
	if alone.stdout != want.stdout || len(server.Log().Fetches()) == 0 {
		t.Errorf("guest without its host: got (%d)\n%s\nwant\n%s\nand requests for objects", alone.code,
			alone.stdout, want.stdout)
	}
}

// While guests read, the host evicts contents, joins packs, and its daemon is killed: no read fails.
func TestHostChangesWhileGuestsRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.history("app.git")
	url := w.serve(gittest.ServerOptions{}).URL("app.git")
	host := w.mount(url, "--wait", "all", "--prefetch", "all", "--history", "full")
	clone := w.clone(url)
	want := w.script(`cd "$1"; find . -name .git -prune -o -type f -print | LC_ALL=C sort | xargs cksum | cksum
		git status --porcelain; git log -p | cksum; git rev-list --count --all`, clone)
	stop, kills := make(chan struct{}), 0
	var changes sync.WaitGroup
	changes.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			w.script(`artifactfs cache gc --quota 0 >/dev/null; cd "$1" && git log -p -1 HEAD~$2 >/dev/null; cat d*/sub/* >/dev/null`,
				host.Dir, fmt.Sprint(i%4))
			if i%2 == 1 {
				syscall.Kill(w.serving(), syscall.SIGKILL)
				kills++
			}
		}
	})
	for i := range 3 {
		got := w.inGuest(url, fmt.Sprintf("guest%d", i), "set -- "+url+" 0\n"+guestReads)
		if got.code != 0 || got.stdout != want.stdout {
			t.Errorf("guest %d: got (%d)\n%s%s\nwant\n%s", i, got.code, got.stdout, got.stderr, want.stdout)
		}
	}
	close(stop)
	changes.Wait()
	t.Logf("daemon of the host killed %d times", kills)
	if kills == 0 {
		t.Error("the daemon of the host was never killed")
	}
}
