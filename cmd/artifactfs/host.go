package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/daemon"
)

// host serves mounts in this process.
type host interface {
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

var _ host = (*daemon.Daemon)(nil)

func newHost(c daemon.Config) (host, error) {
	d, err := daemon.New(c)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// ensureDaemon returns a client of the shared daemon, which it starts if none runs. The daemon logs as this command does.
func (a *app) ensureDaemon(ctx context.Context) (*control.Client, error) {
	executable, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start daemon: %w", err)
	}
	client, err := control.Ensure(ctx, control.Launch{State: a.state, Socket: a.socket, Executable: executable,
		LogFile: a.logFile, LogLevel: a.logLevel, LogFormat: a.logFormat})
	return client, a.ofState(err)
}

// ofState adds to an error what to do if the state directory cannot be used.
func (a *app) ofState(err error) error {
	if !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.EROFS) && !errors.Is(err, syscall.ENOTDIR) {
		return err
	}
	e := *control.AsError(err)
	if e.Hint == "" {
		e.Hint = "the state directory is " + a.state + "; --state DIR or $ARTIFACTFS_STATE chooses another"
	}
	return &e
}
