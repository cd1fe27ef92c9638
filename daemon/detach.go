package daemon

import (
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/keeper"
	"github.com/artifactfs/artifactfs/mount/mountpoint"
	"github.com/artifactfs/artifactfs/statedir"
)

// GiveUp detaches everything that processes have kept which cannot be followed by another, so that no mount is left
// without anybody behind it, and notes the reason for those who look. The work stays where it is.
func GiveUp(state string, kept []keeper.Kept, reason string, log *zap.Logger) error {
	var errs []error
	f := statedir.Failures{State: state, Log: log}
	for _, in := range inherited(kept) {
		s, err := openStateFile(in.files[partState])
		if err != nil {
			errs = append(errs, fmt.Errorf("abandon mount %s: %w", in.key, err))
			continue
		}
		h := s.get()
		if h.Phase == phaseServed {
			f.Add(failureOf(h, errors.New(reason)))
		}
		if err := mountpoint.DetachAt(h.Dir); err != nil {
			errs = append(errs, fmt.Errorf("detach %s: %w", h.Dir, err))
		}
		if lock := in.files[partLock]; lock != nil {
			disk.Unlock(lock)
			delete(in.files, partLock)
		}
		in.close()
		p := mountpoint.Point{Dir: h.Dir, Created: h.Made}
		p.Remove()
	}
	return errors.Join(errs...)
}

// mounted says whether the kernel has the mount.
func (m *mount) mounted() bool {
	_, err := mountpoint.DeviceOf(m.dir)
	return err == nil
}
