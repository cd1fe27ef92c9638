package cli

import (
	"context"
	"io"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/daemon"
)

// Host serves mounts in this process. The methods of the embedded interfaces answer the requests of clients.
type Host interface {
	control.Handler
	control.Lister
	control.Refresher
	control.Sessions
	control.CacheEntries
	control.Locks
	control.CredentialHolder
	// Idle returns a channel that is closed while no mount exists or is being created. After a new mount, Idle returns a
	// new channel.
	Idle() <-chan struct{}
	// WriteMetrics writes the metrics in Prometheus' text format.
	WriteMetrics(ctx context.Context, out io.Writer) error
	// Resumed returns when every mount of the previous process is served again or was given up. An error other than the
	// error of ctx means that another version of this program may be able to serve the mounts that this version cannot
	// serve.
	Resumed(ctx context.Context) error
	// Remount mounts again the directories that were mounted when the machine went down.
	Remount(ctx context.Context) error
	// Alive returns an error unless every mount can answer requests from memory before ctx ends.
	Alive(ctx context.Context) error
	// Close unmounts everything; it detaches busy mounts.
	Close(ctx context.Context) error
}

var _ Host = (*daemon.Daemon)(nil)

// NewHost returns the Host of a daemon process.
func NewHost(c daemon.Config) (Host, error) {
	d, err := daemon.New(c)
	if err != nil {
		return nil, err
	}
	return d, nil
}
