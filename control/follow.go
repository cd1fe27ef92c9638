package control

import (
	"context"
	"path/filepath"
	"time"
)

// Refresher is a Handler that can move a mount to the newest commit of its remote.
type Refresher interface {
	// Refresh fetches the mounted branch, and moves a mount that follows it.
	Refresh(ctx context.Context, r RefreshRequest, progress func(Progress)) (RefreshReply, error)
}

// RefreshRequest asks to fetch the mounted branch from the remote. A mount that follows it moves
// there.
type RefreshRequest struct {
	Dir string `json:"dir"` // absolute mount directory
}

// RefreshReply is the output of `refresh --json`.
type RefreshReply struct {
	Dir     string `json:"dir"`
	Branch  string `json:"branch"`
	From    string `json:"from"`             // commit that the mount was at
	To      string `json:"to"`               // commit of the branch on the remote
	Follows bool   `json:"follows"`          // the mount follows the branch
	Moved   bool   `json:"moved"`            // the mount has moved to To
	Paths   int64  `json:"paths"`            // that were changed
	Why     string `json:"why,omitempty"`    // why a mount that follows was not moved
	Behind  *int64 `json:"behind,omitempty"` // commits of To that HEAD does not have; none: the history is not on this host
	Took    int64  `json:"took_ms"`
}

// FollowStatus is the state of a mount that follows a branch of the remote.
type FollowStatus struct {
	Branch  string    `json:"branch"`
	Commit  string    `json:"commit"`           // of the branch on the remote, when it was last asked
	Checked time.Time `json:"checked,omitzero"` // when that was
	Moved   time.Time `json:"moved,omitzero"`   // when the mount was last moved
	Why     string    `json:"why,omitempty"`    // why the mount is not at Commit
}

// RefusedObject is an object that cannot be read because the remote's answers for it could not be
// used.
type RefusedObject struct {
	Object string     `json:"object,omitempty"` // id; none: it is the history
	Path   string     `json:"path,omitempty"`
	Cause  string     `json:"cause"`
	Next   *time.Time `json:"next,omitempty"` // when the remote is asked again; none: not before a prefetch or another mount
}

func (r RefreshRequest) validate() error {
	if !filepath.IsAbs(r.Dir) {
		return badRequest("directory %q is not absolute", r.Dir)
	}
	return nil
}
