package mountpoint

import (
	"errors"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
)

func TestAdoptable(t *testing.T) {
	line := func(dir, mount, kind, super string) string {
		return "51 27 0:44 / " + dir + " " + mount + " shared:3 - " + kind + " src " + super + "\n"
	}
	const super = "rw,user_id=0,group_id=0,default_permissions,allow_other"
	for name, c := range map[string]struct {
		table    string
		readOnly bool
		ok       bool
	}{
		"as it should be":            {line("/w", "rw,nosuid", FUSEType, super), false, true},
		"read-only":                  {line("/w", "ro,nosuid", FUSEType, super), true, true},
		"the last one is seen":       {line("/w", "rw", "ext4", "rw") + line("/w", "rw", FUSEType, super), false, true},
		"nothing there":              {line("/x", "rw", FUSEType, super), false, false},
		"another type":               {line("/w", "rw", "fuse.other", super), false, false},
		"hidden":                     {line("/w", "rw", FUSEType, super) + line("/w", "rw", "tmpfs", "rw"), false, false},
		"nobody checks modes":        {line("/w", "rw", FUSEType, "rw,user_id=0"), false, false},
		"writable, asked otherwise":  {line("/w", "rw", FUSEType, super), true, false},
		"read-only, asked otherwise": {line("/w", "ro", FUSEType, super), false, false},
		"a broken table":             {"x y - z\n51 27 0:44 / /w\n", false, false},
	} {
		err := adoptable(mountinfo.Parse([]byte(c.table)), control.MountRequest{Dir: "/w", ReadOnly: c.readOnly})
		if (err == nil) != c.ok || err != nil && !errors.Is(err, errNotAdopted) {
			t.Errorf("adopt a mount, case %q: got %v", name, err)
		}
	}
}
