//go:build noserver

package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
)

// With the tag noserver, this program lacks the commands serve, relay, ui and man, and is half as large: it starts in
// less time, and a sandbox needs no more. The same program with all commands is artifactfs-server, in the same
// directory. It runs what this program cannot run.

// serverCommands create commands that report that this program lacks them.
var serverCommands = map[string]func(*cli.App) *cobra.Command{"serve": lacking("serve"), "relay": lacking("relay"),
	"ui": lacking("ui"), "man": lacking("man")}

// lacking returns a function that creates the hidden command called name, which fails.
func lacking(name string) func(*cli.App) *cobra.Command {
	return func(*cli.App) *cobra.Command {
		return &cobra.Command{Use: name, Hidden: true, FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
			Long: "The program artifactfs-server has this command. It is not installed beside this program.",
			RunE: func(*cobra.Command, []string) error {
				e := &control.Error{Code: control.ExitFailed, Verb: "run", Object: name,
					Cause: "the program artifactfs-server, which has this command, is not installed"}
				if self, err := os.Executable(); err == nil {
					e.Hint = "copy artifactfs-server of the same version into " + filepath.Dir(self)
				}
				return e
			}}
	}
}

// replace replaces this process by the program artifactfs-server if args need it: for a command that this program
// lacks, and for help, which lists all commands. environ is the environment of that program. replace returns nil if
// this program runs the command, also because there is no artifactfs-server.
func replace(root *cobra.Command, args, environ []string) error {
	again := os.Getenv(replacing) != "" // this program is called artifactfs-server
	os.Unsetenv(replacing)
	cmd, _, err := root.Find(args)
	switch {
	case again, cmd == root && slices.Contains(args, "--version"):
		return nil
	case err == nil && cmd != root && cmd.Name() != "help" && (cmd.Parent() != root || serverCommands[cmd.Name()] == nil):
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil // this program does without the other one
	}
	program := filepath.Join(filepath.Dir(self), "artifactfs-server")
	err = syscall.Exec(program, os.Args, append(environ, replacing+"="+versionText()))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return &control.Error{Code: control.ExitFailed, Verb: "run", Object: program, Cause: err.Error()}
}
