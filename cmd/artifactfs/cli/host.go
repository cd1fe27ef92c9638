package cli

import (
	"context"
	"io"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/daemon"
)

// Host serves mounts in this process.
type Host interface {
	control.Handler
	control.Lister
	control.Refresher
	control.Sessions
	control.CredentialHolder
	// Idle is closed while no mount is there or being made; asked again it is a new channel once one has come.
	Idle() <-chan struct{}
	// WriteMetrics writes figures in the format that Prometheus reads.
	WriteMetrics(ctx context.Context, out io.Writer) error
	// Resumed returns when all that a process before this one served is served again, or given up. An error, but that of
	// ctx, says that another version of this program may be able to serve what this one cannot.
	Resumed(ctx context.Context) error
	// Remount mounts again what was mounted when the machine went down.
	Remount(ctx context.Context) error
	// Alive says whether every mount can answer what it has in memory.
	Alive(ctx context.Context) error
	// Close unmounts everything; what is busy is detached.
	Close(ctx context.Context) error
}

var _ Host = (*daemon.Daemon)(nil)

func NewHost(c daemon.Config) (Host, error) {
	d, err := daemon.New(c)
	if err != nil {
		return nil, err
	}
	return d, nil
}
