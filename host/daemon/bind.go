package daemon

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/mount/bind"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
)

// mountSecond bind-mounts the existing mount r.Second at the directory r.Dir. The bind mount must be unmounted before
// the mount itself is unmounted.
func mountSecond(d *Daemon, r control.MountRequest) (control.MountReply, error) {
	m, err := d.servedMount("mount", r.Second)
	if err != nil {
		return control.MountReply{}, err
	}
	target := filepath.Clean(r.Dir)
	if _, inside := d.find(target); inside {
		return control.MountReply{}, fault.Explain("mount", target, mountpoint.ErrInside)
	}
	if err := os.MkdirAll(target, 0o755); err != nil {
		return control.MountReply{}, fault.Explain("mount", target, err)
	}
	if err := bind.Second(m.Dir, target, r.ReadOnly); err != nil {
		return control.MountReply{}, fault.Explain("mount", target, err)
	}
	return control.MountReply{ID: m.ID, Dir: target, Session: m.Session}, nil
}

// unmountOther removes what is at r.Dir if no mount of the daemon is there: a bind mount that mountSecond has made, a
// dead mount, or the record of a failed mount. If there is nothing to remove, it fails, unless the request is to remove
// the directory.
func unmountOther(ctx context.Context, d *Daemon, r control.UnmountRequest) (control.UnmountReply, error) {
	dir := filepath.Clean(r.Dir)
	removed := d.host.Failures.Forget(dir, nil)
	second, err := bind.RemoveSecond(dir, func(dir string) bool {
		m, ok := d.find(dir)
		return ok && m.Dir == dir
	})
	if err == nil {
		var dead bool // whether a dead mount was removed: a daemon and its descriptor store had ended together
		dead, err = mountpoint.RemoveDead(ctx, dir)
		removed = removed || second || dead
	}
	switch {
	case err != nil:
		return control.UnmountReply{}, fault.Explain("unmount", r.Dir, err)
	case !removed && !r.RemoveDir:
		return control.UnmountReply{}, fault.NotMounted("unmount", r.Dir)
	}
	return control.UnmountReply{Dir: dir}, removeDir(r)
}

// removeDir removes the directory r.Dir, from which a mount was removed, if the request demands that.
func removeDir(r control.UnmountRequest) error {
	if !r.RemoveDir {
		return nil
	}
	if err := os.Remove(r.Dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.Explain("remove", r.Dir, err)
	}
	return nil
}
