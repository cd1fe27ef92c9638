//go:build !noserver

package main

import (
	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/server"
)

// serverCommands create the commands that a program built with the tag noserver lacks.
var serverCommands = map[string]func(*cli.App) *cobra.Command{"serve": server.ServeCommand, "ui": server.UICommand,
	"relay": server.RelayCommand, "man": manCommand}

// replace returns nil, because this program has all commands.
func replace(_ *cobra.Command, _, _ []string) error { return nil }
