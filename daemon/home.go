package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// Every mount has a directory below mounts/ for as long as it lives. A lock in it says that its process does: what
// a killed process left is removed by the next one that starts. mounts.lock keeps a directory that is just being
// made from looking like that.

func (d *Daemon) homes() string { return filepath.Join(d.state, "mounts") }

func (d *Daemon) lockHomes() (unlock func(), err error) {
	return disk.Lock(filepath.Join(d.state, "mounts.lock"))
}

// makeHome makes a mount's own directory. unlock gives it up.
func (d *Daemon) makeHome(dir string) (unlock func(), err error) {
	release, err := d.lockHomes()
	if err != nil {
		return nil, fmt.Errorf("make mount's directory: %w", err)
	}
	defer release()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make mount's directory: %w", err)
	}
	if unlock, err = disk.TryLock(filepath.Join(dir, "lock")); err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("make mount's directory: %w", err)
	}
	return unlock, nil
}

// removeLeftovers removes the directories of mounts whose process is gone.
func (d *Daemon) removeLeftovers() error {
	release, err := d.lockHomes()
	if err != nil {
		return err
	}
	defer release()
	homes, err := os.ReadDir(d.homes())
	if err != nil {
		return err
	}
	for _, h := range homes {
		dir := filepath.Join(d.homes(), h.Name())
		unlock, err := disk.TryLock(filepath.Join(dir, "lock"))
		if errors.Is(err, disk.ErrLocked) {
			continue
		}
		if err == nil {
			err = os.RemoveAll(dir)
			unlock()
		}
		if err != nil {
			d.log.Warn("remove what a mount left", zap.String("path", dir), zap.Error(err))
			continue
		}
		d.log.Info("removed what a killed process left", zap.String("path", dir))
	}
	return nil
}
