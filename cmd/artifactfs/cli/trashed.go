package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/control"
)

// RestoreCommand returns the command that restores a discarded session and mounts it where it was, and the end of the
// time in which it can be restored. A submodule has a session of its own, and is mounted with the mount around it. The
// command is "" if nothing was moved to the trash.
func RestoreCommand(m control.MountStatus, r control.UnmountReply) (command string, until time.Time) {
	var commands []string
	for _, one := range append([]control.UnmountReply{r}, r.Submodules...) {
		if one.Trashed != "" {
			commands, until = append(commands, "artifactfs session undelete "+one.Trashed), one.Until
		}
	}
	if len(commands) == 0 {
		return "", until
	}
	if len(r.Submodules) == 0 {
		commands[0] += " --mount " + ShellWord(r.Dir)
	} else {
		commands = append(commands, ResumeCommand(m)+" --recurse-submodules")
	}
	return strings.Join(commands, " && "), until
}

// PrintTrashed prints the command of RestoreCommand on stderr.
func PrintTrashed(a *App, m control.MountStatus, r control.UnmountReply) {
	if command, until := RestoreCommand(m, r); command != "" && !a.Quiet {
		fmt.Fprintf(a.Stderr, "artifactfs: %s restores it until %s\n", command, until.Local().Format(time.DateTime))
	}
}
