//go:build !noserver

package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/server"
)

// serverCommands create the commands that a program built with the tag noserver lacks.
var serverCommands = map[string]func(*cli.App) *cobra.Command{"serve": server.ServeCommand, "ui": server.UICommand,
	"relay": server.RelayCommand, "man": manCommand}

// replace returns nil, because this program has all commands. If another program was replaced by this one, and has
// another version, it prints a warning.
func replace(_ *cobra.Command, _, _ []string) error {
	if by := os.Getenv(replacing); by != "" && by != versionText() {
		fmt.Fprintf(os.Stderr, "artifactfs: artifactfs-server has version %s, and artifactfs %s: install both of one version\n",
			versionText(), by)
	}
	os.Unsetenv(replacing)
	return nil
}
