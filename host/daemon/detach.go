package daemon

import (
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/host/mount"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/host/mount/takeover"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/keeper"
)

// GiveUp detaches the mounts that the descriptors belong to. The supervisor calls GiveUp when it will start no more
// workers, because then no process will serve these mounts. For each mount that was served, GiveUp records reason as
// the cause of the failure, which later status requests show. Overlays and sessions remain in the state directory.
// GiveUp continues after an error, and returns all errors joined.
func GiveUp(state string, descriptors []keeper.Descriptor, reason string, log *zap.Logger) error {
	var errs []error
	f := statedir.Failures{State: state, Log: log}
	for _, in := range takeover.Inherit(descriptors) {
		h, err := in.State()
		if err != nil {
			errs = append(errs, fmt.Errorf("abandon mount %s: %w", in.Key, err))
			continue
		}
		if h.Phase == takeover.Served {
			f.Add(mount.FailureOf(h, errors.New(reason)))
		}
		if err := mountpoint.DetachAt(h.Dir); err != nil {
			errs = append(errs, fmt.Errorf("detach %s: %w", h.Dir, err))
		}
		if lock := in.Take(takeover.PartLock); lock != nil {
			disk.Unlock(lock)
		}
		in.Close()
		p := mountpoint.Point{Dir: h.Dir, Created: h.Made}
		p.Remove()
	}
	return errors.Join(errs...)
}
