package daemon

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
)

// An adopted mount was made by somebody who may mount, and is served by this process, which may not: a container's runtime
// opens /dev/fuse, mounts, and leaves the descriptor to the container. Until it is served, whoever touches the directory
// waits, so it is only looked up in the table of mounts.

// adoptable says why a mount made by somebody else cannot be served.
func adoptable(mounts mountinfo.Table, r control.MountRequest) error {
	found, ok := mounts.At(r.Dir)
	if !ok || found.Type != fuseType {
		return fmt.Errorf("%w: nothing of the type %s is mounted there", errNotAdopted, fuseType)
	}
	switch readOnly := slices.Contains(found.Options, "ro"); {
	case !slices.Contains(found.Super, "default_permissions"):
		return fmt.Errorf("%w: it is mounted without default_permissions, so file modes would not be checked", errNotAdopted)
	case r.ReadOnly && !readOnly:
		return fmt.Errorf("%w: it is not mounted read-only", errNotAdopted)
	case !r.ReadOnly && readOnly:
		return fmt.Errorf("%w: it is mounted read-only, and --read-only was not given", errNotAdopted)
	}
	return nil
}

var errNotAdopted = errors.New("the descriptor cannot be used")

// prepareAdopted is prepareMountpoint for one.
func prepareAdopted(r control.MountRequest) (mountpoint, error) {
	mounts, err := mountinfo.Self()
	if err != nil {
		return mountpoint{}, err
	}
	return mountpoint{dir: r.Dir}, adoptable(mounts, r)
}

// foreign says that the mount is one that only somebody else can unmount.
func (m *mount) foreign() bool { return m.request.Device != nil && !mayBind() }

// leaveForeign has the kernel write what it holds. The mount is dead when this process ends, and stays until it is unmounted.
func (m *mount) leaveForeign(force bool) error {
	if !force {
		return &control.Error{Code: control.ExitFailed, Verb: "unmount", Object: m.dir, Cause: "only the program that mounted it may unmount it",
			Hint: fmt.Sprintf("kill %d ends the process that serves it, after its work is settled", os.Getpid())}
	}
	m.flush()
	return nil
}
