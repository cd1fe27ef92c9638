package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session/trash"
)

// RestoreCommand returns the command that restores a discarded session and mounts it where it was, and the end of the
// time in which it can be restored. A submodule has a session of its own, and is mounted with the mount around it. The
// command is "" if nothing was moved to the trash.
func RestoreCommand(m control.MountStatus, r control.UnmountReply) (command string, until time.Time) {
	var commands []string
	at := ""
	if len(r.Submodules) == 0 {
		at = " --mount " + ShellWord(r.Dir)
	}
	for _, one := range append([]control.UnmountReply{r}, r.Submodules...) {
		if one.Trashed != "" {
			commands, until = append(commands, "artifactfs session undelete "+one.Trashed+at+DeletedAt(one.Until)), one.Until
		}
	}
	if len(commands) == 0 {
		return "", until
	}
	if len(r.Submodules) > 0 {
		commands = append(commands, ResumeCommand(m)+" --recurse-submodules")
	}
	return strings.Join(commands, " && "), until
}

// DeletedAt returns the flag by which "session undelete" restores the session that can be restored until a time, and
// not one of the same name that is deleted later.
func DeletedAt(until time.Time) string {
	if until.IsZero() {
		return ""
	}
	return fmt.Sprintf(" --deleted %d", until.Add(-trash.Keep).Unix())
}

// PrintTrashed prints the command of RestoreCommand on stderr.
func PrintTrashed(a *App, m control.MountStatus, r control.UnmountReply) {
	if command, until := RestoreCommand(m, r); command != "" && !a.Quiet {
		fmt.Fprintf(a.Stderr, "artifactfs: %s restores it until %s\n", command, until.Local().Format(time.DateTime))
	}
}
