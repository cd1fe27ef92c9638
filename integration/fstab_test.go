package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// helpers puts the helpers where mount(8) looks for them, and a file over /etc/fstab, in a mount namespace that ends
// with the script. The script runs in that namespace.
const helpers = `
exec unshare --mount --propagation private sh -euc '
root=$1 AFS=$2 URL=$3; shift 3
mkdir $root/tmpfs; mount -t tmpfs tmpfs $root/tmpfs; mkdir $root/tmpfs/u $root/tmpfs/w
sbin=$(readlink -f /sbin)
mount -t overlay overlay -o lowerdir=$sbin,upperdir=$root/tmpfs/u,workdir=$root/tmpfs/w $sbin
ln -s $AFS $sbin/mount.fuse.artifactfs; ln -s $AFS $sbin/umount.fuse.artifactfs
mkdir -p $root/a $root/b
is() { grep -q " $1 fuse.artifactfs " /proc/self/mounts; }
fail() { echo "failed: $*" >&2; exit 99; }
eval "$(cat)"
' sh "$@"`

// inNamespace runs a script as root of a host that has the helpers installed, and a daemon's mounts.
func (w *world) inNamespace(url, script string) result {
	w.Helper()
	file := filepath.Join(w.root, "script")
	w.check(os.WriteFile(file, []byte(script+"\nartifactfs unmount --all\n"), 0o644))
	return w.script("exec <"+file+"\n"+helpers, w.root, binary, url)
}

func TestMountHelper(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("fstab"))
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	for name, script := range map[string]string{
		"mount, umount": `
			out=$(mount -t fuse.artifactfs $URL $root/a -o prefetch=none,session=s1,x-foo=1,redirect=out)
			[ -z "$out" ] || fail "it says $out"
			is $root/a || fail mounted
			echo new >$root/a/new
			umount $root/a
			! is $root/a || fail umount
			mount -t fuse.artifactfs $URL $root/b -o session=s1,noexec,ro
			[ "$(cat $root/b/new)" = new ] || fail "the session"
			grep " $root/b fuse.artifactfs ro,.*noexec" /proc/self/mounts >/dev/null || fail options
			! touch $root/b/x 2>/dev/null || fail read-only
			umount $root/b`,
		"redirected directories go with the mount": `
			mount -t fuse.artifactfs $URL $root/a -o _netdev,redirect=out
			mkdir $root/a/out; echo x >$root/a/out/x
			umount $root/a || fail umount
			! is $root/a || fail "still there"`,
		"mount right behind umount": `
			for i in 1 2 3 4 5; do
				mount -t fuse.artifactfs $URL $root/a || fail "mount $i"
				umount -i $root/a || fail "umount $i"
			done`,
		"fstab": `
			printf "%s %s fuse.artifactfs _netdev,nofail,user,exec,session=f 0 0\n%s %s fuse.artifactfs nofail,noauto 0 0\n" $URL $root/a $URL $root/b >$root/fstab
			touch /etc/fstab; mount --bind $root/fstab /etc/fstab
			mount $root/a; is $root/a || fail "mount DIR"
			umount $root/a; ! is $root/a || fail "umount DIR"
			mount -a; is $root/a || fail "mount -a"
			! is $root/b || fail noauto
			mount -a || fail "mount -a once more"
			(cd $root/a; ! umount $root/a 2>$root/err) || fail "busy"
			is $root/a || fail "busy, and unmounted"
			grep -q "in use" $root/err || fail "$(cat $root/err)"
			umount -l $root/a; ! is $root/a || fail "umount -l"`,
		"token of a file, other state": `
			mount -t fuse.artifactfs $URL $root/a -o state=$root/other
			[ -d $root/other/mounts ] || fail state
			umount $root/a; ! is $root/a || fail umount
			artifactfs --state $root/other unmount --all`,
	} {
		t.Run(name, func(t *testing.T) {
			w := w.in(t)
			if r := w.inNamespace(url, script); r.code != 0 {
				t.Error(r)
			}
			w.ok("unmount", "--all")
			for _, dir := range []string{"tmpfs", "a", "b", "fstab", "other"} {
				os.RemoveAll(filepath.Join(w.root, dir))
			}
		})
	}
}

// in returns the world with another test, that of a subtest.
func (w *world) in(t testing.TB) *world {
	c := *w
	c.TB = t
	return &c
}

func TestMountHelperFails(t *testing.T) {
	w := newWorld(t)
	for args, want := range map[string]struct {
		code   int
		stderr string
	}{
		"-o nonsense=1":         {1, `unknown option "nonsense"`},
		"-o remount,ro":         {1, "options of a mount cannot be changed"},
		"-o prefetch=nonsense":  {1, "must be one of auto|all|none"},
		"":                      {32, "remote unreachable"},
		"-f":                    {0, ""},
		"-s -o nonsense=1 -f":   {0, ""},
		"-o ref=x,timeout=soon": {1, "invalid duration"},
	} {
		r :=
			w.script(`AFS=$1 dir=$2; shift 2; ln -sf $AFS ./mount.fuse.artifactfs; exec ./mount.fuse.artifactfs http://127.0.0.1:1/x.git $dir "$@"`,
				append([]string{binary, w.place("m")}, strings.Fields(args)...)...)
		if r.code != want.code || !strings.Contains(r.stderr, want.stderr) || r.stdout != "" {
			t.Errorf("%s: got %s, want exit code %d, nothing on stdout, and on stderr %q", args, r, want.code, want.stderr)
		}
	}
	if r := w.afs("unmount", w.place("m")); r.code != control.ExitNotMounted {
		t.Error(r)
	}
}
