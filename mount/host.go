package mount

import (
	"context"
	"os"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/mount/origin"
	"github.com/artifactfs/artifactfs/mount/remotes"
	"github.com/artifactfs/artifactfs/mount/takeover"
	"github.com/artifactfs/artifactfs/mount/turns"
	"github.com/artifactfs/artifactfs/mount/watch"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/catalog"
	"github.com/artifactfs/artifactfs/statedir"
)

// Host holds what all mounts of a process share. The daemon sets the fields before it creates the first mount; they are constant after
// that, and safe for concurrent use.
type Host struct {
	State    string            // path of the state directory
	Log      *zap.Logger       // log of the whole daemon
	Sampled  *zap.Logger       // log for messages that file system requests may cause very often; it drops repetitions
	Homes    statedir.Homes    // directories of mounts and sessions below the state directory
	Failures statedir.Failures // mounts that ended without an unmount, and the causes
	Remotes  *remotes.Remotes  // stores, session remotes and logins of all mounts
	Catalog  *catalog.Catalog  // answers requests on sessions, mounted or not
	Keeper   takeover.Keeper   // holds descriptors for a successor; nil: the mounts end with this process
	Watch    *watch.Watcher    // inotify descriptor of all mounts
	Turns    *turns.Turns      // schedules background work around the start of mounts
	Handler  control.Handler   // answers requests that programs inside a mount send
	Registry Registry          // table of all mounts
	Served   chan struct{}     // closed when the takeover of all mounts has ended; those that killed earlier workers come last, after it
	Times    fuse.Latencies    // durations of the kernel requests of all mounts
}

// Registry is the table of the mounts of a process, as one mount uses it. Its methods are safe for concurrent use. The caller
// must not hold the lock of a mount.
type Registry interface {
	// HomeOf finds a session on this host. The parameter of is the name of the session, or an absolute path in its mount. HomeOf
	// returns statedir.ErrNoSession if this host has no such session.
	HomeOf(of string) (origin.Home, error)
	// MountInside creates the mount that r requests for a submodule of the mount parent.
	MountInside(ctx context.Context, r control.MountRequest, parent *Mount) (*Mount, error)
	// Unregister removes the file that makes the daemon restore a mount after a restart of the machine.
	Unregister(m *Mount)
	// Remove removes a mount that has ended from the table.
	Remove(m *Mount)
	// Ending reports whether the daemon is shutting down.
	Ending() bool
}

// Writer returns the identity of this process, which sessions store in claims and in lanes (the chain of checkpoints of one
// writer).
func (h *Host) Writer() (session.Writer, error) {
	pid := os.Getpid()
	if h.Keeper != nil { // the supervisor replaces a worker that dies, so its process ID identifies the daemon
		pid = os.Getppid()
	}
	return session.Here(h.State, pid)
}
