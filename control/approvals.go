package control

import (
	"context"
	"slices"
	"time"
)

// The values of SessionApproveRequest.Op.
const (
	ApproveRequest  = "request"  // request an approval
	ApproveGrant    = "grant"    // approve a request
	ApproveDeny     = "deny"     // refuse to approve a request
	ApproveWithdraw = "withdraw" // withdraw a request, or one's own grant or denial
)

// The values of SessionApproveRequest.Action.
const (
	ApproveMerge   = "merge"   // merge of the session into a branch of its session remote
	ApprovePromote = "promote" // push of the session's commits to a branch of another repository
	ApproveDelete  = "delete"  // deletion of the session
)

// SessionApproveRequest adds a record to the approvals of a session.
type SessionApproveRequest struct {
	Of string `json:"of"` // session: directory of a mount, or name of a session
	// session remote that has the session; "": the session is on this host
	SessionRemote string `json:"session_remote,omitempty"`
	// To is the repository (URL, which may contain a secret, or absolute path) that has the branch and the approvals. "":
	// the session remote; for the action "promote" the mounted remote.
	To      string `json:"to,omitempty"`
	Op      string `json:"op"`                // "request", "grant", "deny" or "withdraw"
	Request string `json:"request,omitempty"` // id of the request, or the beginning of the id; "" for "request"
	Text    string `json:"text,omitempty"`    // reason, as a text for people
	// user who makes the record, unless the server knows the user; "": the user of the daemon
	Actor string `json:"actor,omitempty"`

	// The fields below are used only if Op is "request".
	// checkpoint; "": the newest. The newest checkpoint must be named: an older one is refused.
	ID     string `json:"id,omitempty"`
	Action string `json:"action,omitempty"` // "merge", "promote" or "delete"
	// branch that will change; "": the default branch of the repository
	Branch    string        `json:"branch,omitempty"`
	Reviewers []string      `json:"reviewers,omitempty"`  // users from whom the approval is requested
	Expires   time.Duration `json:"expires_ns,omitempty"` // time until the request expires; 0: 24 hours
}

// Approval is a request for an approval, with its state.
type Approval struct {
	ID         string `json:"id"`         // id of the request
	Session    string `json:"session"`    // name of the session
	Repository string `json:"repository"` // repository that has the approvals, without secrets
	Action     string `json:"action"`     // "merge", "promote" or "delete"
	// checkpoint that is approved; a change of files or HEAD after it voids the request
	Checkpoint string `json:"checkpoint"`
	Branch     string `json:"branch"` // branch that will change; "" for "delete"
	Base       string `json:"base"`   // commit of the branch that was reviewed; "": the branch does not exist
	// tree of the branch after the change; for "delete", tree of the checkpoint
	Tree string `json:"tree"`
	// true if the branch is not at Base any more, so that a new request is necessary
	Moved  bool   `json:"moved"`
	Status string `json:"status"` // "open", "granted", "denied", "withdrawn", "expired" or "void"
	// what the request still needs to be granted, as a text for people; "": nothing
	Missing   string    `json:"missing"`
	Actor     string    `json:"actor"`               // user who made the request
	Text      string    `json:"text"`                // reason of the request, as a text for people
	Reviewers []string  `json:"reviewers,omitempty"` // users from whom the approval was requested
	Time      time.Time `json:"time"`                // time of the request
	Expires   time.Time `json:"expires"`             // time at which the request expires
	Grants    []Vote    `json:"grants"`              // grants that are in force, oldest first
	Denials   []Vote    `json:"denials"`             // denials that are in force, oldest first
}

// Vote is a grant or a denial of a request.
type Vote struct {
	Actor string    `json:"actor"`           // user
	Token string    `json:"token,omitempty"` // id of the user's token on the server; "": the remote is another server
	Time  time.Time `json:"time"`            // time of the record
	Text  string    `json:"text"`            // reason, as a text for people
}

// SessionApproveReply is the output of `session review request`, `grant`, `deny` and `withdraw` with --json.
type SessionApproveReply struct {
	Approval Approval `json:"approval"` // the request after the operation
	// Changes are the files that the approved state changes: those of the branch, or, for "delete", those of the session
	// since its base commit. They are counted for requests and grants.
	Changes ChangeCount `json:"changes"`
	Counted bool        `json:"counted"` // for "grant": true if the policy counts the grant
	// true if the tree is that of a merge; false: the branch is fast-forwarded
	Merge  bool   `json:"merge"`
	Link   string `json:"link"`         // URL#session=SESSION@REQUEST, which identifies the request on other machines
	Show   string `json:"show"`         // URL#session=SESSION@CHECKPOINT, the link of the approved checkpoint
	To     string `json:"to,omitempty"` // value of the flag --to that reviewers need, without secrets; "": none
	Record string `json:"record"`       // id of the record that was added
	Actor  string `json:"actor"`        // user who is recorded as the author of the record
	// Token is the id of the user's token. "": the server does not know the user, and does not enforce approvals.
	Token string `json:"token,omitempty"`
}

// ChangeCount contains the numbers of changed files and lines.
type ChangeCount struct {
	Added        int64 `json:"added"`         // number of added files
	Modified     int64 `json:"modified"`      // number of modified files
	Removed      int64 `json:"removed"`       // number of removed files
	LinesAdded   int64 `json:"lines_added"`   // number of added lines in text files
	LinesRemoved int64 `json:"lines_removed"` // number of removed lines in text files
}

// SessionApprovalsRequest requests the approvals of a session.
type SessionApprovalsRequest struct {
	Of string `json:"of"` // session: directory of a mount, or name of a session
	// session remote that has the session; "": the session is on this host
	SessionRemote string `json:"session_remote,omitempty"`
	// To is the repository that has the approvals (URL or absolute path). "": the session remote and, if the session is on
	// this host, the mounted remote.
	To string `json:"to,omitempty"`
}

// SessionApprovalsReply is the output of `session review list --json`.
type SessionApprovalsReply struct {
	Session    string     `json:"session"`    // name of the session
	Repository string     `json:"repository"` // repository that has the approvals, or the session remote; without secrets
	Approvals  []Approval `json:"approvals"`  // all requests, newest first; each names the repository that has it
	// reasons why requests of further repositories are missing, as texts for people
	Unread []string `json:"unread,omitempty"`
}

// SessionPolicyRequest requests the policy of a repository, or changes it.
type SessionPolicyRequest struct {
	// session whose session remote has the policy: directory of a mount, or name of a session
	Of string `json:"of,omitempty"`
	// repository (URL or absolute path) that has the policy; "": the session remote of Of
	Remote string `json:"remote,omitempty"`
	// Policy is the text of the new policy. If it is missing, the policy is not changed.
	Policy *string `json:"policy,omitempty"`
}

// SessionPolicyReply is the output of `session policy --json`.
type SessionPolicyReply struct {
	Repository string `json:"repository"` // repository that has the policy, without secrets
	Policy     string `json:"policy"`     // text of the policy; "": the repository has none
	Problem    string `json:"problem"`    // reason why the policy is invalid, as a text for people; "": it is valid
}

func (r SessionApproveRequest) validate() error {
	if err := needAt(r.Of, r.SessionRemote); err != nil {
		return err
	}
	switch r.Op {
	case ApproveRequest:
		if !slices.Contains([]string{ApproveMerge, ApprovePromote, ApproveDelete}, r.Action) {
			return badRequest("unknown action %.40q: want merge, promote or delete", r.Action)
		}
		if r.Request != "" || r.Expires < 0 || r.Action != ApprovePromote && r.To != "" || r.Action == ApproveDelete &&
			r.Branch != "" {
			return badRequest("invalid combination of arguments for a request for approval")
		}
	case ApproveGrant, ApproveDeny, ApproveWithdraw:
		if r.Request == "" {
			return badRequest("the request is missing")
		}
	default:
		return badRequest("unknown operation %.40q: want request, grant, deny or withdraw", r.Op)
	}
	return needRepository(r.To)
}

func (r SessionApprovalsRequest) validate() error {
	if err := needAt(r.Of, r.SessionRemote); err != nil {
		return err
	}
	return needRepository(r.To)
}

func (r SessionPolicyRequest) validate() error {
	if r.Remote == "" {
		return needOf(r.Of)
	}
	return needRepository(r.Remote)
}

// needRepository returns an error if remote is neither empty nor the URL or path of a repository.
func needRepository(remote string) error {
	if remote != "" && !(SessionOptions{Remote: remote}).elsewhere() {
		return badRequest("want the URL or path of a git repository, got %s", remote)
	}
	return nil
}

// SessionApprove adds a record to the approvals of a session: a request, or a grant, denial or withdrawal of one.
func (c *Client) SessionApprove(ctx context.Context, r SessionApproveRequest) (SessionApproveReply, error) {
	return call[SessionApproveReply](ctx, c, opSessionApprove, r, nil)
}

// SessionApprovals lists the requests for approval of a session.
func (c *Client) SessionApprovals(ctx context.Context, r SessionApprovalsRequest) (SessionApprovalsReply, error) {
	return call[SessionApprovalsReply](ctx, c, opSessionApprovals, r, nil)
}

// SessionPolicy returns or changes the policy of a repository.
func (c *Client) SessionPolicy(ctx context.Context, r SessionPolicyRequest) (SessionPolicyReply, error) {
	return call[SessionPolicyReply](ctx, c, opSessionPolicy, r, nil)
}
