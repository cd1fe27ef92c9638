package daemon

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/mount/bind"
)

var _ control.Binder = (*Daemon)(nil)

// Bind makes a mount visible at a second directory. When the mount is unmounted, the second directory must have been unbound.
func (d *Daemon) Bind(_ context.Context, r control.BindRequest) (control.BindReply, error) {
	m, err := d.servedMount("bind", r.Dir)
	if err != nil {
		return control.BindReply{}, err
	}
	target := filepath.Clean(r.Target)
	if _, inside := d.find(target); inside {
		return control.BindReply{}, &control.Error{Code: control.ExitUsage, Verb: "bind", Object: target, Cause: "directory is inside a mount"}
	}
	if err := os.MkdirAll(target, 0o755); err != nil {
		return control.BindReply{}, fault.Explain("bind", target, err)
	}
	changed, err := bind.Second(m.Dir, target, r.ReadOnly)
	if err != nil {
		return control.BindReply{}, fault.Explain("bind", target, err)
	}
	return control.BindReply{Target: target, Changed: changed}, nil
}

// Unbind removes a bind mount that Bind has made.
func (d *Daemon) Unbind(_ context.Context, r control.UnbindRequest) (control.BindReply, error) {
	target := filepath.Clean(r.Target)
	if m, ok := d.find(target); ok && m.Dir == target {
		return control.BindReply{}, &control.Error{Code: control.ExitUsage, Verb: "unbind", Object: target,
			Cause: "directory has the mount itself, not a second one", Hint: "run artifactfs unmount " + target}
	}
	changed, err := bind.RemoveSecond(target)
	if err != nil {
		return control.BindReply{}, fault.Explain("unbind", target, err)
	}
	if r.RemoveDir {
		if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return control.BindReply{}, fault.Explain("remove", target, err)
		}
	}
	return control.BindReply{Target: target, Changed: changed}, nil
}
