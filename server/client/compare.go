package client

import (
	"context"
	"net/url"
)

// Comparison is the result of Repository.Compare: the changes of several proposals, such as attempts at the same task,
// and the results of merging each two of them.
type Comparison struct {
	// Base is the state to which the changes of all sides are relative: the checkpoint from which all were forked, as
	// SESSION@CHECKPOINT, or a commit. It is "" if each side has a base of its own, or none.
	Base      string         `json:"base"`
	Sides     []ComparedSide `json:"sides"`     // proposals, in the order of the request
	Pairs     []ComparedPair `json:"pairs"`     // results of merging each two sides
	Shared    []SharedPath   `json:"shared"`    // paths that two or more sides changed, or that have conflicts
	Truncated bool           `json:"truncated"` // true if the changes of a side are not complete
}

// ComparedSide is one of the compared proposals, with its changes.
type ComparedSide struct {
	Name string `json:"name"` // name of the proposal in the request
	// name of the session; "" if the side is a branch, tag or commit
	Session    string `json:"session"`
	State      string `json:"state"`      // state of the session
	Checkpoint string `json:"checkpoint"` // id of the checkpoint
	Commit     string `json:"commit"`     // id of the commit
	Tree       string `json:"tree"`       // id of the tree
	// message of the checkpoint, or first line of the message of the commit
	Subject string `json:"subject"`
	Author  string `json:"author"` // author of the session or the commit
	// base commit of the session; for a branch, tag or commit, the common ancestor of all sides
	Base string `json:"base"`
	// checkpoint to which the changes are relative, if all sides were forked from it
	BaseCheckpoint string       `json:"base_checkpoint"`
	BaseTree       string       `json:"base_tree"`     // id of the tree to which the changes are relative
	Added          int64        `json:"added"`         // number of added files
	Modified       int64        `json:"modified"`      // number of modified files
	Removed        int64        `json:"removed"`       // number of removed files
	LinesAdded     int64        `json:"lines_added"`   // number of added lines in text files
	LinesRemoved   int64        `json:"lines_removed"` // number of removed lines in text files
	Changes        []PathChange `json:"changes"`
	Truncated      bool         `json:"truncated"` // true if there are more changes than those listed
	Tests          TestResult   `json:"tests"`
}

// PathChange is a path that differs between two trees.
type PathChange struct {
	Path    string `json:"path"`
	Status  string `json:"status"` // "A" (added), "M" (modified), "D" (deleted) or "T" (other type)
	OldMode string `json:"old_mode"`
	NewMode string `json:"new_mode"`
	Old     string `json:"old"`     // id of the blob before the change
	New     string `json:"new"`     // id of the blob after the change
	Added   int64  `json:"added"`   // number of added lines; -1: the file is binary
	Removed int64  `json:"removed"` // number of removed lines
}

// TestResult is the cache entry that contains the test results for a tree. Every user who may push to the repository
// can write this entry.
type TestResult struct {
	Key     string `json:"key"`        // key of the entry; set even if the entry does not exist
	Known   bool   `json:"known"`      // whether the entry exists
	First   string `json:"first_line"` // first line of the value
	Size    int64  `json:"size"`       // size of the value in bytes
	Actor   string `json:"actor"`
	Session string `json:"session"`
	Problem string `json:"problem"` // reason why First is missing: damaged, too_large or binary
}

// ComparedPair is the result of merging two sides.
type ComparedPair struct {
	A         int      `json:"a"` // A and B are the indexes of the two sides in Comparison.Sides
	B         int      `json:"b"`
	Conflicts []string `json:"conflicts"` // paths that git cannot merge
}

// SharedPath is a path that two or more sides changed, or that has a conflict.
type SharedPath struct {
	Path    string   `json:"path"`
	Status  []string `json:"status"`  // PathChange.Status of the path in each side; "": the side did not change it
	Verdict string   `json:"verdict"` // worst verdict of all pairs: same, clean or conflict
	Pairs   []struct {
		A       int    `json:"a"` // A and B are the indexes of the two sides, as in ComparedPair
		B       int    `json:"b"`
		Verdict string `json:"verdict"`
	} `json:"pairs"`
}

// Compare compares two to six proposals. The name of a proposal is SESSION@ for the newest checkpoint of a session,
// SESSION@CHECKPOINT, SESSION@PIN, or the name of a branch, tag or commit.
func (r Repository) Compare(ctx context.Context, names ...string) (c Comparison, err error) {
	_, err = r.call(ctx, request{verb: "compare proposals of", query: url.Values{"p": names}}, &c, "compare")
	return c, err
}
