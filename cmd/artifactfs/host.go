package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/daemon"
)

// host serves mounts in this process.
type host interface {
	control.Handler
	// Idle is closed while no mount is there or being made; asked again it is a new channel once one has come.
	Idle() <-chan struct{}
	// WriteMetrics writes figures in the format that Prometheus reads.
	WriteMetrics(ctx context.Context, out io.Writer) error
	// Close unmounts everything; what is busy is detached.
	Close(ctx context.Context) error
}

var _ host = (*daemon.Daemon)(nil)

func newHost(state string, log *zap.Logger) (host, error) {
	d, err := daemon.New(daemon.Config{State: state, Log: log})
	if err != nil {
		return nil, err
	}
	return d, nil
}

// ensureDaemon gives a client of the shared daemon, starting it if none runs.
func (a *app) ensureDaemon(ctx context.Context) (*control.Client, error) {
	executable, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start daemon: %w", err)
	}
	args, logFile := a.launchArguments()
	return daemon.Ensure(ctx, daemon.LaunchConfig{Socket: a.daemonSocket(), Executable: executable, Args: args, Log: logFile})
}
