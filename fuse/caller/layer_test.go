package caller

import (
	"os"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/internal/mountinfo"
	"golang.org/x/sys/unix"
)

func TestLayered(t *testing.T) {
	const head = "20 1 8:1 / / rw - ext4 /dev/x rw\n30 20 0:40 / /srv/a rw - fuse.artifactfs /r rw\n31 20 0:40 / /srv/again rw - fuse.artifactfs /r rw\n"
	for lower, want := range map[string]bool{
		"": false, "lowerdir=/srv/a": true, "lowerdir=/srv/a/sub": true, "lowerdir=/srv/again/": true, "lowerdir=/srv": false,
		"lowerdir=/var/one:/srv/a": true, "lowerdir=/srv/ab": false, "lowerdir+=/srv/a": true, "lowerdir=relative": true,
		"upperdir=/srv/a": false,
	} {
		table := mountinfo.Parse([]byte(head + "40 20 0:50 / /merged rw - overlay overlay rw," + lower + ",workdir=/w\n"))
		if got := layered(table, unix.Mkdev(0, 40)); got != want {
			t.Errorf("overlay with %q: got %v, want %v", lower, got, want)
		}
	}
	plain := mountinfo.Parse([]byte(strings.ReplaceAll(head, "fuse.artifactfs", "overlay")))
	if layered(plain, unix.Mkdev(0, 41)) {
		t.Error("overlays without layers count as layers")
	}
}

// A thread that is in no call, or whose working directory is in the file system, uses it directly.
func TestOnLayer(t *testing.T) {
	var st unix.Stat_t
	if err := unix.Stat(".", &st); err != nil {
		t.Fatal(err)
	}
	if OnLayer(uint32(os.Getpid()), func() uint64 { return st.Dev }) {
		t.Error("this process is on a layer over its working directory")
	}
}
