package attach

import (
	"fmt"
	"os"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
)

// The client that requests a mount may pass an open descriptor of /dev/fuse (control.MountRequest.Device). Then another
// program, for example a container runtime, has already called mount(2) with its own privileges. This process may lack
// those privileges, and serves a mount that it has not created. Until the mount is served, every access to its
// directory blocks in the kernel. Therefore this process looks the directory up in the mount table and does not open
// it.

// Foreign reports whether another program has created the mount, and this process lacks the privilege to unmount it.
func (a *Attachment) Foreign() bool { return a.of.Request.Device != nil && !mountpoint.MayBind() }

// prepareForeignEnd prepares the end of a mount that this process lacks the privilege to unmount. If force is false, it
// returns an error and changes nothing. If force is true, it makes the kernel write its cached changes and returns nil.
// After this process has ended, every access to the mount fails until another program unmounts it.
func (a *Attachment) prepareForeignEnd(force bool) error {
	if !force {
		return &control.Error{Code: control.ExitFailed, Verb: "unmount", Object: a.of.Dir,
			Cause: "only the program that created the mount may unmount it",
			Hint:  fmt.Sprintf("run kill %d to end the process that serves the mount, after its work is written", os.Getpid())}
	}
	mountpoint.Flush(a.of.Dir, a.of.Log)
	return nil
}
