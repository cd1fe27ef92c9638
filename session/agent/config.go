package agent

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/packedrefs"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/capture"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/session/writeback"
	"github.com/artifactfs/artifactfs/transport"
)

// Config connects an Agent with its mount. The interfaces are used after Configure; some parts of the mount may be
// missing then.
type Config struct {
	Session  string // name; "" if the mount has no session
	Dir      string // directory of the mount, for logs and for recorded reasons
	Writable bool
	Log      *zap.Logger

	Tree       Tree
	Removals   Removals
	Git        GitDir
	Captures   Captures
	Repository Repository
	Remotes    Remotes
	Objects    Objects

	// Writer returns the identity of this state directory and process among the writers of sessions.
	Writer func() (session.Writer, error)
	// Watch sends to wake, without blocking, when an entry is created in dir, until stop is called. fresh is false, and
	// stop nil, if wake watches dir already.
	Watch func(dir string, wake chan<- struct{}) (stop func(), fresh bool, err error)
	// Background runs work in a goroutine that the end of the mount waits for, and reports panics of work.
	Background func(name string, work func())
	// Followed reports whether all changes of the working tree are those that following the remote made, so that no
	// checkpoint is needed.
	Followed func(ctx context.Context) bool
}

// Tree reports changes of the working tree.
type Tree interface {
	// Changed returns the number of paths that the user changed.
	Changed() int64
	// LastChange returns the time of the latest change.
	LastChange() time.Time
	// Noticed returns a channel that holds one token after a change.
	Noticed() <-chan struct{}
}

// Removals reports removals and overwrites of many files. Their contents are kept until the next checkpoint.
type Removals interface {
	// MassRemoval returns a channel that holds one token after such a removal.
	MassRemoval() <-chan struct{}
	// MassRemoved returns the time of the latest removal, whether there is no room to keep more contents, and whether
	// many files were removed since the last checkpoint.
	MassRemoved() (latest time.Time, full, many bool)
}

// GitDir is the git directory of the mount.
type GitDir interface {
	// Await waits until the git directory was created, or its creation failed. It returns false if ctx or the mount
	// ended first.
	Await(ctx context.Context) bool
	// Exists reports whether git may have been used, because this process or a predecessor has created the directory.
	Exists() bool
	// Untouched reports whether refs, HEAD and index are as they were at the time of the mount. It returns false if it
	// cannot find out quickly.
	Untouched() (bool, error)
}

// Captures opens Capturers of the working tree.
type Captures interface {
	NewCapturer(r CaptureRequest) (Capturer, error)
}

// CaptureRequest holds the parameters of a Capturer.
type CaptureRequest struct {
	Repo  *session.Repo
	Lane  session.Lane // lane of its checkpoints
	Rules capture.Rules
	// MergedNotes returns the commit to which merging notes of other sessions has moved a notes ref; zero if it has not.
	MergedNotes func(ref string) object.ID
}

// Capturer makes checkpoints of the working tree. It is implemented by *capture.Capturer.
type Capturer interface {
	Checkpoint(ctx context.Context, reason session.Reason, message string) (session.Checkpoint, capture.Report, error)
	Last() (session.Checkpoint, bool)
	SetLane(lane string, segment int)
}

// Repository opens the session's repository. The caller closes it.
type Repository interface {
	// Open opens the repository for checkpoints and refs, and creates it if it is missing.
	Open() (*session.Repo, error)
	// OpenMeta opens the repository for changes of the metadata. It works before the base commit of the mount is known.
	OpenMeta() (*session.Repo, error)
	// Meta returns the metadata of a new session.
	Meta() session.Meta
}

// Remotes are the remotes of the mount.
type Remotes interface {
	// Session returns the session remote; nil if the session has no other than the embedded one.
	Session() *thin.Remote
	// Parent returns the name of the parent session and a connection to its session remote; nil if there is none.
	Parent() (name string, remote *transport.Remote)
	// OpenOrigin opens another connection to the mounted remote. The caller closes it.
	OpenOrigin() (*transport.Remote, error)
}

// Objects fetches objects from session remotes.
type Objects interface {
	// FetchMeta fetches version want of the session's metadata into the session's repository, which has version have.
	FetchMeta(ctx context.Context, want, have object.ID) error
	// ReadMeta reads the metadata of another session from its session remote. It stores nothing.
	ReadMeta(ctx context.Context, remote *transport.Remote, id object.ID) (session.Meta, error)
	// Contents returns a function that fetches contents of the session that exist on its session remote alone; nil if
	// there are none.
	Contents(ctx context.Context) func(ids []object.ID) error
}

// Store provides the objects and refs of the mounted remote. It is implemented by *fetch.Store.
type Store interface {
	writeback.Provider
	// Refs returns the known branches and tags of the mounted remote.
	Refs() []packedrefs.Ref
}
