package query

import (
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// Command is a git command that asks the monitor. The zero Command is one that is not known.
type Command struct {
	argv []string // program and arguments
	env  []string // environment with which the process was started
}

// Find returns the command of the git process pid, or of the git process that has started the hook pid, either directly
// or through a shell.
func Find(pid int) Command {
	pid, argv := gitProcess(pid)
	if argv == nil {
		return Command{}
	}
	env, _ := proc.Of(pid).Environ()
	return Command{argv, env}
}

// StagesModules reports whether the command may change .gitmodules after its query and then stage it, as `git mv` and
// `git rm` do for a submodule. Because git does not stage a file that the monitor has reported as unchanged, the answer
// to such a command must contain .gitmodules. StagesModules returns true if the command is not known.
func (c Command) StagesModules() bool {
	name, _ := parse(c.argv)
	return c.argv == nil || name == "mv" || name == "rm"
}

// ReadsPaths reports whether the command examines files whose names it reads after its query. The program that writes
// the names may have changed these files in the meantime.
func (c Command) ReadsPaths() bool {
	name, args := parse(c.argv)
	return (name == "update-index" || name == "checkout-index") && slices.Contains(args, "--stdin")
}

// comparing are the settings by which git calls files unchanged that have changed in mode, type or time.
var comparing = []string{"core.filemode", "core.symlinks", "core.trustctime", "core.checkstat"}

// SetsComparison reports whether one of the settings comparing may have another value than in the repository.
func (c Command) SetsComparison() bool {
	sets := func(text string) bool {
		text = strings.ToLower(text)
		return slices.ContainsFunc(comparing, func(name string) bool { return strings.Contains(text, name) })
	}
	_, rest := parse(c.argv)
	options := c.argv[:len(c.argv)-len(rest)]
	return slices.ContainsFunc(options, sets) || slices.ContainsFunc(c.env, func(v string) bool {
		return strings.HasPrefix(v, "GIT_CONFIG_") && sets(v)
	})
}
