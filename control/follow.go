package control

import (
	"context"
	"path/filepath"
	"time"
)

// Refresher is a Handler that can move a mount to the newest commit of its branch on the remote.
type Refresher interface {
	// Refresh fetches the mounted branch. If the mount follows the branch, Refresh moves the mount to the new commit.
	Refresh(ctx context.Context, r RefreshRequest, progress func(Progress)) (RefreshReply, error)
}

// RefreshRequest requests that the mounted branch is fetched from the remote. A mount that follows the branch moves to
// the new commit.
type RefreshRequest struct {
	Dir string `json:"dir"` // absolute directory of the mount
}

// RefreshReply is the output of `refresh --json`.
type RefreshReply struct {
	Dir    string `json:"dir"`    // absolute directory of the mount
	Branch string `json:"branch"` // short name of the branch
	// Tracking is the short name of the remote-tracking branch, such as "origin/main".
	Tracking string `json:"tracking"`
	Head     string `json:"head,omitempty"` // short name of the branch that HEAD points to; missing: HEAD is detached
	From     string `json:"from"`           // commit that was mounted before
	To       string `json:"to"`             // commit of the branch on the remote
	Follows  bool   `json:"follows"`        // the mount follows the branch
	Moved    bool   `json:"moved"`          // true if the mount was moved to the new commit
	Paths    int64  `json:"paths"`          // number of changed paths
	Why      string `json:"why,omitempty"`  // reason why a mount that follows the branch was not moved
	// Behind is the number of commits that are reachable from the branch on the remote and not from HEAD; missing: the
	// history is not on this host.
	Behind *int64 `json:"behind,omitempty"`
	// Ahead is the number of commits that are reachable from HEAD and not from the branch on the remote; missing: the
	// history is not on this host.
	Ahead *int64 `json:"ahead,omitempty"`
	Own   bool   `json:"own,omitempty"` // true if some of the commits that Ahead counts have never been on the remote
	Took  int64  `json:"took_ms"`       // duration in milliseconds
}

// FollowStatus is the state of a mount that follows a branch of the remote.
type FollowStatus struct {
	Branch   string    `json:"branch"`           // short name of the branch
	Tracking string    `json:"tracking"`         // short name of the remote-tracking branch, such as "origin/main"
	Commit   string    `json:"commit"`           // commit that the branch on the remote pointed to at the last request
	Checked  time.Time `json:"checked,omitzero"` // time of the last request for the branch
	Moved    time.Time `json:"moved,omitzero"`   // time at which the mount was last moved
	Why      string    `json:"why,omitempty"`    // reason why the mount does not show Commit
}

// RefusedObject is an object that cannot be read, because the remote's answers for it were invalid several times.
type RefusedObject struct {
	Object string `json:"object,omitempty"` // id of the object; missing: the answers for the history were invalid
	Path   string `json:"path,omitempty"`   // path of a file with these contents
	Cause  string `json:"cause"`            // error of the last attempt to fetch the object
	// time of the next attempt; missing: the next prefetch or new mount tries again
	Next *time.Time `json:"next,omitempty"`
}

// validate returns an error if the directory is not absolute.
func (r RefreshRequest) validate() error {
	if !filepath.IsAbs(r.Dir) {
		return badRequest("directory %q is not absolute", r.Dir)
	}
	return nil
}
