package bind

import (
	"testing"

	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
)

func TestBoundAt(t *testing.T) {
	const table = `20 1 0:1 / / rw - ext4 /dev/x rw
30 20 0:40 / /srv/a rw - fuse.artifactfs /r rw
31 30 8:1 /var/lib/artifactfs/mounts/w/redirect/0 /srv/a/node\040modules rw - ext4 /dev/x rw
32 30 8:1 /var/lib/artifactfs/mounts/w/redirect/1 /srv/a/moved/target rw - ext4 /dev/x rw
33 20 8:1 /var/lib/artifactfs/mounts/w/redirect/2 /elsewhere rw - ext4 /dev/x rw
34 30 8:1 /x/mounts/w2/redirect/3 /srv/a/other rw - ext4 /dev/x rw
bad line
`
	for backing, want := range map[string]string{"0": "/srv/a/node modules", "1": "/srv/a/moved/target",
		"2": "", "3": ""} {
		if at, ok := boundAt(mountinfo.Parse([]byte(table)), "/srv/a", "mounts/w/redirect/"+backing); at != want ||
			ok != (want != "") {
			t.Errorf("redirect of %s: got path %q, %v", backing, at, ok)
		}
	}
}

func TestBackingsAreReused(t *testing.T) {
	old := []statedir.Redirect{{Path: "a", Backing: "0"}, {Path: "b", Backing: "2"}}
	var taken []*redirect
	for _, c := range []struct{ path, want string }{{"b", "2"}, {"c", "1"}, {"d", "3"}, {"a", "0"}} {
		got := nextBacking(old, taken, c.path)
		if got != c.want {
			t.Errorf("directory of the redirect of %s: got %s, want %s", c.path, got, c.want)
		}
		taken = append(taken, &redirect{Redirect: statedir.Redirect{Path: c.path, Backing: got}})
	}
}
