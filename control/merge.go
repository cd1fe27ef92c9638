package control

import "context"

// MergeRequest merges the changes of another session into the mount at Dir.
type MergeRequest struct {
	Dir           string `json:"dir"`                      // absolute
	Of            string `json:"of"`                       // the other session, as SessionLogRequest has it
	SessionRemote string `json:"session_remote,omitempty"` // where Of is; "": on this host
	ID            string `json:"id"`                       // checkpoint of Of; "": the newest
	Nonce         string `json:"nonce,omitempty"`          // as of RestoreRequest
}

// MergeReply is the output of `session merge --json`.
type MergeReply struct {
	Dir       string       `json:"dir"`
	Theirs    Checkpoint   `json:"theirs"`    // that was merged
	Base      string       `json:"base"`      // tree that both began with
	Before    *Checkpoint  `json:"before"`    // undoes it; null: there was nothing to merge
	Changes   []PathChange `json:"changes"`   // of the working tree
	Conflicts []string     `json:"conflicts"` // paths that git could not merge
	Kept      []string     `json:"kept"`      // changed by others meanwhile, and left as they were
	Messages  []string     `json:"messages"`  // of git
}

func (r MergeRequest) validate() error {
	if err := needAt(r.Of, r.SessionRemote); err != nil {
		return err
	}
	return needDir(r.Dir)
}

// Merge merges the changes of another session into a mount, three-way.
func (c *Client) Merge(ctx context.Context, r MergeRequest, progress func(Progress)) (MergeReply, error) {
	return call[MergeReply](ctx, c, opMerge, r, progress)
}
