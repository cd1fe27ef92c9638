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

// serverCommands is empty.
var serverCommands map[string]func(*cli.App) *cobra.Command

// replace replaces this process by the program artifactfs-server if args contain no command of root, or ask for help,
// which lists all commands. environ is the environment of that program. replace returns nil if this program runs the
// command: it has the command, or there is no artifactfs-server and no command that needs it.
func replace(root *cobra.Command, args, environ []string) error {
	cmd, rest, err := root.Find(args)
	if err == nil && cmd != root && cmd.Name() != "help" {
		return nil
	}
	self, err := os.Executable()
	if err == nil {
		program := filepath.Join(filepath.Dir(self), "artifactfs-server")
		err = &fs.PathError{Op: "run", Path: program, Err: syscall.Exec(program, os.Args, environ)}
	}
	if cmd == root && len(rest) > 0 && slices.Contains([]string{"serve", "relay", "ui", "man"}, rest[0]) {
		e := &control.Error{Code: control.ExitFailed, Verb: "run", Object: rest[0], Cause: err.Error()}
		if errors.Is(err, fs.ErrNotExist) {
			e.Cause = "the program artifactfs-server, which has this command, is not installed"
			e.Hint = "copy artifactfs-server of the same version into " + filepath.Dir(self)
		}
		return e
	}
	return nil
}
