package daemon

import (
	"fmt"
	"os"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/mount/mountpoint"
)

// An adopted mount was made by somebody who may mount, and is served by this process, which may not: a container's runtime
// opens /dev/fuse, mounts, and leaves the descriptor to the container. Until it is served, whoever touches the directory
// waits, so it is only looked up in the table of mounts.

// foreign says that the mount is one that only somebody else can unmount.
func (m *mount) foreign() bool { return m.request.Device != nil && !mountpoint.MayBind() }

// leaveForeign has the kernel write what it holds. The mount is dead when this process ends, and stays until it is unmounted.
func (m *mount) leaveForeign(force bool) error {
	if !force {
		return &control.Error{Code: control.ExitFailed, Verb: "unmount", Object: m.dir, Cause: "only the program that mounted it may unmount it",
			Hint: fmt.Sprintf("kill %d ends the process that serves it, after its work is settled", os.Getpid())}
	}
	m.flush()
	return nil
}
