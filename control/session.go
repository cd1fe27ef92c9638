package control

import (
	"context"
	"path/filepath"
	"time"

	"github.com/artifactfs/artifactfs/control/profile"
)

// Sessions is a Handler that pushes sessions, restores checkpoints, and shows and changes the sessions of a state
// directory.
type Sessions interface {
	Annotations
	// Checkpoint makes a checkpoint of the working tree. If nothing has changed since the last checkpoint, it returns the
	// last checkpoint.
	Checkpoint(ctx context.Context, r CheckpointRequest, progress func(Progress)) (CheckpointReply, error)
	// Sync pushes the session, and returns when everything that existed at the time of the call is on the session remote.
	Sync(ctx context.Context, r SyncRequest, progress func(Progress)) (SyncReply, error)
	// Sessions lists the sessions of the state directory, whether they are mounted or not.
	Sessions(ctx context.Context) (SessionsReply, error)
	// SessionsOn lists the sessions of a session remote.
	SessionsOn(ctx context.Context, r SessionsOnRequest) (SessionsReply, error)
	SessionLog(ctx context.Context, r SessionLogRequest) (SessionLogReply, error)
	SessionShow(ctx context.Context, r SessionShowRequest) (SessionShowReply, error)
	SessionDiff(ctx context.Context, r SessionDiffRequest) (SessionDiffReply, error)
	// SessionCompare compares the changes of several sessions, and tests whether they can be merged.
	SessionCompare(ctx context.Context, r SessionCompareRequest) (SessionCompareReply, error)
	// SessionPromote pushes commits of a session to a branch of the mounted remote or of another repository.
	SessionPromote(ctx context.Context, r SessionPromoteRequest) (SessionPromoteReply, error)
	// SessionSummary summarises the changes of a session.
	SessionSummary(ctx context.Context, r SessionSummaryRequest) (SessionSummaryReply, error)
	// Restore changes files back to their contents in a checkpoint.
	Restore(ctx context.Context, r RestoreRequest, progress func(Progress)) (RestoreReply, error)
	// Merge merges the changes of another session into a mount.
	Merge(ctx context.Context, r MergeRequest, progress func(Progress)) (MergeReply, error)
	// Fork creates a session that starts from a checkpoint of another session, and mounts it.
	Fork(ctx context.Context, r ForkRequest, progress func(Progress)) (MountReply, error)
	// SessionSet changes the state or the profile of a session, or sets or removes pins of its checkpoints.
	SessionSet(ctx context.Context, r SessionSetRequest) (SessionInfo, error)
	SessionNote(ctx context.Context, r SessionNoteRequest) (SessionNoteReply, error)
	SessionRecord(ctx context.Context, r SessionRecordRequest) (SessionRecordReply, error)
	// SessionTranscript returns the transcript of a session.
	SessionTranscript(ctx context.Context, r SessionTranscriptRequest) (SessionTranscriptReply, error)
	// SessionErase removes records from a transcript permanently.
	SessionErase(ctx context.Context, r SessionEraseRequest) (SessionEraseReply, error)
	// SessionFacts changes the facts and the handoff of a session, and returns the resulting facts and handoff.
	SessionFacts(ctx context.Context, r SessionFactsRequest) (SessionFactsReply, error)
	SessionGC(ctx context.Context, r SessionGCRequest, progress func(Progress)) (SessionGCReply, error)
	// SessionDelete moves a session from this host and its session remote to the trash. SessionUndelete can restore it for
	// 7 days.
	SessionDelete(ctx context.Context, r SessionDeleteRequest) (SessionDeleteReply, error)
	SessionUndelete(ctx context.Context, r SessionUndeleteRequest) (SessionDeleteReply, error)
	// SessionTrash lists deleted sessions that can be restored.
	SessionTrash(ctx context.Context, r SessionTrashRequest) (SessionTrashReply, error)
	// SessionApprove adds a record to the approvals of a session: a request, or a grant, denial or withdrawal of one.
	SessionApprove(ctx context.Context, r SessionApproveRequest) (SessionApproveReply, error)
	SessionApprovals(ctx context.Context, r SessionApprovalsRequest) (SessionApprovalsReply, error)
	// SessionPolicy returns or changes the policy of a repository, which states which changes need approvals.
	SessionPolicy(ctx context.Context, r SessionPolicyRequest) (SessionPolicyReply, error)
}

// CheckpointRequest requests a checkpoint of the mount at Dir.
type CheckpointRequest struct {
	Dir     string `json:"dir"`               // absolute directory of the mount, or a directory in it
	Message string `json:"message,omitempty"` // text that describes the checkpoint
	Pin     string `json:"pin,omitempty"`     // name by which the checkpoint is pinned
	Sync    bool   `json:"sync,omitempty"`    // send the reply when the checkpoint is on the session remote
}

// CheckpointReply is the output of `checkpoint --json`.
type CheckpointReply struct {
	Checkpoint
	Made    bool      `json:"made"`      // true if the checkpoint is new; false: nothing has changed since it was made
	LeftOut []LeftOut `json:"left_out"`  // paths that the checkpoint leaves out, at most 100
	Paused  float64   `json:"paused_ms"` // longest time that a write had to wait, in milliseconds
	Took    float64   `json:"took_ms"`   // total duration, in milliseconds
	Steps   []Step    `json:"steps"`     // parts of the total duration
}

// Step is one part of an operation, with its duration.
type Step struct {
	Name string  `json:"name"`    // name of the step
	Took float64 `json:"took_ms"` // duration in milliseconds
}

// LeftOut is a path that a checkpoint leaves out. A directory is left out with everything below it.
type LeftOut struct {
	Path string `json:"path"` // path relative to the mount
	// "ignored", "secret", "excluded", "size" (too large), "type" (no file or link), "worktree" (linked) or "filter" (a
	// required filter has failed; the checkpoint may have an earlier version of the file)
	Why  string `json:"why"`
	Size int64  `json:"size,omitempty"` // size of a file in bytes
}

// Checkpoint describes one checkpoint.
type Checkpoint struct {
	// ID is a ULID. A request may also name a checkpoint by a unique prefix of its id, by a pin, or by "@", "@~1", ...,
	// counted from the newest one.
	ID      string `json:"id"`
	Session string `json:"session"` // name of the session
	Lane    string `json:"lane"`    // chain of checkpoints of one writer of the session
	Commit  string `json:"commit"`  // commit that stores the checkpoint
	Tree    string `json:"tree"`    // id of the tree of the working tree
	Head    string `json:"head"`    // commit of HEAD; "": the branch was unborn
	Branch  string `json:"branch"`  // short name of HEAD's branch; "": HEAD was detached
	// Reason is "manual", "idle", "interval", "git", "before-risk", "unmount", "shutdown", "discard", "turn", "removal",
	// "restore", "merge" or "fork".
	Reason   string    `json:"reason"`
	Message  string    `json:"message,omitempty"` // text that describes the checkpoint
	Time     time.Time `json:"time"`              // time at which it was made
	Prev     string    `json:"prev,omitempty"`    // id of the previous checkpoint
	Changed  int64     `json:"changed"`           // number of paths that differ from the previous checkpoint
	Bytes    int64     `json:"bytes"`             // total size of the contents that the checkpoint added
	Excluded int64     `json:"excluded"`          // number of paths that the checkpoint leaves out
	Pins     []string  `json:"pins,omitempty"`    // names by which the checkpoint is pinned
	// number of transcript records since the previous checkpoint; not read on a session remote
	Recorded int64 `json:"recorded,omitempty"`
	Synced   bool  `json:"synced"` // the checkpoint is on the session remote
}

// SyncRequest requests that everything in the session of a mount is pushed to its session remote.
type SyncRequest struct {
	Dir     string        `json:"dir"`        // absolute directory of the mount, or a directory in it
	Timeout time.Duration `json:"timeout_ns"` // maximum time to wait for the push; 0: no timeout
}

// SyncReply is the output of `sync --json`.
type SyncReply struct {
	Dir     string        `json:"dir"`     // absolute directory of the mount
	Session SessionStatus `json:"session"` // state of the session after the push
}

// SessionsReply is the output of `session list --json`.
type SessionsReply struct {
	Sessions []SessionInfo `json:"sessions"` // sessions
}

// SessionsOnRequest requests a list of the sessions on a session remote.
type SessionsOnRequest struct {
	SessionRemote string `json:"session_remote"` // URL, which may contain a secret, or absolute path
}

func (r SessionsOnRequest) validate() error { return needAt("any", r.SessionRemote) }

// SessionInfo describes one session.
type SessionInfo struct {
	SessionStatus
	profile.Profile
	Remote string `json:"remote"` // URL or path of the mounted remote, without secrets
	// Dir is the directory at which the session is mounted, or was mounted last.
	Dir     string `json:"dir"`
	Mounted bool   `json:"mounted"`         // the session is mounted on this host
	Stale   bool   `json:"stale,omitempty"` // the session is not mounted, and was not changed for 7 days
	Base    string `json:"base"`            // id of the base commit
	// "SESSION CHECKPOINT" from which the session was forked; "SESSION" if that had no checkpoint
	Parent       string `json:"parent,omitempty"`
	ParentRemote string `json:"parent_remote,omitempty"` // session remote of the parent session, without secrets
	// link to the original, if the session was copied by a fork of its repository
	CopyOf  string       `json:"copy_of,omitempty"`
	Last    *Checkpoint  `json:"last,omitempty"`    // newest checkpoint
	History []Transition `json:"history,omitempty"` // changes of the state, oldest first
}

// Transition is one change of a session's state.
type Transition struct {
	State  string    `json:"state"`  // new state, as in SessionStatus; also "resumed"
	Time   time.Time `json:"time"`   // time of the change
	Actor  string    `json:"actor"`  // user and host in the form user@host, or the value of $ARTIFACTFS_ACTOR
	Reason string    `json:"reason"` // reason of the change
}

// SessionLogRequest requests a list of checkpoints, newest first. Of is the absolute directory of a mount or the name
// of a session. SessionRemote is a URL, which may contain a secret, or an absolute path. If SessionRemote is set, Of is
// the name of a session on that session remote, and nothing is read from this host. The fields Of and SessionRemote of
// the other requests have the same meaning.
type SessionLogRequest struct {
	Of string `json:"of"` // directory of a mount, or name of a session
	// session remote that has the session Of; "": the session is on this host
	SessionRemote string `json:"session_remote,omitempty"`
	Limit         int    `json:"limit"` // maximum number of checkpoints; 0: all
}

// SessionLogReply is the output of `session log --json`.
type SessionLogReply struct {
	Session     string       `json:"session"`     // name of the session
	Checkpoints []Checkpoint `json:"checkpoints"` // checkpoints, newest first
}

// SessionShowRequest requests a description of one checkpoint.
type SessionShowRequest struct {
	Of string `json:"of"` // directory of a mount, or name of a session
	// session remote that has the session Of; "": the session is on this host
	SessionRemote string `json:"session_remote,omitempty"`
	ID            string `json:"id"` // checkpoint; "": the newest
}

// SessionShowReply is the output of `session show --json`.
type SessionShowReply struct {
	Checkpoint
	// Changes are the differences from the previous checkpoint; for the first checkpoint, from the base tree.
	Changes []PathChange `json:"changes"`
	LeftOut []LeftOut    `json:"left_out"` // paths that the checkpoint leaves out
	Staged  []PathChange `json:"staged"`   // differences between HEAD and the index
	// Records is the number of transcript records that were made while the checkpoint was the newest one.
	Records int64 `json:"records"`
	// RemoteBranch is the full name of the branch on the session remote; "": the branch is not on the session remote.
	RemoteBranch string `json:"remote_branch,omitempty"`
	// Since contains the transcript records that were made between the previous checkpoint and this one.
	Since []TranscriptRecord `json:"since"`

	Status        SessionStatus   `json:"session_status"`   // status of the session
	Profile       profile.Profile `json:"profile,omitzero"` // title, task, owner, tags, expiry and hold of the session
	SessionRemote string          `json:"session_remote"`   // URL without secrets, or a path; "": nothing is pushed
	// Link is "URL#session=NAME@CHECKPOINT", which mount, resume and fork accept; "": there is no session remote.
	Link          string `json:"link"`
	ForkCommand   string `json:"fork_command"`   // command that forks the session from this checkpoint
	ResumeCommand string `json:"resume_command"` // command that resumes the session
}

// SessionDiffRequest requests a comparison of two checkpoints, or of a checkpoint and the working tree.
type SessionDiffRequest struct {
	Of string `json:"of"` // directory of a mount, or name of a session
	// session remote that has the session Of; "": the session is on this host
	SessionRemote string `json:"session_remote,omitempty"`
	A             string `json:"a"` // checkpoint; "": the base tree
	B             string `json:"b"` // checkpoint; "": a new checkpoint of the working tree
	// AOf is the session of checkpoint A: the directory of a mount, or the name of a session; "": the session Of.
	AOf     string `json:"a_of,omitempty"`
	ARemote string `json:"a_remote,omitempty"` // session remote that has the session AOf; "": the session is on this host
	Patch   bool   `json:"patch"`              // the reply contains the text of the differences
	Stat    bool   `json:"stat"`               // the reply contains the numbers of lines
}

// SessionDiffReply is the output of `session diff --json`.
type SessionDiffReply struct {
	A, B    Checkpoint   `json:"-"`
	Changes []PathChange `json:"changes"`         // changed paths
	Patch   string       `json:"patch,omitempty"` // text of the differences in the format of git diff
}

// PathChange is one path whose entries in two trees differ.
type PathChange struct {
	Path string `json:"path"` // path relative to the mount
	// "A" (added), "M" (modified), "D" (deleted) or "T" (other type), as in git diff --name-status
	Status  string `json:"status"`
	OldMode string `json:"old_mode,omitempty"` // mode before the change, in octal
	NewMode string `json:"new_mode,omitempty"` // mode after the change, in octal
	Old     string `json:"old,omitempty"`      // id of the blob before the change
	New     string `json:"new,omitempty"`      // id of the blob after the change
	Added   int64  `json:"added,omitempty"`    // number of added lines; -1: the file is binary
	Removed int64  `json:"removed,omitempty"`  // number of removed lines
}

// RestoreRequest requests that paths are changed back to their state in a checkpoint.
type RestoreRequest struct {
	Dir string `json:"dir"` // absolute directory of the mount, or a directory in it
	ID  string `json:"id"`  // checkpoint to restore
	// other session that has the checkpoint; "": the session of the mount has it
	Of string `json:"of,omitempty"`
	// session remote that has the session Of; "": the session is on this host
	SessionRemote string `json:"session_remote,omitempty"`
	// paths relative to the mount; none: all paths that checkpoints contain
	Paths  []string `json:"paths"`
	Staged bool     `json:"staged"`  // also restore the index
	DryRun bool     `json:"dry_run"` // change nothing, and return the changes that would be made
	// Nonce is a random text that is the same if the request is repeated; "": the request is never repeated.
	Nonce string `json:"nonce,omitempty"`
}

// RestoreReply is the output of `session restore --json`.
type RestoreReply struct {
	Dir        string     `json:"dir"`        // absolute directory of the mount
	Checkpoint Checkpoint `json:"checkpoint"` // checkpoint that was restored
	// Before is a checkpoint that was made before the restore. Restoring this checkpoint undoes the restore. null: the
	// request was a dry run.
	Before  *Checkpoint  `json:"before"`
	Changes []PathChange `json:"changes"` // changed paths
	// Kept are paths that other processes changed during the restore, and that were left unchanged.
	Kept   []string `json:"kept"`
	DryRun bool     `json:"dry_run"` // nothing was changed
	// Git is true if a program had removed the name ".git" from the root of the mount, and the restore has created it
	// again. If only this name was requested, Checkpoint is empty.
	Git bool `json:"git,omitempty"`
	// Failed are the linked worktrees that could not be restored, by path, with the causes.
	Failed map[string]string `json:"failed,omitempty"`
	// what the checkpoint does not contain, so that the restore has not changed it; missing: nothing
	Receipt *Receipt `json:"receipt,omitempty"`
}

// ForkRequest requests a new session that starts from a checkpoint of another session, its parent. The fields Remote
// and Ref of Mount belong to the parent session; its fields Dir and Session and the options belong to the new session.
type ForkRequest struct {
	// directory of a mount of the parent session, or name of the parent session
	Of string `json:"of"`
	// session remote that has the parent session; "": the session is on this host
	SessionRemote string `json:"session_remote,omitempty"`
	// ID is a checkpoint; "": the current working tree if the parent session is mounted, else its newest checkpoint.
	ID string `json:"id"`
	// Ignored states which of the paths that a checkpoint leaves out, such as ignored files, are carried to a fork of the
	// present working tree on the same host: "all" (the fork fails if that is not possible), "listed" (those that the file
	// .worktreeinclude or Carry names) or "none"; "": as "listed" if there are such names, else all that can be carried.
	Ignored Ignored `json:"ignored,omitempty"`
	// Carry are globs of paths to carry, in addition to those that .worktreeinclude names.
	Carry    []string `json:"carry,omitempty"`
	LeaveOut []string `json:"leave_out,omitempty"` // globs of paths that are not carried
	// Mount has the directory, the name and the options of the new session. If its remote is empty, the remote of the
	// parent session is mounted.
	Mount MountRequest `json:"mount"`
	// Head states where HEAD of the new session is; null: where HEAD of the checkpoint was.
	Head *NewHead `json:"head,omitempty"`
}

// SessionSetRequest requests a change of a session's state or profile, or that a pin is set or removed.
type SessionSetRequest struct {
	Of string `json:"of"` // directory of a mount, or name of a session
	// SessionRemote is the session remote that has the session Of; "": the session is on this host. Pins cannot be set
	// there.
	SessionRemote string `json:"session_remote,omitempty"`
	// new state: "paused", "closed", "archived" or "open"; "": no change
	State   string          `json:"state,omitempty"`
	Reason  string          `json:"reason,omitempty"`  // reason of the change of State, which is stored with it
	Actor   string          `json:"actor,omitempty"`   // user or program that requested the change; "": user@host
	Profile *profile.Change `json:"profile,omitempty"` // change of title, task, owner, tags, lifetime or hold
	Pin     string          `json:"pin,omitempty"`     // name of the pin that is set or, with Unpin, removed
	ID      string          `json:"id,omitempty"`      // checkpoint that is pinned; not used with Unpin
	Unpin   bool            `json:"unpin,omitempty"`   // remove the pin
}

// SessionGCRequest requests that checkpoints which no rule keeps are dropped.
type SessionGCRequest struct {
	Of     string        `json:"of"`       // directory of a mount, or name of a session
	DryRun bool          `json:"dry_run"`  // drop nothing, and return the checkpoints that would be dropped
	All    time.Duration `json:"all_ns"`   // age up to which all checkpoints are kept; 0: seven days
	Daily  time.Duration `json:"daily_ns"` // age up to which the last checkpoint of each day is kept; 0: thirty days
}

// SessionGCReply is the output of `session gc --json`.
type SessionGCReply struct {
	Session string       `json:"session"` // name of the session
	Kept    int64        `json:"kept"`    // number of checkpoints that were kept
	Dropped []Checkpoint `json:"dropped"` // checkpoints that were dropped, or would be dropped
	Records int64        `json:"records"` // number of transcript records that were dropped
	Bytes   int64        `json:"bytes"`   // number of bytes that became free
	DryRun  bool         `json:"dry_run"` // nothing was dropped
}

// defaultNotes is the notes ref of a SessionNoteRequest without a Ref.
const defaultNotes = "agent"

// needDir returns an error unless the directory is absolute. The daemon could not interpret a relative path, because it
// has another working directory than its clients.
func needDir(dir string) error {
	if !filepath.IsAbs(dir) {
		return badRequest("directory %q is not absolute", dir)
	}
	return nil
}

// needOf returns an error unless of is an absolute directory or the name of a session.
func needOf(of string) error {
	if filepath.IsAbs(of) {
		return nil
	}
	if err := ValidSession(of); err != nil {
		return err
	}
	return nil
}

// needAt returns an error unless of identifies a session: by its name or, if remote is empty, also by the directory of
// its mount. It also returns an error if remote is neither empty nor a URL or path.
func needAt(of, remote string) error {
	if remote == "" {
		return needOf(of)
	}
	if !(SessionOptions{Remote: remote}).elsewhere() {
		return badRequest("want the URL or path of a git repository, got %s", remote)
	}
	if err := ValidSession(of); err != nil {
		return err
	}
	return nil
}

func (r CheckpointRequest) validate() error  { return needDir(r.Dir) }
func (r SyncRequest) validate() error        { return needDir(r.Dir) }
func (r SessionLogRequest) validate() error  { return needAt(r.Of, r.SessionRemote) }
func (r SessionShowRequest) validate() error { return needAt(r.Of, r.SessionRemote) }
func (r SessionDiffRequest) validate() error {
	if r.AOf != "" {
		if err := needAt(r.AOf, r.ARemote); err != nil {
			return err
		}
	}
	return needAt(r.Of, r.SessionRemote)
}
func (r RestoreRequest) validate() error {
	if r.Of != "" {
		if err := needAt(r.Of, r.SessionRemote); err != nil {
			return err
		}
	}
	return needDir(r.Dir)
}
func (r ForkRequest) validate() error {
	m := r.Mount
	// The check of m requires a remote. If it is empty, the daemon uses that of the parent session, so set another
	// value for the check.
	if m.Remote == "" {
		m.Remote = "/"
	}
	if err := needAt(r.Of, r.SessionRemote); err != nil {
		return err
	}
	if r.Head != nil && m.ReadOnly {
		return badRequest("a read-only mount shows the checkpoint: it cannot start with another head")
	}
	if err := r.Head.validate(); err != nil {
		return err
	}
	if err := r.validateIgnored(); err != nil {
		return err
	}
	return m.validate()
}
func (r SessionSetRequest) validate() error {
	if r.Pin != "" && r.SessionRemote != "" {
		return badRequest("pins of a session can be changed only on a host that has the session")
	}
	if r.Profile != nil {
		if err := r.Profile.Validate(); err != nil {
			return badRequest("%v", err)
		}
	}
	return needAt(r.Of, r.SessionRemote)
}
func (r SessionGCRequest) validate() error { return needOf(r.Of) }
