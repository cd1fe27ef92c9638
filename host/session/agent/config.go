package agent

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/capture"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/session/writeback/objects"
)

// Config connects an Agent with its mount. The Agent may use the interfaces after Configure was called; parts of the
// mount, such as its git directory, may still be missing then.
type Config struct {
	Session  string // name of the session; "" if the mount has none
	Dir      string // directory of the mount, which appears in logs and recorded reasons
	Writable bool   // whether the mount can be written to
	Log      *zap.Logger

	Tree       Tree
	Removals   Removals
	Git        GitDir
	Captures   Captures
	Repository Repository
	Remotes    Remotes
	Objects    Objects

	// Writer returns the identity with which this state directory and this process write to sessions.
	Writer func() (session.Writer, error)
	// Watch starts to send to the channel wake, without blocking, whenever an entry is created in the directory dir,
	// unless its name begins with an element of except. The returned function stop ends the watch. If Watch was called
	// before with the same dir and wake, fresh is false and stop is nil.
	Watch func(dir string, wake chan<- struct{}, except ...string) (stop func(), fresh bool, err error)
	// Turn is set for a mount that was taken over from an earlier process. It waits until this mount may open its
	// session and push what the earlier process has not pushed, or ctx has ended. The agent calls the function done
	// after that push.
	Turn func(ctx context.Context) (done func())
	// Background runs the function work in a goroutine, and reports a panic of work. The end of the mount waits until
	// work has returned.
	Background func(name string, work func())
	// Followed reports whether all changes of the working tree were made by following the branch on the remote, so that
	// no checkpoint is needed.
	Followed func(ctx context.Context) bool
}

// Tree reports changes of the working tree.
type Tree interface {
	// Changed returns the number of paths that were changed in the mount.
	Changed() int64
	// LastChange returns the time of the latest change.
	LastChange() time.Time
	// Noticed returns a channel that holds one token after a file was changed.
	Noticed() <-chan struct{}
}

// Removals reports that many files were removed or overwritten at once in the mount. The contents of these files are
// kept until the next checkpoint.
type Removals interface {
	// MassRemoval returns a channel that holds one token after many files were removed.
	MassRemoval() <-chan struct{}
	// MassRemoved returns the time of the latest removal of many files. full reports whether there is little room to keep
	// more removed contents, and many whether many files were removed since the last checkpoint.
	MassRemoved() (latest time.Time, full, many bool)
}

// GitDir reports the state of the mount's git directory.
type GitDir interface {
	// Await waits until the git directory was created or its creation has failed. It returns false if ctx or the mount
	// ends first.
	Await(ctx context.Context) bool
	// Exists reports whether this process or a predecessor has created the git directory, so that git may have been used.
	Exists() bool
	// Untouched reports whether refs, HEAD and index are the same as when the mount was created. It also returns false if
	// the comparison would take long.
	Untouched() (bool, error)
}

// Captures opens Capturers of the working tree.
type Captures interface {
	// NewCapturer returns a Capturer that continues from the newest checkpoint of the lane in r.Lane.
	NewCapturer(r CaptureRequest) (Capturer, error)
}

// CaptureRequest has the parameters for a new Capturer.
type CaptureRequest struct {
	Repo  *session.Repo
	Lane  session.Lane // lane in which the Capturer creates checkpoints
	Rules capture.Rules
	// MergedNotes returns the commit to which a notes ref was set when notes of other sessions were merged into it;
	// zero if no notes were merged.
	MergedNotes func(ref string) object.ID
}

// Capturer creates checkpoints of the working tree. It is implemented by *capture.Capturer, which documents the
// methods.
type Capturer interface {
	Checkpoint(ctx context.Context, reason session.Reason, message string, carry ...capture.Carrying) (
		session.Checkpoint, capture.Report, error)
	Last() (session.Checkpoint, bool)
	SetLane(lane string, segment int)
}

// Repository opens the session repository. The caller closes the result.
type Repository interface {
	// Open opens the repository for checkpoints and refs, and creates it if it is missing.
	Open() (*session.Repo, error)
	// OpenMeta opens the repository, whose object format is f, to change the metadata. It can be called before the base
	// commit of the mount is known.
	OpenMeta(f object.Format) (*session.Repo, error)
	// Meta returns the metadata of a new session.
	Meta() session.Meta
}

// Remotes returns the remotes of the mount.
type Remotes interface {
	// Session returns the session remote, or nil if the session has none or only the embedded one.
	Session() *thin.Remote
	// SessionRef returns the value of a ref of the session remote, or zero if the ref does not exist. There must be a
	// session remote.
	SessionRef(ctx context.Context, name string) (object.ID, error)
	// Parent returns the name of the parent session and a connection to its session remote, which is nil if there is no
	// parent.
	Parent() (name string, remote *transport.Remote)
	// OpenOrigin opens another connection to the mounted remote. The caller closes it.
	OpenOrigin() (*transport.Remote, error)
}

// Objects fetches objects from session remotes.
type Objects interface {
	// FetchMeta fetches the commit want, a version of the session's metadata, into the session repository, which has
	// the commit have.
	FetchMeta(ctx context.Context, want, have object.ID) error
	// ReadMeta reads the metadata of another session in the commit id from its session remote, without storing them.
	ReadMeta(ctx context.Context, remote *transport.Remote, id object.ID) (session.Meta, error)
	// Contents returns a function that fetches contents of the session that are only on its session remote, or nil if
	// there are none.
	Contents(ctx context.Context) func(ids []object.ID) error
}

// Store provides the objects and refs of the mounted remote. It is implemented by *fetch.Store.
type Store interface {
	objects.Provider
	// Refs returns the known branches and tags of the mounted remote.
	Refs() []packedrefs.Ref
}
