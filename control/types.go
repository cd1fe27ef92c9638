package control

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// History says whether the history before the mounted commit is fetched.
type History string

const (
	HistoryBackground History = "background" // mount first, complete it behind the mount
	HistoryFull       History = "full"       // mount when it is complete
	HistoryNone       History = "none"       // stay shallow
)

// Prefetch says how much is fetched before it is read.
type Prefetch string

const (
	PrefetchAuto Prefetch = "auto" // by likely need, within the byte budget
	PrefetchAll  Prefetch = "all"  // everything, by likely need
	PrefetchNone Prefetch = "none" // only contents that are read
)

// Wait says when a mount request is answered.
type Wait string

const (
	WaitTree Wait = "tree" // the root directory is readable
	WaitGit  Wait = "git"  // and the git directory is ready
	WaitAll  Wait = "all"  // and everything that prefetch selects is fetched
)

// GitDir says where a mount's git directory is visible.
type GitDir string

const (
	GitDirOutside GitDir = "outside" // below the state directory; .git is a file that names it
	GitDirInside  GitDir = "inside"  // .git is the directory, and contains everything that it needs
)

// MountRequest asks for a working tree at a directory.
type MountRequest struct {
	// Remote is any git URL or absolute path; it may contain a secret, so it is never printed or
	// logged. "": the session remote, a URL or path, in Session names it.
	Remote string `json:"remote"`
	Dir    string `json:"dir"` // absolute; created if missing
	Ref    string `json:"ref"` // branch, tag, full ref name or commit id; "" is the remote's HEAD

	// Follow has the mount go with its branch on the remote, which is asked each FollowInterval (0:
	// the daemon's default).
	Follow         bool          `json:"follow,omitempty"`
	FollowInterval time.Duration `json:"follow_interval_ns,omitempty"`

	// Session names the session that the mount resumes or starts. "": one derived from remote and
	// directory, or none if the mount is read-only.
	Session  string `json:"session"`
	ReadOnly bool   `json:"read_only"`

	// Redirects are paths relative to Dir that are stored outside of the mount, in the form of
	// config.Paths. RedirectsOnly says that each must be possible and that the repository's own
	// configuration adds none.
	Redirects     []string `json:"redirects"`
	RedirectsOnly bool     `json:"redirects_only"`

	Submodules bool `json:"submodules"` // mount submodules at their paths, and theirs

	GitDir GitDir `json:"git_dir,omitempty"` // "" is GitDirOutside

	History        History  `json:"history"`         // "" is HistoryBackground
	Prefetch       Prefetch `json:"prefetch"`        // "" is PrefetchAuto
	PrefetchBudget int64    `json:"prefetch_budget"` // bytes that PrefetchAuto may fetch; 0: the daemon's default
	Wait           Wait     `json:"wait"`            // "" is WaitTree

	AllowOther bool   `json:"allow_other"`   // other users may enter the mount
	ACL        bool   `json:"acl,omitempty"` // POSIX access control lists count in the mount
	UID        uint32 `json:"uid"`           // owner shown forevery path; 0 is root
	GID        uint32 `json:"gid"`           // its group; 0 is root's

	// ExactOwner has a Client send UID and GID as they are. Without it a Client takes those that
	// are 0 for the caller's own.
	ExactOwner bool `json:"-"`

	CacheSize int64         `json:"cache_size"` // quota in bytes of the fetched contents on disk; 0: the daemon's default
	TokenFile string        `json:"token_file"` // absolute; read again when the remote refuses the previous token
	Timeout   time.Duration `json:"timeout_ns"` // longest wait for the remote, of this mount and of a read later; 0: the daemon's default

	Token Secret `json:"-"` // crosses the socket beside the request, see wireMount

	// SessionToken and SessionTokenFile are Token and TokenFile for a session remote. Without them
	// it gets those of the mounted remote, if it is on the same host.
	SessionToken Secret `json:"-"`

	// Environment is the environment of the caller, whose settings for git, ssh and credential
	// helpers apply to the remotes of this mount; nil: that of the daemon. It is sent beside the
	// request, see wireMount.
	Environment      Environment `json:"-"`
	SessionTokenFile string      `json:"session_token_file,omitempty"`

	// Nonce is the same in all tries of one asker, and of no other: a mount that was made for it is
	// the answer.
	Nonce string `json:"nonce,omitempty"`

	// Passing says that the daemon must not mount it again after a restart of the machine.
	Passing bool `json:"passing,omitempty"`
	// Through is another path to Dir, for a caller that must not use the ordinary one: while an
	// automount is awaited, only processes of the automounter may. It is valid until the reply.
	Through string `json:"through,omitempty"`

	// At names a checkpoint of the session to show, as in Checkpoint.ID; the mount is then
	// read-only.
	At string `json:"at,omitempty"`

	SessionOptions SessionOptions `json:"session_options,omitzero"`
	CreateRemote   []string       `json:"create_remote,omitempty"` // command that creates the session remote if a git server lacks it; it may carry a secret, so it is not kept

	// Device is an open /dev/fuse with which a privileged process has mounted at Dir already; nil:
	// the daemon mounts. It cannot be sent over the socket.
	Device *os.File `json:"-"`
}

// withDefaults returns the request with the defaults of the command line for empty fields.
func (r MountRequest) withDefaults() MountRequest {
	r.History = cmp.Or(r.History, HistoryBackground)
	r.Prefetch = cmp.Or(r.Prefetch, PrefetchAuto)
	r.Wait = cmp.Or(r.Wait, WaitTree)
	return r
}

// ofCaller returns the request with the owner of this process where none is named.
func (r MountRequest) ofCaller() MountRequest {
	if !r.ExactOwner {
		r.UID, r.GID = cmp.Or(r.UID, uint32(os.Getuid())), cmp.Or(r.GID, uint32(os.Getgid()))
	}
	return r
}

// Secret is a string that is not shown when it is printed, marshalled or logged.
type Secret string

func (Secret) String() string               { return "(hidden)" }
func (Secret) GoString() string             { return "(hidden)" }
func (Secret) MarshalText() ([]byte, error) { return []byte("(hidden)"), nil }

// MountReply is the output of `mount --json`.
type MountReply struct {
	ID      string  `json:"id"`
	Dir     string  `json:"dir"`
	Remote  string  `json:"remote"`  // without secrets
	Ref     string  `json:"ref"`     // short name of what is mounted; "" for a commit that was named by its id
	Commit  string  `json:"commit"`  // hexadecimal id; "" for an empty repository
	Session string  `json:"session"` // "" when the mount has none
	Resumed bool    `json:"resumed"` // the session was there already
	Changed int64   `json:"changed"` // paths of it that differ from the commit
	Files   int64   `json:"files"`   // files and links in the tree; -1 while it still streams in
	Timings Timings `json:"timings_ms"`
}

// Timings are milliseconds since the request arrived.
type Timings struct {
	Connect int64 `json:"connect"` // the remote answered
	Tree    int64 `json:"tree"`    // the root directory was readable
	Trees   int64 `json:"trees"`   // every directory was on this host; 0 while they still stream in
	Mounted int64 `json:"mounted"` // the kernel had the mount
	Total   int64 `json:"total"`   // when the state of Wait was reached
}

// SwitchRequest asks to move a mounted working tree to another commit.
type SwitchRequest struct {
	Dir    string `json:"dir"`    // absolute mount directory
	Ref    string `json:"ref"`    // branch, tag or commit; "-" is where HEAD was before, "" is HEAD
	Create string `json:"create"` // branch to make there; "": none
	Detach bool   `json:"detach"` // any commit will do, and HEAD is on no branch then

	Forward string `json:"forward,omitempty"` // commit that the branch Ref itself is to be moved to; only as a note of the daemon's
}

// SwitchReply is the output of `switch --json`.
type SwitchReply struct {
	Dir        string   `json:"dir"`
	From       string   `json:"from"`        // branch before; "": HEAD was detached
	FromCommit string   `json:"from_commit"` // of all zeros on a branch that had none
	Branch     string   `json:"branch"`      // "": HEAD is detached
	Commit     string   `json:"commit"`
	Created    bool     `json:"created"`            // the branch was made
	Upstream   string   `json:"upstream,omitempty"` // branch of the remote that it was made from
	Paths      int64    `json:"paths"`              // that were changed
	Kept       []string `json:"kept,omitempty"`     // of them, those that were changed meanwhile: they were left alone
	Took       int64    `json:"took_ms"`
}

// Progress is one step of work in progress.
type Progress struct {
	Phase   string `json:"phase"`             // a word or two: "connect", "trees", "prefetch"
	Done    int64  `json:"done"`              // in Unit
	Total   int64  `json:"total"`             // in Unit; 0: not known
	Unit    string `json:"unit,omitempty"`    // "bytes", or a plural noun such as "objects"
	Message string `json:"message,omitempty"` // something worth a line of its own, such as a fallback taken
}

// State is the state of a mount.
type State string

const (
	StatePreparing State = "preparing" // not yet readable
	StateMounted   State = "mounted"   // all well
	StateDegraded  State = "degraded"  // readable, but the remote fails; see MountStatus.Error
	StateFailed    State = "failed"    // no longer served
	StateUnmounted State = "unmounted" // a session's work is kept and not mounted
)

// HistoryState says how much history is on this host.
type HistoryState string

const (
	HistoryShallow   HistoryState = "shallow"
	HistoryDeepening HistoryState = "deepening"
	HistoryComplete  HistoryState = "complete"
)

// UpgradeRequest asks for a worker from another executable. It stays as it is in all versions of
// the protocol.
type UpgradeRequest struct {
	Executable string `json:"executable"` // absolute
}

// DaemonStatus returns of the processes that serve.
type DaemonStatus struct {
	PID        int       `json:"pid"`                  // of the one that serves
	Supervisor int       `json:"supervisor,omitempty"` // of the one that has it replaced when it dies; 0: there is none
	Version    string    `json:"version"`
	Protocol   int       `json:"protocol,omitempty"` // newest version of the messages that it speaks
	Since      time.Time `json:"since"`              // PID serves
	Takeovers  int       `json:"takeovers"`          // processes that went on with the mounts of another
	Reason     string    `json:"reason,omitempty"`   // why the one before ended

	UpgradeFailed string `json:"upgrade_failed,omitempty"` // why the last upgrade was taken back
}

// Status is the output of `status --json`.
type Status struct {
	Mounts []MountStatus `json:"mounts"`
	Cache  CacheStatus   `json:"cache,omitzero"`
	Daemon DaemonStatus  `json:"daemon,omitzero"` // of the process that was asked
}

// MountStatus is the current state of one mount.
type MountStatus struct {
	ID       string       `json:"id"`
	Dir      string       `json:"dir"`
	Remote   string       `json:"remote"` // without secrets
	Ref      string       `json:"ref"`
	Commit   string       `json:"commit"`
	Head     string       `json:"head,omitempty"` // the value of git's HEAD: a branch, by its short name, or a commit
	State    State        `json:"state"`
	Error    string       `json:"error,omitempty"` // why the state is degraded or failed; without secrets
	Notes    []string     `json:"notes,omitempty"` // features that this remote or repository does not support, such as lazy reads
	ReadOnly bool         `json:"read_only"`
	Since    time.Time    `json:"since"` // when it was mounted
	PID      int          `json:"pid"`   // of the process that serves it
	GitReady bool         `json:"git_ready"`
	History  HistoryState `json:"history"`

	Tree    TreeStatus    `json:"tree"`
	Blobs   BlobStatus    `json:"blobs"`
	Network NetworkStatus `json:"network"`
	Queue   QueueStatus   `json:"queue"`

	Operations OperationStatus `json:"operations"`

	Overlay OverlayStatus `json:"overlay"`
	Session SessionStatus `json:"session"`

	Redirects []RedirectStatus `json:"redirects,omitempty"`

	SubmoduleOf string `json:"submodule_of,omitempty" v5:"around"` // Dir of the mount that this one is a submodule of

	Refused []RefusedObject `json:"refused,omitempty"`
	Follow  *FollowStatus   `json:"follow,omitempty"` // none: the mount stays at its commit
}

// TreeStatus returns of the base tree.
type TreeStatus struct {
	Files    int64 `json:"files"`    // files and links; so far, while Complete is false
	Complete bool  `json:"complete"` // every directory is on this host
}

// BlobStatus returns of the contents the tree names.
type BlobStatus struct {
	Total   int64 `json:"total"`                 // distinct blobs
	Fetched int64 `json:"fetched" v5:"hydrated"` // of them on this host
	Bytes   int64 `json:"bytes"`                 // content bytes of the fetched ones; 0 if the request has Commits
}

// NetworkStatus counts since the mount began.
type NetworkStatus struct {
	Requests   int64 `json:"requests"`    // sent to the remote
	RoundTrips int64 `json:"round_trips"` // requests and connections opened
	Blobs      int64 `json:"blobs"`       // received
	Bytes      int64 `json:"bytes"`       // received from the network
}

// QueueStatus counts wanted blobs that are not fetched yet.
type QueueStatus struct {
	Foreground int64 `json:"foreground"` // a process waits for them
	Background int64 `json:"background"`
}

// OperationStatus counts the kernel's requests for the mount.
type OperationStatus struct {
	Total   int64 `json:"total"`
	Pending int64 `json:"pending"` // not answered yet
	Fetched int64 `json:"fetched"` // that needed something from the remote
}

// CacheStatus returns of the contents on disk that all mounts share.
type CacheStatus struct {
	Blobs int64 `json:"blobs"`
	Bytes int64 `json:"bytes"`
	Quota int64 `json:"quota"`
}

// OverlayStatus counts the differences from the base tree.
type OverlayStatus struct {
	Changed int64 `json:"changed"` // paths; -1: not known, because the overlay cannot be read
	Bytes   int64 `json:"bytes"`
}

// RedirectStatus is a path that lives outside of the mount.
type RedirectStatus struct {
	Path   string `json:"path"`   // relative to the mount
	Target string `json:"target"` // where it lives
	Active bool   `json:"active"` // false: nothing was made there yet, or it cannot be redirected
}

// DivergedRef is a branch, tag or notes ref that could not be moved on the session remote. Its
// value in the mount is stored there under another name.
type DivergedRef struct {
	Ref       string `json:"ref"`
	RemoteRef string `json:"remote_ref" v5:"there"`            // its name on the session remote
	KeptRef   string `json:"kept_ref" v5:"ours"`               // name on the session remote of Ref's value in the mount
	BlockedBy string `json:"blocked_by,omitempty" v5:"in_way"` // ref because of which There cannot exist; "": There has commits that Ref does not have
}

// SessionStatus returns of the durable identity of the work; all zero for a mount without one.
type SessionStatus struct {
	Name             string        `json:"name"`
	SessionRemote    string        `json:"session_remote" v5:"remote"` // URL without secrets; of the embedded one its path; "": none
	Mode             string        `json:"mode"`                       // how the session remote comes to the base: "embedded", "shared", "seed", "thin", "none"; "" while that is not known
	Pending          int64         `json:"pending"`                    // refs not yet on the session remote
	LastSync         *time.Time    `json:"last_sync"`                  // null: never
	Error            string        `json:"error,omitempty"`            // why the pending changes are not pushed; without secrets
	Diverged         []string      `json:"diverged,omitempty"`         // refs that were also changed elsewhere; ours are below refs/afs/diverged/
	DivergedRefs     []DivergedRef `json:"diverged_refs,omitempty"`    // the same, with their names on the session remote
	Branches         string        `json:"branches,omitempty"`         // how branches are named on the session remote: "{branch}" is as here
	State            string        `json:"state,omitempty"`            // as session.LifeState
	Lane             string        `json:"lane,omitempty"`
	TakenOverBy      string        `json:"taken_over_by,omitempty" v5:"taken_by"` // host that took the session over from this mount, which continues in Lane
	Policy           Policy        `json:"policy,omitempty"`
	Checkpoints      int64         `json:"checkpoints" v5:"points"`                   // that there are
	LastCheckpoint   string        `json:"last_checkpoint,omitempty" v5:"last_point"` // the newest checkpoint
	LastCheckpointAt *time.Time    `json:"last_checkpoint_at" v5:"last_point_at"`     // null: none
	Dirty            bool          `json:"dirty"`                                     // something changed since

	// Bytes over the network, of all mounts of the session on this host.
	Sent     int64 `json:"sent"`             // to the session remote
	Received int64 `json:"received"`         // from it
	Seeded   int64 `json:"seeded,omitempty"` // from the mounted remote, of history that the session remote lacked
}

// validate refuses requests that no daemon could carry out, on both sides.
func (r MountRequest) validate() error {
	if r.Session != "" {
		if err := ValidSession(r.Session); err != nil {
			return err
		}
	}
	switch {
	case r.Remote == "" && (r.Session == "" || !r.SessionOptions.elsewhere()):
		return badRequest("no remote given")
	case !filepath.IsAbs(r.Dir):
		return badRequest("directory %q is not absolute", r.Dir)
	case r.Through != "" && !strings.HasPrefix(r.Through, proc.Root):
		return badRequest("%q is no way to a directory of another process", r.Through)
	case r.GitDir != "" && r.GitDir != GitDirOutside && r.GitDir != GitDirInside:
		return badRequest("unknown place %q of the git directory", r.GitDir)
	case r.History != HistoryBackground && r.History != HistoryFull && r.History != HistoryNone:
		return badRequest("unknown history %q", r.History)
	case r.Prefetch != PrefetchAuto && r.Prefetch != PrefetchAll && r.Prefetch != PrefetchNone:
		return badRequest("unknown prefetch %q", r.Prefetch)
	case r.Wait != WaitTree && r.Wait != WaitGit && r.Wait != WaitAll:
		return badRequest("unknown wait %q", r.Wait)
	case r.PrefetchBudget < 0 || r.CacheSize < 0 || r.Timeout < 0:
		return badRequest("a size or time is negative")
	case r.TokenFile != "" && !filepath.IsAbs(r.TokenFile):
		return badRequest("token file %q is not absolute", r.TokenFile)
	}
	return r.SessionOptions.validate()
}

// maxSession is the longest name of a session, in bytes: it names a directory.
const maxSession = 128

// ValidSession refuses text that cannot name a session: it must be a plain file name on every
// system.
func ValidSession(name string) *Error {
	bad := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r))
	}
	switch {
	case name == "":
		return badRequest("the name of a session is empty")
	case len(name) > maxSession:
		return badRequest("the name of a session has %d bytes, limit is %d", len(name), maxSession)
	case strings.ContainsFunc(name, bad) || strings.ContainsRune("._-", rune(name[0])):
		return badRequest("%q is no name for a session: letters, digits, dots, dashes and underscores are, a letter or digit first", name)
	}
	return nil
}

func (r UnmountRequest) validate() error {
	if !filepath.IsAbs(r.Dir) {
		return badRequest("directory %q is not absolute", r.Dir)
	}
	return nil
}

func (r UpgradeRequest) validate() error {
	if !filepath.IsAbs(r.Executable) {
		return badRequest("executable %q is not absolute", r.Executable)
	}
	return nil
}

func (r SwitchRequest) validate() error {
	switch {
	case !filepath.IsAbs(r.Dir):
		return badRequest("directory %q is not absolute", r.Dir)
	case r.Ref == "" && r.Create == "" && !r.Detach:
		return badRequest("nothing to switch to")
	case r.Create != "" && r.Detach:
		return badRequest("a new branch and no branch at the same time")
	}
	return nil
}

// unsupported returns an error for a request that another version of the daemon may answer.
func unsupported(format string, args ...any) *Error {
	e := badRequest(format, args...)
	e.Kind = CodeUnsupported
	return e
}

// badRequest returns an error for a request that no daemon would answer.
func badRequest(format string, args ...any) *Error {
	return &Error{Code: ExitUsage, Verb: "read", Object: "request", Cause: fmt.Sprintf(format, args...)}
}
