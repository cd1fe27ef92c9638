package control

import (
	"context"
	"os"
	"slices"
	"strings"
	"time"
)

// PromoteMethod states how commits of a session are added to a branch.
type PromoteMethod string

const (
	PromoteFF     PromoteMethod = "ff"     // the branch moves to the commit of the session; it must be a fast-forward
	PromoteSquash PromoteMethod = "squash" // one new commit on the branch contains all changes
	PromoteMerge  PromoteMethod = "merge"  // a merge commit joins the branch and the commits of the session
	// PromoteNone is used only in replies: the branch already contains the changes.
	PromoteNone PromoteMethod = "none"
)

// SessionPromoteRequest requests that the commits of a session are pushed to a branch of a repository, by default to
// the mounted branch of the mounted remote.
type SessionPromoteRequest struct {
	Of string `json:"of"` // directory of a mount, or name of a session
	// session remote that has the session; "": the session is on this host
	SessionRemote string `json:"session_remote,omitempty"`
	// ID names a checkpoint, whose HEAD is promoted. "": the present HEAD; in this case, changes that are not committed
	// are an error.
	ID     string `json:"id"`
	To     string `json:"to,omitempty"`     // URL or absolute path of the repository; "": the mounted remote
	Branch string `json:"branch,omitempty"` // short name of the branch; "": the mounted branch
	// PullRequest pushes to the branch PullBranch, which is created from Branch if it does not exist. The caller then
	// opens a pull request of PullBranch.
	PullRequest bool `json:"pull_request,omitempty"`
	// short name of the branch of the pull request; "": "afs/SESSION"
	PullBranch string        `json:"pull_branch,omitempty"`
	Method     PromoteMethod `json:"method,omitempty"` // "ff", "squash" or "merge"; "": "ff"
	// message of the new commit of "squash" and "merge"; "": a list of the commits
	Message string `json:"message,omitempty"`
	// Identity contains those variables of the caller's environment, as NAME=VALUE, from which git determines the
	// author, the committer and the signature of a commit. For missing variables, the settings of the mount apply.
	Identity []string `json:"identity,omitempty"`
	DryRun   bool     `json:"dry_run,omitempty"` // nothing is pushed
}

// SessionPromoteReply is the output of `session promote --json`, except for the field of the pull request.
type SessionPromoteReply struct {
	Session    string `json:"session"`    // name of the session
	Checkpoint string `json:"checkpoint"` // checkpoint whose HEAD was promoted
	Head       string `json:"head"`       // commit of HEAD in that checkpoint
	Target     string `json:"target"`     // URL or path of the repository, without secrets
	Mounted    bool   `json:"mounted"`    // the repository is the mounted remote
	Branch     string `json:"branch"`     // short name of the branch
	// with pull_request: short name of the branch into which the commits will be merged
	Base string `json:"base,omitempty"`
	// "ff", "squash" or "merge"; "none": the branch already contains the changes
	Method PromoteMethod `json:"method"`
	Old    string        `json:"old"` // commit of the branch before; "": the branch did not exist
	// commit of the branch after; "": a dry run, for which no commit is made
	New  string `json:"new"`
	Tree string `json:"tree"` // tree of the new commit
	// commits of the session that were not on the branch, newest first; at most 100
	Commits []SummaryCommit `json:"commits"`
	Total   int64           `json:"total"`   // number of these commits
	Objects int64           `json:"objects"` // number of objects that were sent
	Fetched int64           `json:"fetched"` // number of file contents that had to be fetched, to merge or to send them
	// true if another push has moved the branch during the first attempt
	Retried bool `json:"retried"`
	DryRun  bool `json:"dry_run"` // nothing was pushed
}

// SessionSummaryRequest requests a summary of the changes of a session.
type SessionSummaryRequest struct {
	Of string `json:"of"` // directory of a mount, or name of a session
	// session remote that has the session; "": the session is on this host
	SessionRemote string `json:"session_remote,omitempty"`
	ID            string `json:"id"` // checkpoint; "": the present state
	// Since is a checkpoint or a commit of the session: only the changes after it are summarised. "": the commit of the
	// mounted remote on which the session's commits are based.
	Since string `json:"since,omitempty"`
	// Committed leaves out changes that are not committed: those that the HEAD of the checkpoint does not contain.
	Committed bool `json:"committed,omitempty"`
}

// SessionSummaryReply is the output of `session summary --json`. All lists are limited; the totals count everything.
type SessionSummaryReply struct {
	Session    string `json:"session"`    // name of the session
	Checkpoint string `json:"checkpoint"` // checkpoint that was summarised; "": the session has none
	// commit of HEAD in that checkpoint; "": the branch was unborn
	Head string `json:"head"`
	// commit or checkpoint with which the files are compared; "": nothing
	Base         string          `json:"base"`
	Title        string          `json:"title"`             // suggestion for the title of a merge request
	Commits      []SummaryCommit `json:"commits"`           // commits of the session, newest first; at most 100
	TotalCommits int64           `json:"total_commits"`     // number of commits
	Files        []SummaryFile   `json:"files"`             // changed files, sorted by path; at most 300
	TotalFiles   int64           `json:"total_files"`       // number of changed files
	LinesAdded   int64           `json:"lines_added"`       // number of added lines in all text files
	LinesRemoved int64           `json:"lines_removed"`     // number of removed lines in all text files
	Uncommitted  int64           `json:"uncommitted"`       // number of changed files that the HEAD does not contain
	Notes        []SummaryNote   `json:"notes"`             // git notes on the commits; at most 50
	Facts        []Fact          `json:"facts"`             // facts of the session, the newest 50
	Handoff      string          `json:"handoff,omitempty"` // handoff of the session, at most 4,000 bytes
	Prompts      []SummaryPrompt `json:"prompts"`           // prompts of the transcript, the newest 50
	TotalPrompts int64           `json:"total_prompts"`     // number of prompts
	// the lines were not counted, because more than 2,000 files have changed
	Uncounted bool `json:"uncounted,omitempty"`
}

// SummaryCommit is a commit of a session.
type SummaryCommit struct {
	ID      string    `json:"id"`      // id of the commit
	Subject string    `json:"subject"` // first line of its message
	Author  string    `json:"author"`  // name of its author
	Time    time.Time `json:"time"`    // author date of the commit
}

// SummaryFile is a file that a session has changed.
type SummaryFile struct {
	Path    string `json:"path"`           // path relative to the mount
	From    string `json:"from,omitempty"` // previous path of a renamed file
	Status  string `json:"status"`         // "A", "D", "M", "T" or "R", as git prints it
	Added   int64  `json:"added"`          // number of added lines; -1 for a binary file, or if the lines were not counted
	Removed int64  `json:"removed"`        // number of removed lines; -1 as for added
}

// SummaryNote is a git note on a commit of a session.
type SummaryNote struct {
	Commit string `json:"commit"` // commit that has the note
	Ref    string `json:"ref"`    // name below refs/notes
	Text   string `json:"text"`   // text of the note, at most 2,000 bytes
}

// SummaryPrompt is a prompt of the transcript as one line.
type SummaryPrompt struct {
	Turn int       `json:"turn"` // number of the turn that the prompt begins
	Time time.Time `json:"time"` // time of the record
	Text string    `json:"text"` // first characters of the prompt
}

// validate returns an error if the session, the repository, the branches or the method are invalid.
func (r SessionPromoteRequest) validate() error {
	if err := needAt(r.Of, r.SessionRemote); err != nil {
		return err
	}
	if r.PullBranch != "" && !r.PullRequest {
		return badRequest("pull_branch needs pull_request")
	}
	switch r.Method {
	case "", PromoteFF:
		if r.Message != "" {
			return badRequest("a message needs the method %q or %q", PromoteSquash, PromoteMerge)
		}
	case PromoteSquash, PromoteMerge:
	default:
		return badRequest("invalid method %.40q", r.Method)
	}
	for _, v := range r.Identity {
		if name, _, ok := strings.Cut(v, "="); !ok || !slices.Contains(identity, name) || strings.Contains(v, "\x00") {
			return badRequest("variable %.40q does not set the author, the committer or the signature", name)
		}
	}
	for _, name := range []string{r.Branch, r.PullBranch} {
		if strings.HasPrefix(name, "refs/") || strings.HasPrefix(name, "-") {
			return badRequest("invalid branch %.80q", name)
		}
	}
	return nil
}

// validate returns an error if the session or the session remote is invalid.
func (r SessionSummaryRequest) validate() error { return needAt(r.Of, r.SessionRemote) }

// identity lists the variables from which git determines the author, the committer and the signature of a commit.
var identity = []string{"GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_AUTHOR_DATE",
	"GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL", "GIT_COMMITTER_DATE",
	"SSH_AUTH_SOCK", "GNUPGHOME", "GPG_TTY"}

// Identity returns the variables of this process from which git determines the author, the committer and the signature
// of a commit.
func Identity() (env []string) {
	for _, name := range identity {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// SessionPromote requests that commits of a session are pushed to a branch.
func SessionPromote(ctx context.Context, c *Client, r SessionPromoteRequest) (SessionPromoteReply, error) {
	return call[SessionPromoteReply](ctx, c, opSessionPromote, r, nil)
}

// SessionSummary requests a summary of the changes of a session.
func SessionSummary(ctx context.Context, c *Client, r SessionSummaryRequest) (SessionSummaryReply, error) {
	return call[SessionSummaryReply](ctx, c, opSessionSummary, r, nil)
}
