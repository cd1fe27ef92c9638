package control

import (
	"context"
	"path/filepath"
)

// maxCompared is the maximum number of checkpoints in one comparison. The limit is low, because each pair of
// checkpoints is merged.
const maxCompared = 16

// SessionCompareRequest requests a comparison of the changes in checkpoints of several sessions, and a test whether
// these changes can be merged.
type SessionCompareRequest struct {
	Sides []CompareSide `json:"sides"` // two to 16 checkpoints
	// Dir is the absolute directory of a mount. Sessions that this host does not have are looked up on the session remote
	// of that mount. "": no mount.
	Dir string `json:"dir,omitempty"`
}

// CompareSide names one of the checkpoints to compare.
type CompareSide struct {
	Of string `json:"of"` // session of the checkpoint: directory of a mount, or name of a session
	// SessionRemote is the session remote that has the session. "": this host or the session remote of the mount has the
	// session.
	SessionRemote string `json:"session_remote,omitempty"`
	ID            string `json:"id"` // checkpoint; "": the newest
}

// Verdict states whether the changes that two checkpoints made to one path can be merged.
type Verdict string

const (
	VerdictSame     Verdict = "same"     // the contents of the path are the same in both checkpoints
	VerdictClean    Verdict = "clean"    // git can merge the changes
	VerdictConflict Verdict = "conflict" // git cannot merge the changes, or leaves conflict markers
)

// SessionCompareReply is the output of `session compare --json`.
type SessionCompareReply struct {
	Remote string         `json:"remote"` // mounted remote of all sides, without secrets
	Sides  []ComparedSide `json:"sides"`  // compared checkpoints, in the order of the request
	Shared []SharedPath   `json:"shared"` // paths that two or more sides changed, or that have conflicts; sorted by name
}

// ComparedSide is one of the compared checkpoints, with its changes.
type ComparedSide struct {
	Checkpoint Checkpoint `json:"checkpoint"` // compared checkpoint
	// session remote that the checkpoint was read from, without secrets; "": this host
	SessionRemote string `json:"session_remote"`
	Base          string `json:"base"` // base commit of the session; "": the branch was unborn
	// BaseCheckpoint is the checkpoint that all sides started from, in the form SESSION@ID. If it is set, the changes are
	// relative to this checkpoint.
	BaseCheckpoint string   `json:"base_checkpoint,omitempty"`
	Users          []string `json:"users"` // users that worked in the session, in order of appearance
	ChangeCount
	Changes []PathChange `json:"changes"` // changes relative to the base
}

// SharedPath is a path that two or more sides changed, or that has a conflict when the sides are merged.
type SharedPath struct {
	Path string `json:"path"` // path relative to the mount
	// status of the path in each side, as in PathChange; "": the side did not change the path
	Status  []string     `json:"status"`
	Verdict Verdict      `json:"verdict"` // worst verdict of all pairs: "same", "clean" or "conflict"
	Pairs   []SharedPair `json:"pairs"`   // one verdict for each pair of sides that changed the path
}

// SharedPair is the verdict on a path for two of the sides.
type SharedPair struct {
	A       int     `json:"a"`       // index of the first side in the list of sides
	B       int     `json:"b"`       // index of the second side in the list of sides
	Verdict Verdict `json:"verdict"` // "same": equal contents, "clean": git merges the changes, or "conflict"
}

// validate returns an error if the number of sides is wrong, or if a side or the directory is invalid.
func (r SessionCompareRequest) validate() error {
	if len(r.Sides) < 2 || len(r.Sides) > maxCompared {
		return badRequest("got %d checkpoints to compare, want 2 to %d", len(r.Sides), maxCompared)
	}
	for _, s := range r.Sides {
		if err := needAt(s.Of, s.SessionRemote); err != nil {
			return err
		}
	}
	if r.Dir != "" && !filepath.IsAbs(r.Dir) {
		return needDir(r.Dir)
	}
	return nil
}

// SessionCompare requests a comparison of the changes in several sessions.
func (c *Client) SessionCompare(ctx context.Context, r SessionCompareRequest) (SessionCompareReply, error) {
	return call[SessionCompareReply](ctx, c, opSessionCompare, r, nil)
}
