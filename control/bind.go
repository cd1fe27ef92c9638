package control

import (
	"context"
	"path/filepath"
)

// BindRequest makes the mount at Dir, with the bind mounts below it, visible at a second directory.
type BindRequest struct {
	Dir      string `json:"dir"`                 // absolute directory of the mount
	Target   string `json:"target"`              // absolute directory; it is created if it does not exist
	ReadOnly bool   `json:"read_only,omitempty"` // nothing can be changed at Target
}

// BindReply is the reply to a BindRequest and to an UnbindRequest.
type BindReply struct {
	Target  string `json:"target"`  // absolute directory
	Changed bool   `json:"changed"` // false: Target was bound, or not bound, already
}

// UnbindRequest removes the bind mount at Target, even if it is in use, or a dead mount at Target.
type UnbindRequest struct {
	Target    string `json:"target"`               // absolute directory
	RemoveDir bool   `json:"remove_dir,omitempty"` // also remove the directory, if it is empty then
}

// Binder is a Handler that can make its mounts visible at further directories.
type Binder interface {
	Bind(ctx context.Context, r BindRequest) (BindReply, error)
	Unbind(ctx context.Context, r UnbindRequest) (BindReply, error)
}

// Bind requests that a mount is made visible at a second directory.
func (c *Client) Bind(ctx context.Context, r BindRequest) (BindReply, error) {
	return call[BindReply](ctx, c, opBind, r, nil)
}

// Unbind requests that a bind mount is removed.
func (c *Client) Unbind(ctx context.Context, r UnbindRequest) (BindReply, error) {
	return call[BindReply](ctx, c, opUnbind, r, nil)
}

func (r BindRequest) validate() error {
	if !filepath.IsAbs(r.Target) {
		return badRequest("target %q is not absolute", r.Target)
	}
	return needDir(r.Dir)
}

func (r UnbindRequest) validate() error {
	if !filepath.IsAbs(r.Target) {
		return badRequest("target %q is not absolute", r.Target)
	}
	return nil
}
