package control

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Sessions is a Handler that pushes sessions, restores checkpoints, and shows and changes the sessions of a state directory.
type Sessions interface {
	// Checkpoint makes a checkpoint of the working tree. If nothing has changed since the last checkpoint, it returns the
	// last checkpoint.
	Checkpoint(ctx context.Context, r CheckpointRequest, progress func(Progress)) (CheckpointReply, error)
	// Sync returns when everything that existed at the time of the call is on the session remote.
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
	// Restore changes files back to their contents in a checkpoint.
	Restore(ctx context.Context, r RestoreRequest, progress func(Progress)) (RestoreReply, error)
	// Merge merges the changes of another session into a mount.
	Merge(ctx context.Context, r MergeRequest, progress func(Progress)) (MergeReply, error)
	// Fork creates a session that starts from a checkpoint of another session, and mounts it.
	Fork(ctx context.Context, r ForkRequest, progress func(Progress)) (MountReply, error)
	// SessionSet changes the state of a session, or sets or removes pins of its checkpoints.
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
	// SessionDelete moves a session from this host and its session remote to the trash. SessionUndelete can restore it for 7 days.
	SessionDelete(ctx context.Context, r SessionDeleteRequest) (SessionDeleteReply, error)
	SessionUndelete(ctx context.Context, r SessionUndeleteRequest) (SessionDeleteReply, error)
	// SessionTrash lists deleted sessions that can be restored.
	SessionTrash(ctx context.Context, r SessionTrashRequest) (SessionTrashReply, error)
}

// Policy states when checkpoints are made automatically: "off", "idle", "before-risk", or "interval=" followed by a duration in the
// format of time.ParseDuration.
type Policy string

const (
	PolicyOff        Policy = "off"
	PolicyIdle       Policy = "idle"        // a checkpoint is made when no file was written for a while
	PolicyBeforeRisk Policy = "before-risk" // a checkpoint is made before a git command that may discard changes
	PolicyInterval   Policy = "interval="   // prefix of "interval=DURATION": a checkpoint is made at this interval if something has changed
)

// minInterval and maxInterval are the limits for the interval of PolicyInterval. Any other value is taken for a typing error.
const minInterval, maxInterval = time.Second, 30 * 24 * time.Hour

// Split returns the kind of the policy. For PolicyInterval it also returns the interval.
func (p Policy) Split() (kind Policy, every time.Duration, err error) {
	switch p {
	case PolicyOff, PolicyIdle, PolicyBeforeRisk:
		return p, 0, nil
	}
	text, ok := strings.CutPrefix(string(p), string(PolicyInterval))
	if !ok {
		return "", 0, badRequest("unknown checkpoint policy %.40q: want off, idle, before-risk or interval=DURATION", p)
	}
	every, parseErr := time.ParseDuration(text)
	if parseErr != nil || every < minInterval || every > maxInterval {
		return "", 0, badRequest("invalid checkpoint interval %.40q: want a duration from %v to %v, such as 5m", text, minInterval, maxInterval)
	}
	return PolicyInterval, every, nil
}

func (o SessionOptions) validate() error {
	if o.Policy != "" {
		if _, _, err := o.Policy.Split(); err != nil {
			return err
		}
	}
	if o.Base != "" && !slices.Contains(BaseModes, o.Base) {
		return badRequest("unknown base %.40q of a session: want auto, thin, shared or seed", o.Base)
	}
	if o.MaxFileSize < 0 {
		return badRequest("size is negative")
	}
	return nil
}

// Values of SessionOptions.Remote that are neither a URL nor a path.
const (
	RemoteEmbedded = "embedded" // a bare repository below the state directory; the default
	RemoteOrigin   = "origin"   // the mounted remote
	RemoteNone     = "none"     // no checkpoints are made, and nothing is pushed
)

// BaseMode states how a session remote gets the history of the mounted repository.
type BaseMode string

const (
	BaseAuto   BaseMode = "auto"   // shared if the remote has the history, thin if it is empty and REMOTE is a network URL, else seed
	BaseThin   BaseMode = "thin"   // the history is not pushed: the session refers to it by URL and commit
	BaseShared BaseMode = "shared" // the session remote must contain the history, otherwise pushing fails
	BaseSeed   BaseMode = "seed"   // the history is pushed to the session remote if the session remote lacks it
)

// BaseModes lists all values of BaseMode.
var BaseModes = []BaseMode{BaseAuto, BaseThin, BaseShared, BaseSeed}

// SessionOptions determine what is stored in the checkpoints of a mount, when they are made, and where they are pushed.
type SessionOptions struct {
	Remote   string   `json:"remote,omitempty"`    // URL, path, "embedded", "origin" or "none"; never printed, because it may contain a secret
	Policy   Policy   `json:"policy,omitempty"`    // "": PolicyIdle
	Base     BaseMode `json:"base,omitempty"`      // how the session remote gets the history of the mounted repository; "": BaseAuto
	Branches string   `json:"branches,omitempty"`  // names of branches on the session remote, as session.Layout.Branches; "": unchanged
	TakeOver bool     `json:"take_over,omitempty"` // resume the session even if another machine holds its claim

	Include     []string `json:"include,omitempty"`       // globs of paths that checkpoints contain even if ignored or on the deny list
	Exclude     []string `json:"exclude,omitempty"`       // globs of paths that checkpoints leave out, besides those that look like secrets
	NoDenyList  bool     `json:"no_deny_list,omitempty"`  // checkpoints contain paths that look like secrets
	MaxFileSize int64    `json:"max_file_size,omitempty"` // maximum size in bytes of new files in checkpoints; 0: the default
}

// elsewhere reports whether the session remote is a URL or path, which may also be known on other machines.
func (o SessionOptions) elsewhere() bool {
	switch o.Remote {
	case "", RemoteEmbedded, RemoteOrigin, RemoteNone:
		return false
	}
	return true
}

// CheckpointRequest requests a checkpoint of the mount at Dir.
type CheckpointRequest struct {
	Dir     string `json:"dir"` // absolute directory of the mount, or a directory in it
	Message string `json:"message,omitempty"`
	Pin     string `json:"pin,omitempty"`  // name by which the checkpoint is pinned
	Sync    bool   `json:"sync,omitempty"` // send the reply when the checkpoint is on the session remote
}

// CheckpointReply is the output of `checkpoint --json`.
type CheckpointReply struct {
	Checkpoint
	Made    bool      `json:"made"`               // false: nothing had changed, and the checkpoint is an earlier one
	LeftOut []LeftOut `json:"left_out" v5:"left"` // paths that the checkpoint leaves out, at most a hundred
	Paused  float64   `json:"paused_ms"`          // longest time for which a write had to wait, in milliseconds
	Took    float64   `json:"took_ms"`            // total duration in milliseconds
	Steps   []Step    `json:"steps"`              // parts of the total duration
}

// Step is one part of an operation, with its duration.
type Step struct {
	Name string  `json:"name"`
	Took float64 `json:"took_ms"`
}

// LeftOut is a path that a checkpoint leaves out. A directory is left out with everything below it.
type LeftOut struct {
	Path string `json:"path"`
	Why  string `json:"why"`            // reason: "ignored", "secret", "excluded", "size" or "type"
	Size int64  `json:"size,omitempty"` // size of a file in bytes
}

// Checkpoint describes one checkpoint.
type Checkpoint struct {
	ID       string    `json:"id"` // ULID; requests may also use a unique prefix, the name of a pin, or "@", "@~1", ... from the newest
	Session  string    `json:"session"`
	Lane     string    `json:"lane"`
	Commit   string    `json:"commit"` // commit that stores the checkpoint
	Tree     string    `json:"tree"`
	Head     string    `json:"head"`   // commit of HEAD; "": the branch was unborn
	Branch   string    `json:"branch"` // short name of HEAD's branch; "": HEAD was detached
	Reason   string    `json:"reason"` // a session.Reason
	Message  string    `json:"message,omitempty"`
	Time     time.Time `json:"time"`
	Prev     string    `json:"prev,omitempty"` // id of the previous checkpoint; missing: this is the first checkpoint
	Changed  int64     `json:"changed"`        // number of paths that differ from the previous checkpoint
	Bytes    int64     `json:"bytes"`          // total size of the contents that the checkpoint added, in bytes
	Excluded int64     `json:"excluded"`       // number of paths that the checkpoint leaves out
	Pins     []string  `json:"pins,omitempty"`
	Recorded int64     `json:"recorded,omitempty"` // number of transcript records between the previous checkpoint and this one
	Synced   bool      `json:"synced"`             // the checkpoint is on the session remote
}

// SyncRequest requests that everything in the session of a mount is pushed to its session remote.
type SyncRequest struct {
	Dir     string        `json:"dir"`
	Timeout time.Duration `json:"timeout_ns"` // maximum duration of the push; 0: no limit
}

// SyncReply is the output of `sync --json`.
type SyncReply struct {
	Dir     string        `json:"dir"`
	Session SessionStatus `json:"session"`
}

// SessionsReply is the output of `session list --json`.
type SessionsReply struct {
	Sessions []SessionInfo `json:"sessions"`
}

// SessionsOnRequest requests a list of the sessions on a session remote, which has the same form as in SessionLogRequest.
type SessionsOnRequest struct {
	SessionRemote string `json:"session_remote"`
}

func (r SessionsOnRequest) validate() error { return needAt("any", r.SessionRemote) }

// SessionInfo describes one session.
type SessionInfo struct {
	SessionStatus
	Remote       string       `json:"remote" v5:"origin"` // mounted remote, without secrets
	Dir          string       `json:"dir"`                // directory at which the session is mounted, or was last mounted
	Mounted      bool         `json:"mounted"`
	Stale        bool         `json:"stale,omitempty"`                          // not mounted, and unchanged for 7 days
	Base         string       `json:"base"`                                     // base commit of the session
	Parent       string       `json:"parent,omitempty" v5:"from"`               // "SESSION CHECKPOINT" that the session was forked from
	ParentRemote string       `json:"parent_remote,omitempty" v5:"from_remote"` // session remote of the parent session, without secrets
	Last         *Checkpoint  `json:"last,omitempty"`                           // newest checkpoint of the session
	History      []Transition `json:"history,omitempty"`                        // changes of the session's state, oldest first
}

// Transition is one change of a session's state.
type Transition struct {
	State  string    `json:"state"` // a session.LifeState
	Time   time.Time `json:"time"`
	Actor  string    `json:"actor"` // user@host, or the value of an environment variable
	Reason string    `json:"reason"`
}

// SessionLogRequest requests a list of checkpoints, newest first. Of is the absolute directory of a mount or the name of a
// session. SessionRemote is a URL, which may contain a secret, or an absolute path. If SessionRemote is set, Of is the name
// of a session on that session remote, and nothing is read from this host. Of and SessionRemote have the same meaning in the
// requests below.
type SessionLogRequest struct {
	Of            string `json:"of"`
	SessionRemote string `json:"session_remote,omitempty"`
	Limit         int    `json:"limit"` // maximum number of checkpoints; 0: all
}

// SessionLogReply is the output of `session log --json`.
type SessionLogReply struct {
	Session     string       `json:"session"`
	Checkpoints []Checkpoint `json:"checkpoints" v5:"points"`
}

// SessionShowRequest requests a description of one checkpoint.
type SessionShowRequest struct {
	Of            string `json:"of"`
	SessionRemote string `json:"session_remote,omitempty"`
	ID            string `json:"id"` // checkpoint; "": the newest
}

// SessionShowReply is the output of `session show --json`.
type SessionShowReply struct {
	Checkpoint
	Changes      []PathChange `json:"changes"` // changes relative to the previous checkpoint or, for the first one, to the base tree
	LeftOut      []LeftOut    `json:"left_out"`
	Staged       []PathChange `json:"staged"`                                    // differences between HEAD and the index
	Records      int64        `json:"records"`                                   // number of records made while it was the newest
	RemoteBranch string       `json:"remote_branch,omitempty" v5:"branch_there"` // full name of Branch on the session remote; "": none
	// Since are the transcript records between the previous checkpoint and this one.
	Since []TranscriptRecord `json:"since"`

	Status        SessionStatus `json:"session_status"` // status of the checkpoint's session
	SessionRemote string        `json:"session_remote"` // session remote, as a URL without secrets or a path; "": nothing is pushed
	Link          string        `json:"link"`           // text that ParseLink accepts; "": there is no session remote
	ForkCommand   string        `json:"fork_command"`   // command that forks the session from this checkpoint
	ResumeCommand string        `json:"resume_command"` // command that resumes the session
}

// SessionDiffRequest requests a comparison of two checkpoints, or of a checkpoint and the working tree.
type SessionDiffRequest struct {
	Of            string `json:"of"`
	SessionRemote string `json:"session_remote,omitempty"`
	A             string `json:"a"`                  // checkpoint; "": the base tree
	B             string `json:"b"`                  // checkpoint; "": a new checkpoint of the working tree
	AOf           string `json:"a_of,omitempty"`     // session of A, in the form of Of; "": the same session
	ARemote       string `json:"a_remote,omitempty"` // session remote that has AOf, in the form of SessionRemote
	Patch         bool   `json:"patch"`              // the reply contains the text of the differences
	Stat          bool   `json:"stat"`               // the reply contains the numbers of added and removed lines
}

// SessionDiffReply is the output of `session diff --json`.
type SessionDiffReply struct {
	A, B    Checkpoint   `json:"-"`
	Changes []PathChange `json:"changes"`
	Patch   string       `json:"patch,omitempty"` // differences in the format of git diff
}

// PathChange is one path whose entries in two trees differ.
type PathChange struct {
	Path    string `json:"path"`
	Status  string `json:"status"` // "A", "M", "D" or "T", as in git diff --name-status
	OldMode string `json:"old_mode,omitempty"`
	NewMode string `json:"new_mode,omitempty"`
	Old     string `json:"old,omitempty"`     // blob id before the change
	New     string `json:"new,omitempty"`     // blob id after the change
	Added   int64  `json:"added,omitempty"`   // number of added lines; -1: the file is binary
	Removed int64  `json:"removed,omitempty"` // number of removed lines
}

// RestoreRequest requests that paths are changed back to their state in a checkpoint.
type RestoreRequest struct {
	Dir           string   `json:"dir"`
	ID            string   `json:"id"`
	Of            string   `json:"of,omitempty"`             // other session that has the checkpoint; "": the session of Dir
	SessionRemote string   `json:"session_remote,omitempty"` // session remote that has Of; "": this host has it
	Paths         []string `json:"paths"`                    // paths relative to the mount; none: everything that checkpoints contain
	Staged        bool     `json:"staged"`                   // restore the index, too
	DryRun        bool     `json:"dry_run"`
	Nonce         string   `json:"nonce,omitempty"` // random text that identifies a repeated request; "": it is never repeated
}

// RestoreReply is the output of `session restore --json`.
type RestoreReply struct {
	Dir        string       `json:"dir"`
	Checkpoint Checkpoint   `json:"checkpoint" v5:"point"`
	Before     *Checkpoint  `json:"before"` // restoring this checkpoint undoes the restore; null in a dry run
	Changes    []PathChange `json:"changes"`
	Kept       []string     `json:"kept"` // paths that were left unchanged, because other processes changed them during the restore
	DryRun     bool         `json:"dry_run"`
}

// ForkRequest requests a new session that starts from a checkpoint. In Mount, Remote and Ref are those of the parent session; Dir,
// Session and the options are those of the new session.
type ForkRequest struct {
	Of            string       `json:"of"`
	SessionRemote string       `json:"session_remote,omitempty"`
	ID            string       `json:"id"` // checkpoint; "": the current working tree if the parent is mounted, else the newest checkpoint
	Mount         MountRequest `json:"mount"`
}

// SessionSetRequest requests a change of a session's state, or that a pin is set or removed.
type SessionSetRequest struct {
	Of     string `json:"of"`
	State  string `json:"state,omitempty"` // "paused", "closed", "archived", "open"; "": the state is not changed
	Reason string `json:"reason,omitempty"`
	Actor  string `json:"actor,omitempty"`
	Pin    string `json:"pin,omitempty"` // name of the pin that is set or, with Unpin, removed
	ID     string `json:"id,omitempty"`  // checkpoint that is pinned; "" with Unpin
	Unpin  bool   `json:"unpin,omitempty"`
}

// SessionGCRequest requests that checkpoints which no rule keeps are dropped.
type SessionGCRequest struct {
	Of     string        `json:"of"`
	DryRun bool          `json:"dry_run"`
	All    time.Duration `json:"all_ns"`   // all checkpoints younger than this are kept; 0: seven days
	Daily  time.Duration `json:"daily_ns"` // of the checkpoints younger than this, the last one of each day is kept; 0: thirty days
}

// SessionDeleteRequest requests that a session which is not mounted is deleted.
type SessionDeleteRequest struct {
	Of       string `json:"of"`
	Remote   string `json:"remote,omitempty"`    // URL or absolute path, may contain a secret; "": that of the session on this host
	TakeOver bool   `json:"take_over,omitempty"` // delete the session even if another machine holds its claim
}

// SessionDeleteReply is the output of `session delete --json` and `session undelete --json`.
type SessionDeleteReply struct {
	Session string    `json:"session"`
	Local   bool      `json:"local" v5:"here"` // the session was on this host
	Refs    int64     `json:"refs"`            // number of refs that were changed on the session remote
	Kept    []string  `json:"kept,omitempty"`  // refs on the session remote that were left unchanged
	Until   time.Time `json:"until,omitzero"`  // time until which the session can be restored
}

// SessionUndeleteRequest requests that a deleted session is restored. If several deleted sessions have the name, the one that
// was deleted last is restored.
type SessionUndeleteRequest struct {
	Session string `json:"session"`
	Remote  string `json:"remote,omitempty"` // session remote, as in SessionDeleteRequest
}

// SessionTrashRequest requests a list of the deleted sessions of the state directory, or of a session remote.
type SessionTrashRequest struct {
	Remote string `json:"remote,omitempty"` // session remote, as in SessionDeleteRequest; "": the trash of the state directory is listed
}

// SessionTrashReply is the output of `session list --deleted --json`.
type SessionTrashReply struct {
	Deleted []DeletedSession `json:"deleted"` // deleted sessions; the one that was deleted last is the first
}

// DeletedSession is a deleted session that can be restored.
type DeletedSession struct {
	Name   string    `json:"name"`
	Remote string    `json:"session_remote" v5:"remote"` // session remote of the session, without secrets
	At     time.Time `json:"deleted_at"`
	Until  time.Time `json:"until"` // time until which the session can be restored
}

// SessionGCReply is the output of `session gc --json`.
type SessionGCReply struct {
	Session string       `json:"session"`
	Kept    int64        `json:"kept"`    // number of checkpoints that were kept
	Dropped []Checkpoint `json:"dropped"` // checkpoints that were dropped
	Records int64        `json:"records"` // number of transcript records that were dropped
	Bytes   int64        `json:"bytes"`   // number of bytes that became free
	DryRun  bool         `json:"dry_run"`
}

// defaultNotes is the notes ref of a SessionNoteRequest without a Ref.
const defaultNotes = "agent"

// needDir returns an error unless the directory is absolute. The daemon could not interpret a relative path, because it has
// another working directory than its clients.
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

// needAt returns an error unless of identifies a session. If remote is not "", of must be a name, because the session is on
// that session remote and not mounted.
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

func (r CheckpointRequest) validate() error { return needDir(r.Dir) }
func (r SyncRequest) validate() error       { return needDir(r.Dir) }
func (r SessionLogRequest) validate() error { return needAt(r.Of, r.SessionRemote) }
func (r SessionShowRequest) validate() error {
	return needAt(r.Of, r.SessionRemote)
}
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
	// If the remote is empty, the daemon uses the remote of the parent session. The check of m requires a value, so set one.
	if m.Remote == "" {
		m.Remote = "/"
	}
	if err := needAt(r.Of, r.SessionRemote); err != nil {
		return err
	}
	return m.validate()
}
func (r SessionSetRequest) validate() error    { return needOf(r.Of) }
func (r SessionGCRequest) validate() error     { return needOf(r.Of) }
func (r SessionDeleteRequest) validate() error { return needOf(r.Of) }
func (r SessionUndeleteRequest) validate() error {
	if err := ValidSession(r.Session); err != nil {
		return err
	}
	return nil
}
func (r SessionTrashRequest) validate() error { return nil }
