package main

import (
	"errors"
	"time"

	"github.com/spf13/cobra"
)

func (a *app) daemonCommand() *cobra.Command {
	var idle time.Duration
	cmd := &cobra.Command{
		Use:   "daemon",
		Short: "Serve mounts for all commands that use the state directory",
		Long: `Daemon serves mounts until it gets SIGTERM or SIGINT, and unmounts them all before it ends. There is one per state
directory; mount starts it in the background when none runs, so there is no need to start it by hand. Doing so gives
a service manager the say over it.`,
		Example: `  artifactfs daemon --log-format json
  artifactfs daemon --idle-exit 10m
  artifactfs daemon --metrics unix:/run/artifactfs/metrics.sock`,
		Args: arguments(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if idle < 0 {
				return usage(cmd, errors.New("--idle-exit is negative"))
			}
			return a.serveAll(cmd.Context(), idle)
		},
	}
	cmd.Flags().Var(&a.metrics, "metrics", "serve metrics (Prometheus) and profiles (pprof) there: a socket,\nor an address of the loopback, for all users of this host to read")
	cmd.Flags().DurationVar(&idle, "idle-exit", 0, "end after this long without a mount (default: never)")
	return cmd
}
