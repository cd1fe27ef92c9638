package mountpoint

import (
	"errors"
	"fmt"
	"slices"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
)

// adoptable returns nil if a mount that another program has created can be served as the request r demands. Otherwise it
// returns an error that states the reason.
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

// errNotAdopted is the error that all errors of adoptable wrap.
var errNotAdopted = errors.New("inherited FUSE descriptor cannot be used")

// CheckAdopted is called instead of Prepare if another program has created the mount and passed its FUSE device to this process.
// It changes nothing. It returns an error if the mount cannot be served as r requests.
func CheckAdopted(r control.MountRequest) (Point, error) {
	mounts, err := mountinfo.Self()
	if err != nil {
		return Point{}, err
	}
	return Point{Dir: r.Dir}, adoptable(mounts, r)
}
