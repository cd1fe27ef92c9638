package control

import (
	"cmp"
	"os"
	"time"

	"github.com/artifactfs/artifactfs/fetch/readprofile"
)

// History states whether the history before the mounted commit is fetched.
type History string

const (
	HistoryBackground History = "background" // the history is fetched in the background after the mount
	HistoryFull       History = "full"       // the mount waits until the history was fetched
	HistoryNone       History = "none"       // the history is not fetched: the repository stays shallow
)

// Prefetch states which contents are fetched before they are read.
type Prefetch string

const (
	// contents are fetched up to the byte budget; contents that are likely to be read come first
	PrefetchAuto Prefetch = "auto"
	PrefetchAll  Prefetch = "all"  // all contents are fetched; contents that are likely to be read come first
	PrefetchNone Prefetch = "none" // contents are only fetched when they are read
)

// Wait states when the reply to a mount request is sent.
type Wait string

const (
	WaitTree Wait = "tree" // the reply is sent when the root directory is readable
	WaitGit  Wait = "git"  // the reply is sent when the root directory is readable and the git directory is ready
	// the reply is sent when, in addition to WaitGit, the contents that Prefetch selects were fetched
	WaitAll Wait = "all"
)

// GitDir states where the git directory of a mount is.
type GitDir string

const (
	GitDirOutside GitDir = "outside" // below the state directory; .git is a file that contains its path
	GitDirInside  GitDir = "inside"  // .git is the git directory itself, and refers to nothing outside of the mount
)

// MountRequest requests a mount of a remote at a directory.
type MountRequest struct {
	// Remote is any git URL or an absolute path. It may contain a secret, so it is never printed or logged. "": the
	// session named Session is read from the session remote in SessionOptions, which must be a URL or path, and its remote
	// is mounted.
	Remote string `json:"remote"`
	Dir    string `json:"dir"` // absolute directory; it is created if it does not exist
	Ref    string `json:"ref"` // branch, tag, full ref name or commit id; "": the remote's HEAD

	// Follow makes the mount move with its branch on the remote.
	Follow bool `json:"follow,omitempty"`
	// time between two requests for the branch; 0: the daemon's default
	FollowInterval time.Duration `json:"follow_interval_ns,omitempty"`

	// Session is the name of the session that the mount resumes or starts. If it is "", a writable mount gets a name that
	// is derived from remote and directory, and a read-only mount has no session.
	Session string `json:"session"`
	// if set, only requests with the same tenant, or without a tenant, can resume the session on this host
	Tenant   string `json:"tenant,omitempty"`
	ReadOnly bool   `json:"read_only"` // nothing can be changed in the mount

	// Redirects are paths relative to Dir whose contents are stored outside of the mount.
	Redirects []string `json:"redirects"`
	// RedirectsOnly makes the mount fail if one of Redirects is not possible, and ignores the redirects that the
	// configuration of the repository names.
	RedirectsOnly bool `json:"redirects_only"`

	Submodules bool `json:"submodules"` // also mount submodules at their paths, recursively

	// place of the git directory: "outside" or "inside" of the mount; "": "outside"
	GitDir GitDir `json:"git_dir,omitempty"`

	MountFetch
	MountAccess
	MountLogin

	// Nonce is a random text that is the same if the request is repeated, and different in every other request. If a
	// mount was already created for the same Nonce, the reply describes that mount.
	Nonce string `json:"nonce,omitempty"`

	// Passing states that the daemon does not mount the directory again after a restart of the machine.
	Passing bool `json:"passing,omitempty"`
	// Through is another path to Dir, which the daemon uses to mount: while an automount is in progress, only processes
	// of the automounter can use Dir itself. The path is valid until the reply.
	Through string `json:"through,omitempty"`

	// Second is the absolute directory of another mount of the daemon. That mount, with the bind mounts below it, then
	// also becomes visible at Dir. All other fields except ReadOnly are ignored. "": a remote is mounted.
	Second string `json:"second,omitempty"`

	// At names a checkpoint of the session. The mount then shows that checkpoint and is read-only. "": no checkpoint.
	At string `json:"at,omitempty"`

	// SessionOptions are the options of the session. Options that are empty keep their values if the session exists.
	SessionOptions SessionOptions `json:"session_options,omitzero"`
	// CreateRemote is a command that creates the session remote if a git server does not have it. The command may contain
	// a secret, so it is not stored.
	CreateRemote []string `json:"create_remote,omitempty"`

	// NewGit is what the git directory gets in addition if it is created for this request; nil: nothing.
	NewGit *NewGit `json:"-"`

	// Device is an open /dev/fuse that a privileged process has already mounted at Dir. If it is nil, the daemon mounts.
	// It cannot be sent over the socket.
	Device *os.File `json:"-"`
}

// withDefaults returns the request with the defaults of the command line for empty fields.
func (r MountRequest) withDefaults() MountRequest {
	r.History = cmp.Or(r.History, HistoryBackground)
	r.Prefetch = cmp.Or(r.Prefetch, PrefetchAuto)
	r.Wait = cmp.Or(r.Wait, WaitTree)
	return r
}

// ofCaller returns the request with this process's user, group and umask where the request has none, unless ExactOwner
// is set.
func (r MountRequest) ofCaller() MountRequest {
	if !r.ExactOwner {
		r.UID, r.GID = cmp.Or(r.UID, uint32(os.Getuid())), cmp.Or(r.GID, uint32(os.Getgid()))
		r.Umask = cmp.Or(r.Umask, CallerUmask())
	}
	return r
}

// Secret is a string that is not shown when it is printed, marshaled or logged.
type Secret string

func (Secret) String() string               { return "(hidden)" }
func (Secret) GoString() string             { return "(hidden)" }
func (Secret) MarshalText() ([]byte, error) { return []byte("(hidden)"), nil }

// MountReply is the output of `mount --json`.
type MountReply struct {
	ID      string  `json:"id"`             // id of the mount: the name of its directory below mounts/ of the state directory
	Dir     string  `json:"dir"`            // absolute directory of the mount
	Remote  string  `json:"remote"`         // URL or path of the remote, without secrets
	Ref     string  `json:"ref"`            // short name of the mounted ref; "": the commit was named by its id
	Head    string  `json:"head,omitempty"` // git's HEAD: the short name of a branch, or a commit; missing: not known yet
	Commit  string  `json:"commit"`         // id of the mounted commit in hexadecimal; "": the repository is empty
	Session string  `json:"session"`        // name of the session; "": the mount has none
	Resumed bool    `json:"resumed"`        // true if the session existed before
	Changed int64   `json:"changed"`        // number of paths in the session that differ from the commit
	Files   int64   `json:"files"`          // number of files and links in the tree; -1: the trees are still being fetched
	Timings Timings `json:"timings_ms"`     // times at which the states of the mount were reached
	// what is not in a mount that starts from a checkpoint; missing: everything is
	Receipt *Receipt `json:"receipt,omitempty"`
	// set by the command, not by the daemon: conversations that were placed for agents of this user
	Memory []PlacedMemory `json:"memory,omitempty"`
	// files that a fork has in addition to those of the checkpoint; missing: there were none to carry
	Carried *Carried `json:"carried,omitempty"`
}

// Timings are durations in milliseconds. Each begins when the mount request arrives and ends when the mount reaches a
// state.
type Timings struct {
	Connect int64 `json:"connect"` // time until the remote answered
	Tree    int64 `json:"tree"`    // time until the root directory was readable
	Trees   int64 `json:"trees"`   // time until every directory was on this host; 0: directories are still being fetched
	Mounted int64 `json:"mounted"` // time until the mount was attached
	Total   int64 `json:"total"`   // time until the state that the request names in its field wait was reached
}

// SwitchRequest requests that a mounted working tree is changed to another commit.
type SwitchRequest struct {
	Dir    string `json:"dir"`    // absolute directory of the mount
	Ref    string `json:"ref"`    // branch, tag or commit; "-": the previous value of HEAD; "": HEAD
	Create string `json:"create"` // name of a new branch at the commit; "": no branch is created
	Detach bool   `json:"detach"` // accept any commit, and detach HEAD

	Forward string `json:"forward,omitempty"` // commit to which the branch Ref is moved; clients leave it empty
}

// SwitchReply is the output of `switch --json`.
type SwitchReply struct {
	Dir        string `json:"dir"`                // absolute directory of the mount
	From       string `json:"from"`               // previous branch; "": HEAD was detached
	FromCommit string `json:"from_commit"`        // previous commit; all zeros: the branch was unborn
	Branch     string `json:"branch"`             // new branch; "": HEAD is detached
	Commit     string `json:"commit"`             // new commit
	Created    bool   `json:"created"`            // the branch was created
	Upstream   string `json:"upstream,omitempty"` // branch of the remote from which the branch was created
	Paths      int64  `json:"paths"`              // number of changed paths
	// paths that were left unchanged, because other processes changed them during the switch
	Kept []string `json:"kept,omitempty"`
	Took int64    `json:"took_ms"` // duration in milliseconds
}

// Progress reports the progress of a request.
type Progress struct {
	Phase   string `json:"phase"`             // current phase in one or two words, such as "connect", "trees", "prefetch"
	Done    int64  `json:"done"`              // amount that is done, in Unit
	Total   int64  `json:"total"`             // total amount, in Unit; 0: unknown
	Unit    string `json:"unit,omitempty"`    // "bytes", or a plural noun such as "objects"
	Message string `json:"message,omitempty"` // text that is shown on a separate line, such as a warning
}

// State is the state of a mount.
type State string

const (
	StatePreparing State = "preparing" // the mount is not readable yet
	StateMounted   State = "mounted"   // the mount can be used
	// the mount is readable, but the last request to the remote failed; see MountStatus.Error
	StateDegraded  State = "degraded"
	StateFailed    State = "failed"    // the mount is not served any more
	StateUnmounted State = "unmounted" // a session with changes exists and is not mounted
)

// HistoryState states how much of the history is on this host.
type HistoryState string

const (
	HistoryShallow   HistoryState = "shallow"
	HistoryDeepening HistoryState = "deepening"
	HistoryComplete  HistoryState = "complete"
)

// UpgradeRequest requests that the worker is replaced by a process of another executable. The request is the same in
// all versions of the protocol.
type UpgradeRequest struct {
	Executable string `json:"executable"` // absolute path of the new executable
}

// DaemonStatus describes the worker and the supervisor.
type DaemonStatus struct {
	PID int `json:"pid"` // process id of the worker
	// process id of the supervisor, which replaces the worker when it dies; 0: none
	Supervisor int       `json:"supervisor,omitempty"`
	Version    string    `json:"version"`            // version of the program
	Protocol   int       `json:"protocol,omitempty"` // newest version of the messages that the daemon supports
	Since      time.Time `json:"since"`              // start of the worker
	Takeovers  int       `json:"takeovers"`          // number of times that a new worker has taken over the mounts
	Reason     string    `json:"reason,omitempty"`   // reason why the previous worker ended

	UpgradeFailed string `json:"upgrade_failed,omitempty"` // reason why the last upgrade was undone
}

// Status is the output of `status --json`.
type Status struct {
	Mounts []MountStatus `json:"mounts"`          // all mounts, including those that ended because of a failure
	Cache  CacheStatus   `json:"cache,omitzero"`  // fetched contents on disk
	Daemon DaemonStatus  `json:"daemon,omitzero"` // the daemon that answered
}

// MountStatus is the current state of one mount.
type MountStatus struct {
	ID     string `json:"id"`             // id of the mount
	Dir    string `json:"dir"`            // absolute directory of the mount
	Remote string `json:"remote"`         // URL or path of the remote, without secrets
	Ref    string `json:"ref"`            // short name of the mounted ref; "": the commit was named by its id
	Commit string `json:"commit"`         // id of the commit that the mount shows
	Head   string `json:"head,omitempty"` // git's HEAD: the short name of a branch, or a commit
	// State is "preparing", "mounted", "degraded" (the last request to the remote failed), "failed" or "unmounted".
	State State  `json:"state"`
	Error string `json:"error,omitempty"` // reason why the state is degraded or failed, without secrets
	// notes, for example about features that the remote or repository does not support
	Notes    []string     `json:"notes,omitempty"`
	ReadOnly bool         `json:"read_only"` // nothing can be changed in the mount
	Since    time.Time    `json:"since"`     // time of the mount
	PID      int          `json:"pid"`       // process that serves the mount
	GitReady bool         `json:"git_ready"` // the git directory is ready
	History  HistoryState `json:"history"`   // "shallow", "deepening" (the history is being fetched) or "complete"

	Tree       TreeStatus      `json:"tree"`       // directories and files of the base tree
	Blobs      BlobStatus      `json:"blobs"`      // contents of the files in the base tree
	Network    NetworkStatus   `json:"network"`    // requests to the remote since the mount
	Queue      QueueStatus     `json:"queue"`      // blobs that wait to be fetched
	Operations OperationStatus `json:"operations"` // requests of the kernel
	Overlay    OverlayStatus   `json:"overlay"`    // differences from the base tree
	// session of the mount; all fields are empty if there is none
	Session   SessionStatus    `json:"session"`
	Redirects []RedirectStatus `json:"redirects,omitempty"` // paths that are stored outside of the mount
	// directory of the mount that has this mount as a submodule
	SubmoduleOf string `json:"submodule_of,omitempty"`
	// objects whose answers were invalid, so they cannot be read
	Refused []RefusedObject `json:"refused,omitempty"`
	// state of following the branch; missing: the mount does not follow
	Follow *FollowStatus `json:"follow,omitempty"`
}

// TreeStatus describes the base tree.
type TreeStatus struct {
	Files    int64 `json:"files"`    // number of files and links; while Complete is false, the number that is known so far
	Complete bool  `json:"complete"` // every directory is on this host
}

// BlobStatus describes the contents of the files in the base tree.
type BlobStatus struct {
	Total   int64              `json:"total"`             // number of distinct blobs
	Fetched int64              `json:"fetched"`           // number of these blobs that are on this host
	Bytes   int64              `json:"bytes"`             // total size of the blobs on this host
	Profile *readprofile.Usage `json:"profile,omitempty"` // read profile of the mount; missing: the mount has none
}

// NetworkStatus counts what was sent and received since the mount started.
type NetworkStatus struct {
	Requests   int64 `json:"requests"`    // requests that were sent to the remote
	RoundTrips int64 `json:"round_trips"` // requests, and connections that were opened
	Blobs      int64 `json:"blobs"`       // blobs that were received
	Bytes      int64 `json:"bytes"`       // bytes that were received

	Relay *RelayStatus `json:"relay,omitempty"` // relay through which the remote is reached; missing: none
}

// RelayStatus describes how a remote is reached through a relay. It counts for all mounts of the remote, since the
// start of the worker.
type RelayStatus struct {
	URL          string `json:"url"`           // URL of the relay
	Answers      int64  `json:"answers"`       // answers of the relay, including incomplete ones
	FallThroughs int64  `json:"fall_throughs"` // requests that were sent to the git server, because the relay failed
	// true if requests are not sent to the relay for a while, because it has failed
	Paused bool `json:"paused"`
	// reason why the last request was sent to the git server, without secrets
	LastFailure string `json:"last_failure,omitempty"`
	// time at which a request was last sent to the git server for this reason
	FailedAt *time.Time `json:"last_failure_at,omitempty"`
}

// QueueStatus counts the blobs that wait to be fetched.
type QueueStatus struct {
	Foreground int64 `json:"foreground"` // blobs that a process waits for
	Background int64 `json:"background"` // other blobs
}

// OperationStatus counts the requests that the kernel has sent to the mount.
type OperationStatus struct {
	Total   int64 `json:"total"`   // number of requests that the kernel has sent
	Pending int64 `json:"pending"` // number of requests without an answer yet
	Fetched int64 `json:"fetched"` // number of requests that had to wait for the remote
}

// CacheStatus describes the fetched contents on disk, which all mounts share.
type CacheStatus struct {
	Blobs int64 `json:"blobs"` // number of cached blobs
	Bytes int64 `json:"bytes"` // total size of the cached blobs, in bytes
	Quota int64 `json:"quota"` // maximum size of the cached contents, in bytes
}

// OverlayStatus describes the differences from the base tree.
type OverlayStatus struct {
	// number of paths that differ from the base tree; -1: unknown, because the overlay cannot be read
	Changed int64 `json:"changed"`
	Bytes   int64 `json:"bytes"` // total size of the overlay's files, in bytes
}

// RedirectStatus describes a path that is stored outside of the mount.
type RedirectStatus struct {
	Path   string `json:"path"`   // path relative to the mount
	Target string `json:"target"` // directory outside of the mount that has the contents of the path
	Active bool   `json:"active"` // false: the directory was not created yet, or the path cannot be redirected
}

// DivergedRef is a branch, tag or notes ref that has diverged on the session remote. Its value in the mount was pushed
// under another name.
type DivergedRef struct {
	Ref       string `json:"ref"`        // full name of the ref in the mount
	RemoteRef string `json:"remote_ref"` // name of the ref on the session remote
	KeptRef   string `json:"kept_ref"`   // ref on the session remote to which the value of the ref in the mount was pushed
	// BlockedBy is a ref whose name prevents RemoteRef from being created; "": RemoteRef has commits that Ref lacks.
	BlockedBy string `json:"blocked_by,omitempty"`
}

// SessionStatus describes the session of a mount. All fields are zero if the mount has none.
type SessionStatus struct {
	Name string `json:"name"` // name of the session; "": the mount has none
	// SessionRemote is the URL without secrets, or the path of the embedded session remote; "": there is none.
	SessionRemote string `json:"session_remote"`
	// Mode states how the session remote gets the history: "embedded", "shared", "seed", "thin" or "none"; "": not known
	// yet.
	Mode         string     `json:"mode"`
	Pending      int64      `json:"pending"`                 // number of refs that are not on the session remote yet
	PendingSince *time.Time `json:"pending_since,omitempty"` // time since which refs are pending
	LastSync     *time.Time `json:"last_sync"`               // time of the last complete push; null: there was none
	Error        string     `json:"error,omitempty"`         // reason why refs are pending, without secrets
	// diverged refs; their values were pushed below refs/afs/diverged/
	Diverged     []string      `json:"diverged,omitempty"`
	DivergedRefs []DivergedRef `json:"diverged_refs,omitempty"` // the refs of Diverged, with their names on the session remote
	// Branches is the pattern of the names of branches on the session remote; "{branch}": the names are unchanged.
	Branches string `json:"branches,omitempty"`
	// State is "open" (never mounted), "active" (mounted), "paused" (not mounted), "closed" or "archived".
	State string `json:"state,omitempty"`
	Lane  string `json:"lane,omitempty"` // chain of checkpoints that the next checkpoint belongs to
	// TakenOverBy is the host that took over the session from this mount, which continues in Lane.
	TakenOverBy string `json:"taken_over_by,omitempty"`
	// Policy states when checkpoints are made automatically: "off", "idle", "before-risk" or "interval=DURATION".
	Policy           Policy     `json:"policy,omitempty"`
	Checkpoints      int64      `json:"checkpoints"`               // number of checkpoints
	LastCheckpoint   string     `json:"last_checkpoint,omitempty"` // id of the newest checkpoint
	LastCheckpointAt *time.Time `json:"last_checkpoint_at"`        // time of the newest checkpoint; null: there is none
	// true if files or git state changed since the newest checkpoint
	Dirty bool `json:"dirty"`

	// The following fields count the bytes that all mounts of the session on this host have transferred over the network.

	Sent     int64 `json:"sent"`     // bytes that were sent to the session remote
	Received int64 `json:"received"` // bytes that were received from the session remote
	// bytes that were fetched from the mounted remote, for history that the session remote lacked
	Seeded int64 `json:"seeded,omitempty"`
}
