package control

import (
	"context"
	"path/filepath"
)

// maxCompared is the largest number of checkpoints that are compared at once: each is merged with
// each other one.
const maxCompared = 16

// SessionCompareRequest compares the changes of checkpoints of several sessions, and whether they
// can be merged.
type SessionCompareRequest struct {
	Sides []CompareSide `json:"sides"`         // two to 16
	Dir   string        `json:"dir,omitempty"` // mount whose session remote is searched for sessions that this host does not have; "": none
}

// CompareSide names one checkpoint.
type CompareSide struct {
	Of            string `json:"of"`
	SessionRemote string `json:"session_remote,omitempty"` // where Of is; "": on this host, or on the session remote of Dir
	ID            string `json:"id"`                       // "": the newest
}

// Verdict reports whether the changes that two checkpoints made to one path go together.
type Verdict string

const (
	VerdictSame     Verdict = "same"     // both have the same content
	VerdictClean    Verdict = "clean"    // git merges them
	VerdictConflict Verdict = "conflict" // git leaves conflict markers, or cannot merge them
)

// SessionCompareReply is the output of `session compare --json`.
type SessionCompareReply struct {
	Remote string         `json:"remote" v5:"origin"` // remote that all sides are mounts of, without secrets
	Sides  []ComparedSide `json:"sides"`
	Shared []SharedPath   `json:"shared"` // paths that two or more sides changed, or that are in conflict, by name
}

// ComparedSide is a checkpoint and its changes.
type ComparedSide struct {
	Checkpoint     Checkpoint   `json:"checkpoint" v5:"point"`
	SessionRemote  string       `json:"session_remote"`                            // that it was read from, without secrets; "": this host
	Base           string       `json:"base"`                                      // commit that the session began with; "": an unborn branch
	BaseCheckpoint string       `json:"base_checkpoint,omitempty" v5:"base_point"` // SESSION@ID of the common checkpoint of all sides; if set, it is the base
	Users          []string     `json:"users" v5:"who"`                            // worked in the session, in order of appearance
	Added          int64        `json:"added"`                                     // files
	Modified       int64        `json:"modified"`
	Removed        int64        `json:"removed"`
	LinesAdded     int64        `json:"lines_added"` // without those of binary files
	LinesRemoved   int64        `json:"lines_removed"`
	Changes        []PathChange `json:"changes"` // against the base
}

// SharedPath is a path that two or more sides changed, or that their merge has a conflict at.
type SharedPath struct {
	Path    string       `json:"path"`
	Status  []string     `json:"status"`  // of each side, as PathChange; "": the side did not change it
	Verdict Verdict      `json:"verdict"` // the worst of its pairs
	Pairs   []SharedPair `json:"pairs"`
}

// SharedPair is the verdict on a path for two sides, by their places in Sides.
type SharedPair struct {
	A       int     `json:"a"`
	B       int     `json:"b"`
	Verdict Verdict `json:"verdict"`
}

// validate reports a wrong number of sides, and sides or directories that are not complete.
func (r SessionCompareRequest) validate() error {
	if len(r.Sides) < 2 || len(r.Sides) > maxCompared {
		return badRequest("%d checkpoints to compare: between 2 and %d are compared at once", len(r.Sides), maxCompared)
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

// SessionCompare compares the changes of several sessions.
func (c *Client) SessionCompare(ctx context.Context, r SessionCompareRequest) (SessionCompareReply, error) {
	return call[SessionCompareReply](ctx, c, opSessionCompare, r, nil)
}
