package control

import "context"

// MergeRequest requests that the changes of another session are merged into the mount at Dir.
type MergeRequest struct {
	Dir string `json:"dir"` // absolute directory of the mount
	Of  string `json:"of"`  // other session: directory of a mount, or name of a session
	// session remote that has the other session; "": the session is on this host
	SessionRemote string `json:"session_remote,omitempty"`
	ID            string `json:"id"` // checkpoint of the other session; "": the newest
	// random text that is the same if the request is repeated; "": it is not repeated
	Nonce string `json:"nonce,omitempty"`
}

// MergeReply is the output of `session merge --json`.
type MergeReply struct {
	Dir    string     `json:"dir"`    // absolute directory of the mount
	Theirs Checkpoint `json:"theirs"` // checkpoint that was merged
	Base   string     `json:"base"`   // tree of the state from which both sessions started
	// Before is a checkpoint that was made before the merge. Restoring this checkpoint undoes the merge. null: there was
	// nothing to merge.
	Before    *Checkpoint  `json:"before"`
	Changes   []PathChange `json:"changes"`   // changes of the working tree
	Conflicts []string     `json:"conflicts"` // paths that git could not merge
	// paths that were left unchanged, because other processes changed them during the merge
	Kept     []string `json:"kept"`
	Messages []string `json:"messages"` // messages of git
}

// validate returns an error if the session, the session remote or the directory is invalid.
func (r MergeRequest) validate() error {
	if err := needAt(r.Of, r.SessionRemote); err != nil {
		return err
	}
	return needDir(r.Dir)
}

// Merge requests a three-way merge of another session's changes into a mount.
func (c *Client) Merge(ctx context.Context, r MergeRequest, progress func(Progress)) (MergeReply, error) {
	return call[MergeReply](ctx, c, opMerge, r, progress)
}
