package daemon

import (
	"fmt"
	"os"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/mount/mountpoint"
)

// The caller of a mount request may pass an open descriptor of /dev/fuse (control.MountRequest.Device). Then another program,
// such as the runtime of a container, has called mount(2) with its own privileges, and this process, which may lack them, only
// serves the mount. Until the mount is served, every access to its directory blocks in the kernel. Therefore the directory is
// only looked up in the mount table, and never opened.

// foreign reports whether another program made the mount and this process may not unmount it.
func (m *mount) foreign() bool { return m.request.Device != nil && !mountpoint.MayBind() }

// leaveForeign ends the service of a mount that this process may not unmount. Without force it returns an error and changes
// nothing. With force it makes the kernel write its cached changes. The mount fails every access once this process has ended,
// until it is unmounted.
func (m *mount) leaveForeign(force bool) error {
	if !force {
		return &control.Error{Code: control.ExitFailed, Verb: "unmount", Object: m.dir, Cause: "only the program that mounted it may unmount it",
			Hint: fmt.Sprintf("kill %d ends the process that serves it, after its work is settled", os.Getpid())}
	}
	m.flush()
	return nil
}
