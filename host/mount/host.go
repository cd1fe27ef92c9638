package mount

import (
	"context"
	"os"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/host/mount/origin"
	"github.com/artifactfs/artifactfs/host/mount/takeover"
	"github.com/artifactfs/artifactfs/host/mount/turns"
	"github.com/artifactfs/artifactfs/host/mount/watch"
	"github.com/artifactfs/artifactfs/host/remotes"
	"github.com/artifactfs/artifactfs/host/session/catalog"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session"
)

// Host has what all mounts of a process share. The daemon sets the fields before it creates the first mount, and they
// do not change after that. They may be used from any goroutine.
type Host struct {
	State string      // path of the state directory
	Log   *zap.Logger // log of the whole daemon
	// log for messages that file-system requests may cause very often; it drops repeated messages
	Sampled  *zap.Logger
	Homes    statedir.Homes    // homes of mounts and sessions
	Failures statedir.Failures // mounts that have ended without an unmount, with the causes
	Remotes  *remotes.Remotes  // stores, session remotes and logins that mounts share
	Catalog  *catalog.Catalog  // answers requests on sessions, mounted or not
	// stores descriptors for a successor; nil if there is no supervisor, so that the mounts end with this process
	Keeper   takeover.Keeper
	Watch    *watch.Watcher  // inotify descriptor of all mounts
	Turns    *turns.Turns    // delays background work while mounts are being started
	Handler  control.Handler // answers requests of programs in a mount
	Registry Registry        // table of all mounts
	// Served is closed when all mounts of the predecessor were taken over, except the mounts whose takeover has killed
	// earlier workers. Those mounts are taken over afterwards.
	Served chan struct{}
	Times  fuse.Latencies // durations of the kernel requests of all mounts
}

// Registry is the table of all mounts of a process, with the methods that a mount calls. They may be called from any
// goroutine, but not by a goroutine that holds the lock of a mount.
type Registry interface {
	// HomeOf returns the home of a session on this host. The parameter of is the name of the session, or an absolute
	// path in its mount. HomeOf returns statedir.ErrNoSession if this host has no session with that name.
	HomeOf(of string) (origin.Home, error)
	// MountInside mounts a submodule, as r requests. The mount parent contains the submodule.
	MountInside(ctx context.Context, r control.MountRequest, parent *Mount) (*Mount, error)
	// Unregister removes the registry file of a mount, from which the daemon would restore the mount after a restart of
	// the machine.
	Unregister(m *Mount)
	// Remove removes a mount that has ended from the table.
	Remove(m *Mount)
	// Ending reports whether the daemon is being closed.
	Ending() bool
}

// Writer returns the identity of this process, which sessions store in claims (by which one machine holds a session)
// and in lanes (chains of checkpoints of one writer).
func (h *Host) Writer() (session.Writer, error) {
	pid := os.Getpid()
	// the supervisor replaces a worker that dies, so the supervisor's process ID identifies the daemon
	if h.Keeper != nil {
		pid = os.Getppid()
	}
	return session.Here(h.State, pid)
}
