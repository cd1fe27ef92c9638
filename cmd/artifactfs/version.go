package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
)

// version is set by the Makefile from git describe.
var version string

func versionCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Long:    `Version prints the version of this binary, and the version of its protocol with the daemon.`,
		Example: `  artifactfs version --json`,
		Args:    cli.Arguments(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return printVersion(a)
		},
	}
}

func printVersion(a *cli.App) error {
	if a.JSON {
		return cli.PrintJSON(a.Stdout, map[string]any{"version": versionText(), "go": runtime.Version(), "protocol": control.Protocol})
	}
	_, err := fmt.Fprintf(a.Stdout, "artifactfs %s (%s %s/%s, protocol %d)\n", versionText(), runtime.Version(), runtime.GOOS, runtime.GOARCH, control.Protocol)
	return err
}

// versionText falls back to what the go command records for those who build without make.
func versionText() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value[:min(12, len(s.Value))]
		}
	}
	return info.Main.Version
}
