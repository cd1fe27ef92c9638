package daemon

import (
	"context"

	"github.com/artifactfs/artifactfs/control"
)

// Restore brings files back to what they were at a point.
func (d *Daemon) Restore(ctx context.Context, r control.RestoreRequest, progress func(control.Progress)) (control.RestoreReply, error) {
	return control.RestoreReply{}, explain("restore", r.Dir, errNotYet)
}
