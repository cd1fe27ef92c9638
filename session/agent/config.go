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

// Config connects an Agent with its mount. The interfaces are used from Configure on, as far as the mount is made by then.
type Config struct {
	Session  string // name; "": the mount keeps nothing
	Dir      string // of the mount, for logs and for the reasons on record
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
	// Watch sends to wake, if there is room, when an entry is created in dir, until stop is called. fresh is false, and stop
	// nil, if wake watches dir already.
	Watch func(dir string, wake chan<- struct{}) (stop func(), fresh bool, err error)
	// Background runs work in a goroutine that the end of the mount waits for, and reports its panics.
	Background func(name string, work func())
	// Followed reports whether the working tree is just what following the remote put there, so that no checkpoint is due.
	Followed func(ctx context.Context) bool
}

// Tree reports changes of the working tree.
type Tree interface {
	// Changed returns the number of paths that the user changed.
	Changed() int64
	// LastChange returns the time of the latest change.
	LastChange() time.Time
	// Noticed holds one token after a change.
	Noticed() <-chan struct{}
}

// Removals reports files that were removed or overwritten in a mass. Their contents are kept until the next checkpoint.
type Removals interface {
	// MassRemoval holds one token after such a removal.
	MassRemoval() <-chan struct{}
	// MassRemoved returns the time of the latest removal, whether no more contents are kept, and whether there was a mass
	// removal since the last checkpoint.
	MassRemoved() (latest time.Time, full, many bool)
}

// GitDir is the git directory of the mount.
type GitDir interface {
	// Await returns when the git directory was made or could not be made; false: ctx or the mount ended first.
	Await(ctx context.Context) bool
	// Exists reports whether git may have been used: the directory was made, by this process or one before it.
	Exists() bool
	// Untouched reports whether refs, HEAD and index are as they were when the mount was made. It is false if that cannot be
	// told quickly.
	Untouched() (bool, error)
}

// Captures opens the Capturer of the working tree.
type Captures interface {
	NewCapturer(r CaptureRequest) (Capturer, error)
}

// CaptureRequest describes a Capturer.
type CaptureRequest struct {
	Repo  *session.Repo
	Lane  session.Lane // that its checkpoints go to
	Rules capture.Rules
	// MergedNotes returns the commit that notes of other sessions moved a notes ref to; zero: none did.
	MergedNotes func(ref string) object.ID
}

// Capturer makes checkpoints of the working tree; a *capture.Capturer.
type Capturer interface {
	Point(ctx context.Context, reason session.Reason, message string) (session.Point, capture.Report, error)
	Last() (session.Point, bool)
	SetLane(lane string, segment int)
}

// Repository opens the repository of the session, which the caller closes.
type Repository interface {
	// Open opens it for checkpoints and refs, and makes it if it is missing.
	Open() (*session.Repo, error)
	// OpenMeta opens it for the metadata of the session. It works before the base commit of the mount is known.
	OpenMeta() (*session.Repo, error)
	// Meta returns the metadata that the session gets if it has none.
	Meta() session.Meta
}

// Remotes are the remotes of the mount.
type Remotes interface {
	// Session returns the session remote; nil: the session has none but its repository on this host.
	Session() *thin.Remote
	// Parent returns the parent session and a connection to its session remote; nil: there is none.
	Parent() (name string, remote *transport.Remote)
	// OpenOrigin opens the mounted remote once more. The caller closes it.
	OpenOrigin() (*transport.Remote, error)
}

// Objects fetches objects from session remotes.
type Objects interface {
	// FetchMeta fetches a version of the session's metadata into the session's repository, which has another one.
	FetchMeta(ctx context.Context, want, have object.ID) error
	// ReadMeta reads metadata of another session from its session remote and keeps nothing.
	ReadMeta(ctx context.Context, remote *transport.Remote, id object.ID) (session.Meta, error)
	// Contents returns a function that fetches contents of the session that exist on its session remote alone; nil: none do.
	Contents(ctx context.Context) func(ids []object.ID) error
}

// Store has the objects and refs of the mounted remote; a *fetch.Store.
type Store interface {
	writeback.Provider
	// Refs returns the branches and tags of the mounted remote that are known.
	Refs() []packedrefs.Ref
}
