package mountpoint

import (
	"errors"
	"fmt"
	"slices"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
)

// adoptable returns nil if the mount that another program has created at r.Dir can be served as the request r demands,
// and the reason as an error otherwise.
func adoptable(mounts mountinfo.Table, r control.MountRequest) error {
	found, ok := mounts.At(r.Dir)
	if !ok || found.Type != FUSEType {
		return fmt.Errorf("%w: no file system of type %s is mounted there", errNotAdopted, FUSEType)
	}
	switch readOnly := slices.Contains(found.Options, "ro"); {
	case !slices.Contains(found.Super, "default_permissions"):
		return fmt.Errorf("%w: mounted without default_permissions, so the kernel would not check file modes", errNotAdopted)
	case r.ReadOnly && !readOnly:
		return fmt.Errorf("%w: not mounted read-only, although --read-only was given", errNotAdopted)
	case !r.ReadOnly && readOnly:
		return fmt.Errorf("%w: mounted read-only, although --read-only was not given", errNotAdopted)
	}
	return nil
}

// errNotAdopted means that a mount that another program has created cannot be served as the request demands.
var errNotAdopted = errors.New("inherited FUSE descriptor cannot be used")

// CheckAdopted checks whether the mount at r.Dir, which another program has created, can be served as r demands. It is
// called instead of Prepare if that program has passed its FUSE device to this process. It changes nothing.
func CheckAdopted(r control.MountRequest) (Point, error) {
	mounts, err := mountinfo.Self()
	if err != nil {
		return Point{}, err
	}
	return Point{Dir: r.Dir}, adoptable(mounts, r)
}
