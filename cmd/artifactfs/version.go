package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
)

// The Makefile sets these variables: version to the output of git describe, commit to the full commit ID, and date to
// the time of the commit in UTC (RFC 3339).
var version, commit, date string

// versionCommand returns the command "version", which contacts no daemon.
func versionCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long: `Version prints the version of this program, the version of Go that it was built with, the platform, and the version of
the protocol between commands and daemon. With --json, it also prints the commit from which the program was built and
the time of that commit.`,
		Example: `  artifactfs version --json`,
		Args:    cli.Arguments(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return printVersion(a)
		},
	}
}

// printVersion prints the version, as JSON with --json.
func printVersion(a *cli.App) error {
	if a.JSON {
		built, when := buildCommit()
		platform := runtime.GOOS + "/" + runtime.GOARCH
		return cli.PrintJSON(a.Stdout, versionReport{versionText(), built, when, runtime.Version(), platform,
			control.Protocol})
	}
	_, err := fmt.Fprintf(a.Stdout, "artifactfs %s (%s %s/%s, protocol %d)\n",
		versionText(), runtime.Version(), runtime.GOOS, runtime.GOARCH, control.Protocol)
	return err
}

// versionReport is the output of `version --json`.
type versionReport struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"` // commit ID; "" if unknown
	Date     string `json:"date"`   // time of the commit in RFC 3339; "" if unknown
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Protocol int    `json:"protocol"`
}

// versionText returns the version that the Makefile has set, or else the abbreviated commit ID that the go command
// recorded.
func versionText() string {
	if version != "" {
		return version
	}
	if id, _ := buildCommit(); id != "" {
		return id[:min(12, len(id))]
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}

// buildCommit returns the commit from which this program was built and the time of that commit. It returns the values
// that the Makefile has set, or else the values that the go command has recorded.
func buildCommit() (id, when string) {
	if commit != "" {
		return commit, date
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", ""
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			id = s.Value
		case "vcs.time":
			when = s.Value
		}
	}
	return id, when
}
