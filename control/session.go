package control

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Sessions is a Handler that carries work to session remotes, and goes back in it.
type Sessions interface {
	// Checkpoint keeps the working tree as it is. Without a change since the last checkpoint, that
	// one is the answer.
	Checkpoint(ctx context.Context, r CheckpointRequest, progress func(Progress)) (CheckpointReply, error)
	// Sync returns when everything there was when it was called is on the session remote.
	Sync(ctx context.Context, r SyncRequest, progress func(Progress)) (SyncReply, error)
	// Sessions lists those of the state directory, mounted or not.
	Sessions(ctx context.Context) (SessionsReply, error)
	// SessionsOn lists those of a session remote.
	SessionsOn(ctx context.Context, r SessionsOnRequest) (SessionsReply, error)
	SessionLog(ctx context.Context, r SessionLogRequest) (SessionLogReply, error)
	SessionShow(ctx context.Context, r SessionShowRequest) (SessionShowReply, error)
	SessionDiff(ctx context.Context, r SessionDiffRequest) (SessionDiffReply, error)
	// SessionCompare compares the changes of several sessions, and whether they can be merged.
	SessionCompare(ctx context.Context, r SessionCompareRequest) (SessionCompareReply, error)
	// Restore changes files back to a checkpoint.
	Restore(ctx context.Context, r RestoreRequest, progress func(Progress)) (RestoreReply, error)
	// Merge merges the changes of another session into a mount.
	Merge(ctx context.Context, r MergeRequest, progress func(Progress)) (MergeReply, error)
	// Fork begins a session at a checkpoint of another one, and mounts it.
	Fork(ctx context.Context, r ForkRequest, progress func(Progress)) (MountReply, error)
	// SessionSet changes the state of a session, and which of its checkpoints are pinned.
	SessionSet(ctx context.Context, r SessionSetRequest) (SessionInfo, error)
	SessionNote(ctx context.Context, r SessionNoteRequest) (SessionNoteReply, error)
	SessionRecord(ctx context.Context, r SessionRecordRequest) (SessionRecordReply, error)
	// SessionTranscript returns the transcript of a session.
	SessionTranscript(ctx context.Context, r SessionTranscriptRequest) (SessionTranscriptReply, error)
	// SessionErase takes records out of a transcript for good.
	SessionErase(ctx context.Context, r SessionEraseRequest) (SessionEraseReply, error)
	// SessionFacts changes the facts and the handoff of a session, and returns them.
	SessionFacts(ctx context.Context, r SessionFactsRequest) (SessionFactsReply, error)
	SessionGC(ctx context.Context, r SessionGCRequest, progress func(Progress)) (SessionGCReply, error)
	// SessionDelete removes a session from this host and from its session remote. For a time
	// SessionUndelete can restore it.
	SessionDelete(ctx context.Context, r SessionDeleteRequest) (SessionDeleteReply, error)
	SessionUndelete(ctx context.Context, r SessionUndeleteRequest) (SessionDeleteReply, error)
	// SessionTrash lists deleted sessions that can be restored.
	SessionTrash(ctx context.Context, r SessionTrashRequest) (SessionTrashReply, error)
}

// Policy says when checkpoints are made automatically: "off", "idle", "before-risk", or "interval="
// and a duration in the format of time.ParseDuration.
type Policy string

const (
	PolicyOff        Policy = "off"
	PolicyIdle       Policy = "idle"        // when writes have settled
	PolicyBeforeRisk Policy = "before-risk" // before git commands that throw changes away
	PolicyInterval   Policy = "interval="   // prefix of "interval=DURATION": that often, while there is something new
)

// An interval outside of these is a typing error.
const minInterval, maxInterval = time.Second, 30 * 24 * time.Hour

// Split returns the kind of the policy, and for PolicyInterval the interval.
func (p Policy) Split() (kind Policy, every time.Duration, err error) {
	switch p {
	case PolicyOff, PolicyIdle, PolicyBeforeRisk:
		return p, 0, nil
	}
	text, ok := strings.CutPrefix(string(p), string(PolicyInterval))
	if !ok {
		return "", 0, badRequest("unknown policy %.40q for checkpoints: off, idle, before-risk or interval=DURATION", p)
	}
	every, parseErr := time.ParseDuration(text)
	if parseErr != nil || every < minInterval || every > maxInterval {
		return "", 0, badRequest("%.40q is no interval for checkpoints: a duration between %v and %v is, such as 5m", text, minInterval, maxInterval)
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
		return badRequest("unknown base %.40q for a session: auto, thin, shared or seed", o.Base)
	}
	if o.MaxFileSize < 0 {
		return badRequest("a size is negative")
	}
	return nil
}

// Session remotes that are no URL.
const (
	RemoteEmbedded = "embedded" // a bare repository below the state directory; "" means the same
	RemoteOrigin   = "origin"   // the remote that is mounted
	RemoteNone     = "none"     // nothing leaves the mount, and no checkpoints are made
)

// BaseMode says how a session remote gets the history of the mounted repository.
type BaseMode string

const (
	BaseAuto   BaseMode = "auto"   // shared if it has the history, thin if it is empty and REMOTE is a network URL, else seed
	BaseThin   BaseMode = "thin"   // it does without, and names URL and commit
	BaseShared BaseMode = "shared" // it has it, or pushing fails
	BaseSeed   BaseMode = "seed"   // it is sent there if it is not there
)

// BaseModes lists all of them.
var BaseModes = []BaseMode{BaseAuto, BaseThin, BaseShared, BaseSeed}

// SessionOptions say how the work in a mount is pushed.
type SessionOptions struct {
	Remote   string   `json:"remote,omitempty"`    // URL, path, or one of the constants; may carry a secret, so it is never printed or logged
	Policy   Policy   `json:"policy,omitempty"`    // "": PolicyIdle
	Base     BaseMode `json:"base,omitempty"`      // how the session remote comes to the mounted repository's history; "": BaseAuto
	Branches string   `json:"branches,omitempty"`  // how branches are named on the session remote: session.Layout.Branches; "": as the session has it
	TakeOver bool     `json:"take_over,omitempty"` // continue although another machine seems to work in the session

	Include     []string `json:"include,omitempty"`       // globs of ignored or denied paths that checkpoints hold all the same
	Exclude     []string `json:"exclude,omitempty"`       // globs of paths that checkpoints leave out, besides those that look like secrets
	NoDenyList  bool     `json:"no_deny_list,omitempty"`  // paths that look like secrets are held too
	MaxFileSize int64    `json:"max_file_size,omitempty"` // bytes; larger new files are left out; 0: the default
}

// elsewhere reports whether the session remote is a repository that may be known on other machines.
func (o SessionOptions) elsewhere() bool {
	switch o.Remote {
	case "", RemoteEmbedded, RemoteOrigin, RemoteNone:
		return false
	}
	return true
}

// CheckpointRequest asks for a checkpoint of the mount at Dir.
type CheckpointRequest struct {
	Dir     string `json:"dir"` // absolute, the mount or a directory in it
	Message string `json:"message,omitempty"`
	Pin     string `json:"pin,omitempty"`  // name to keep it by
	Sync    bool   `json:"sync,omitempty"` // return when it is on the session remote
}

// CheckpointReply is the output of `checkpoint --json`.
type CheckpointReply struct {
	Checkpoint
	Made    bool      `json:"made"`               // false: nothing had changed since that checkpoint
	LeftOut []LeftOut `json:"left_out" v5:"left"` // that it does not hold, the first hundred
	Paused  float64   `json:"paused_ms"`          // for so long changes had to wait
	Took    float64   `json:"took_ms"`
	Steps   []Step    `json:"steps"` // of which that is made
}

// Step is a part of something, and how long it took.
type Step struct {
	Name string  `json:"name"`
	Took float64 `json:"took_ms"`
}

// LeftOut is a path, or all that is below a directory, that a checkpoint does not hold.
type LeftOut struct {
	Path string `json:"path"`
	Why  string `json:"why"`            // "ignored", "secret", "excluded", "size", "type"
	Size int64  `json:"size,omitempty"` // bytes, of a file
}

// Checkpoint is one checkpoint.
type Checkpoint struct {
	ID       string    `json:"id"` // ULID; asked for by any prefix that is unique, by the name of a pin, or by "@", "@~1", ... from the newest
	Session  string    `json:"session"`
	Lane     string    `json:"lane"`
	Commit   string    `json:"commit"` // of the checkpoint itself
	Tree     string    `json:"tree"`
	Head     string    `json:"head"`   // commit that HEAD was; "": unborn
	Branch   string    `json:"branch"` // short name; "": HEAD was detached
	Reason   string    `json:"reason"` // as session.Reason
	Message  string    `json:"message,omitempty"`
	Time     time.Time `json:"time"`
	Prev     string    `json:"prev,omitempty"`
	Changed  int64     `json:"changed"`  // paths that differ from the checkpoint before
	Bytes    int64     `json:"bytes"`    // of its new objects
	Excluded int64     `json:"excluded"` // paths that it does not hold
	Pins     []string  `json:"pins,omitempty"`
	Recorded int64     `json:"recorded,omitempty"` // records of the transcript between the checkpoint before and this one
	Synced   bool      `json:"synced"`             // it is on the session remote
}

// SyncRequest asks for all of a mount's work to be on its session remote.
type SyncRequest struct {
	Dir     string        `json:"dir"`
	Timeout time.Duration `json:"timeout_ns"` // 0: as long as it takes
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

// SessionsOnRequest asks for the sessions of a session remote, as SessionLogRequest does.
type SessionsOnRequest struct {
	SessionRemote string `json:"session_remote"`
}

func (r SessionsOnRequest) validate() error { return needAt("any", r.SessionRemote) }

// SessionInfo is one session.
type SessionInfo struct {
	SessionStatus
	Remote       string       `json:"remote" v5:"origin"` // the remote that was mounted, without secrets
	Dir          string       `json:"dir"`                // where it is mounted, or was last
	Mounted      bool         `json:"mounted"`
	Stale        bool         `json:"stale,omitempty"`                          // it is not mounted, and nothing has happened in it for 7 days
	Base         string       `json:"base"`                                     // commit that it began with
	Parent       string       `json:"parent,omitempty" v5:"from"`               // "SESSION POINT" that it was forked from
	ParentRemote string       `json:"parent_remote,omitempty" v5:"from_remote"` // session remote of that session, without secrets
	Last         *Checkpoint  `json:"last,omitempty"`
	History      []Transition `json:"history,omitempty"` // oldest first
}

// Transition is one change of a session's state.
type Transition struct {
	State  string    `json:"state"` // as session.LifeState
	Time   time.Time `json:"time"`
	Actor  string    `json:"actor"` // user@host, or the value from the environment
	Reason string    `json:"reason"`
}

// SessionLogRequest lists checkpoints, newest first. Of, here and below, is a mount's directory
// (absolute) or a session's name. With a SessionRemote, a URL or an absolute path which may hold a
// secret, it is the name of a session there, and nothing of this host is read.
type SessionLogRequest struct {
	Of            string `json:"of"`
	SessionRemote string `json:"session_remote,omitempty"`
	Limit         int    `json:"limit"` // 0: all
}

// SessionLogReply is the output of `session log --json`.
type SessionLogReply struct {
	Session     string       `json:"session"`
	Checkpoints []Checkpoint `json:"checkpoints" v5:"points"`
}

// SessionShowRequest asks for all about one checkpoint.
type SessionShowRequest struct {
	Of            string `json:"of"`
	SessionRemote string `json:"session_remote,omitempty"`
	ID            string `json:"id"` // "": the newest
}

// SessionShowReply is the output of `session show --json`.
type SessionShowReply struct {
	Checkpoint
	Changes      []PathChange `json:"changes"` // against the checkpoint before, or the base of the first
	LeftOut      []LeftOut    `json:"left_out"`
	Staged       []PathChange `json:"staged"`                                    // the index against HEAD
	Records      int64        `json:"records"`                                   // lines of the transcript that were recorded while it was the newest
	RemoteBranch string       `json:"remote_branch,omitempty" v5:"branch_there"` // full name of its branch on the session remote; "": it has none
	// Since are the records between the checkpoint before and this one.
	Since []TranscriptRecord `json:"since"`

	Status        SessionStatus `json:"session_status"` // of its session
	SessionRemote string        `json:"session_remote"` // URL without secrets, or a path; "": nothing leaves the mount
	Link          string        `json:"link"`           // as ParseLink reads it; "": there is no session remote
	ForkCommand   string        `json:"fork_command"`   // begins a session at this checkpoint
	ResumeCommand string        `json:"resume_command"` // resumes the session
}

// SessionDiffRequest compares two checkpoints, or a checkpoint and the working tree.
type SessionDiffRequest struct {
	Of            string `json:"of"`
	SessionRemote string `json:"session_remote,omitempty"`
	A             string `json:"a"`                  // "": the base
	B             string `json:"b"`                  // "": the working tree, of which a checkpoint is made
	AOf           string `json:"a_of,omitempty"`     // session that A is of, as Of; "": the same
	ARemote       string `json:"a_remote,omitempty"` // where AOf is, as SessionRemote
	Patch         bool   `json:"patch"`              // the text of the differences too
	Stat          bool   `json:"stat"`               // the numbers of lines too
}

// SessionDiffReply is the output of `session diff --json`.
type SessionDiffReply struct {
	A, B    Checkpoint   `json:"-"`
	Changes []PathChange `json:"changes"`
	Patch   string       `json:"patch,omitempty"` // as git diff prints it
}

// PathChange is one path that two trees do not have alike.
type PathChange struct {
	Path    string `json:"path"`
	Status  string `json:"status"` // "A", "M", "D", "T" as git diff --name-status
	OldMode string `json:"old_mode,omitempty"`
	NewMode string `json:"new_mode,omitempty"`
	Old     string `json:"old,omitempty"` // blob ids
	New     string `json:"new,omitempty"`
	Added   int64  `json:"added,omitempty"` // lines; -1: binary
	Removed int64  `json:"removed,omitempty"`
}

// RestoreRequest changes paths back to a checkpoint.
type RestoreRequest struct {
	Dir           string   `json:"dir"`
	ID            string   `json:"id"`
	Of            string   `json:"of,omitempty"`             // other session that the checkpoint is of; "": this one
	SessionRemote string   `json:"session_remote,omitempty"` // where Of is; "": on this host
	Paths         []string `json:"paths"`                    // relative to the mount; none: all that checkpoints hold
	Staged        bool     `json:"staged"`                   // restore the index too
	DryRun        bool     `json:"dry_run"`
	Nonce         string   `json:"nonce,omitempty"` // the same in all attempts of one request; "": it is not repeated
}

// RestoreReply is the output of `session restore --json`.
type RestoreReply struct {
	Dir        string       `json:"dir"`
	Checkpoint Checkpoint   `json:"checkpoint" v5:"point"`
	Before     *Checkpoint  `json:"before"` // undoes it; null in a dry run
	Changes    []PathChange `json:"changes"`
	Kept       []string     `json:"kept"` // changed meanwhile, and left as they were
	DryRun     bool         `json:"dry_run"`
}

// ForkRequest asks for a new session at a checkpoint. Mount's Remote and Ref are those of the
// session; Dir, Session and the settings are the new one's.
type ForkRequest struct {
	Of            string       `json:"of"`
	SessionRemote string       `json:"session_remote,omitempty"`
	ID            string       `json:"id"` // "": the working tree as it is now, if it is mounted, else the newest
	Mount         MountRequest `json:"mount"`
}

// SessionSetRequest asks to change a session's state, or a pin.
type SessionSetRequest struct {
	Of     string `json:"of"`
	State  string `json:"state,omitempty"` // "paused", "closed", "archived", "open"; "": stays
	Reason string `json:"reason,omitempty"`
	Actor  string `json:"actor,omitempty"`
	Pin    string `json:"pin,omitempty"` // name of a pin to set or to remove
	ID     string `json:"id,omitempty"`  // checkpoint for Pin; "" with Unpin
	Unpin  bool   `json:"unpin,omitempty"`
}

// SessionGCRequest asks to drop checkpoints that no rule keeps.
type SessionGCRequest struct {
	Of     string        `json:"of"`
	DryRun bool          `json:"dry_run"`
	All    time.Duration `json:"all_ns"`   // checkpoints younger than this are kept; 0: seven days
	Daily  time.Duration `json:"daily_ns"` // then the last of each day for so long; 0: thirty days
}

// SessionDeleteRequest asks to delete a session that is not mounted.
type SessionDeleteRequest struct {
	Of       string `json:"of"`
	Remote   string `json:"remote,omitempty"`    // session remote, URL or absolute path; "": that of the session here. It may carry a secret
	TakeOver bool   `json:"take_over,omitempty"` // although another machine seems to be at work in it
}

// SessionDeleteReply is the output of `session delete --json` and `session undelete --json`.
type SessionDeleteReply struct {
	Session string    `json:"session"`
	Local   bool      `json:"local" v5:"here"` // it was on this host
	Refs    int64     `json:"refs"`            // that were moved on the session remote
	Kept    []string  `json:"kept,omitempty"`  // refs that stay as they are on the session remote
	Until   time.Time `json:"until,omitzero"`  // when it can no longer be restored
}

// SessionUndeleteRequest restores the session of that name that was deleted last.
type SessionUndeleteRequest struct {
	Session string `json:"session"`
	Remote  string `json:"remote,omitempty"` // as in SessionDeleteRequest
}

// SessionTrashRequest asks for deleted sessions of the state directory, or of a session remote.
type SessionTrashRequest struct {
	Remote string `json:"remote,omitempty"` // as in SessionDeleteRequest; "": of the state directory
}

// SessionTrashReply is the output of `session list --deleted --json`.
type SessionTrashReply struct {
	Deleted []DeletedSession `json:"deleted"` // newest first
}

// DeletedSession is a session that can be restored.
type DeletedSession struct {
	Name   string    `json:"name"`
	Remote string    `json:"session_remote" v5:"remote"` // without secrets
	At     time.Time `json:"deleted_at"`
	Until  time.Time `json:"until"`
}

// SessionGCReply is the output of `session gc --json`.
type SessionGCReply struct {
	Session string       `json:"session"`
	Kept    int64        `json:"kept"`
	Dropped []Checkpoint `json:"dropped"`
	Records int64        `json:"records"` // of the transcript that were dropped
	Bytes   int64        `json:"bytes"`   // that became free
	DryRun  bool         `json:"dry_run"`
}

// defaultNotes is the Ref of requests that name none.
const defaultNotes = "agent"

// needDir checks the directory of a mount, which must be absolute: the daemon works in another one.
func needDir(dir string) error {
	if !filepath.IsAbs(dir) {
		return badRequest("directory %q is not absolute", dir)
	}
	return nil
}

// needOf checks the name of a session: a directory or a name.
func needOf(of string) error {
	if filepath.IsAbs(of) {
		return nil
	}
	if err := ValidSession(of); err != nil {
		return err
	}
	return nil
}

// needAt is needOf of a session that may be on a session remote: it has a name there, and no
// directory.
func needAt(of, remote string) error {
	if remote == "" {
		return needOf(of)
	}
	if !(SessionOptions{Remote: remote}).elsewhere() {
		return badRequest("%s is no repository that has sessions", remote)
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
	// An empty remote stands for that of the session, which the daemon knows.
	if m.Remote == "" { // the session's
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
