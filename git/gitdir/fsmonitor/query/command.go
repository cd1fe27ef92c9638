package query

// Command is a git command that asks the monitor. The zero Command is one that is not known.
type Command struct {
	argv []string // program and arguments
}

// Find returns the command of the git process pid, or of the git process that has started the hook pid, either directly
// or through a shell.
func Find(pid int) Command {
	return Command{gitCommand(pid)}
}

// StagesModules reports whether the command may change .gitmodules after its query and then stage it, as `git mv` and
// `git rm` do for a submodule. Because git does not stage a file that the monitor has reported as unchanged, the answer
// to such a command must contain .gitmodules. StagesModules returns true if the command is not known.
func (c Command) StagesModules() bool {
	name, _ := parse(c.argv)
	return c.argv == nil || name == "mv" || name == "rm"
}
