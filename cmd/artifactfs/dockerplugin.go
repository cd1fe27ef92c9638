package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"go.uber.org/zap/zapcore"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/dockervolume"
	"github.com/artifactfs/artifactfs/volume"
)

// pluginSocket is the socket at which dockerd finds the driver "artifactfs".
const pluginSocket = "/run/docker/plugins/artifactfs.sock"

// dockerPluginCommand returns the command "docker-plugin", which serves volumes until a signal.
func dockerPluginCommand(a *cli.App) *cobra.Command {
	var socket string
	cmd := &cobra.Command{
		Use:   "docker-plugin",
		Short: "Make mounts volumes of Docker containers",
		Long: `Docker-plugin is a volume driver of Docker: containers get mounts of repositories as volumes. It needs root, and passes
requests to the daemon of the state directory, which it starts if it is not running.

A volume is mounted while a container uses it. The container needs no privileges, no network and no artifactfs: git
works in it, because .git is a directory in the volume. Changes are in a session with the name of the volume, which is
kept on this host and pushed to the session remote. A volume is not removed before its session is on its session remote,
unless the option onDelete permits that; without a session remote, the session stays on this host. A volume with the
same name resumes it.

This plugin and dockerd may be restarted while containers run.

Options of volumes:
` + optionsHelp() + `
In the option session, {volume} and {node} are replaced. The default of wait is git.`,
		Example: `  artifactfs docker-plugin
  docker run --mount type=volume,volume-driver=artifactfs,volume-opt=remote=https://example.org/app.git,dst=/work IMAGE
  docker volume create -d artifactfs -o remote=https://example.org/app.git -o ref=v2.1 -o readOnly=true app`,
		Args: cli.Arguments(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error { return serveVolumes(cmd.Context(), a, socket) },
	}
	cmd.Flags().StringVar(&socket, "plugin-socket", pluginSocket, "serve requests at `SOCKET`, which\nhas the name of the driver")
	return cmd
}

// optionsHelp returns the descriptions of the options, in lines of at most 120 columns.
func optionsHelp() string {
	const width, indent = 118, "                  "
	var text strings.Builder
	for _, line := range volume.Help() {
		for len(line) > width {
			cut := strings.LastIndexByte(line[:width], ' ')
			text.WriteString("  " + line[:cut] + "\n")
			line = indent[2:] + line[cut+1:]
		}
		text.WriteString("  " + line + "\n")
	}
	return strings.TrimSuffix(text.String(), "\n")
}

// serveVolumes serves volumes at socket until ctx ends.
func serveVolumes(ctx context.Context, a *cli.App, socket string) error {
	log, closeLog, err := a.NewLog(zapcore.InfoLevel)
	if err != nil {
		return err
	}
	defer closeLog()
	host, err := os.Hostname()
	if err != nil {
		return cli.Failure("docker-plugin", "", err)
	}
	// Drivers with different sockets may share a state directory, so each has a directory for its volumes.
	name := strings.TrimSuffix(filepath.Base(socket), ".sock")
	d, err := dockervolume.New(dockervolume.Config{Dir: filepath.Join(a.State, "docker", name), Host: host, Log: log,
		Dial: func(ctx context.Context) (dockervolume.Daemon, error) { return a.EnsureDaemon(ctx) }})
	if err != nil {
		return cli.Failure("docker-plugin", a.State, a.OfState(err))
	}
	if err := d.Serve(ctx, socket); err != nil {
		return cli.Failure("docker-plugin", socket, err)
	}
	return nil
}
