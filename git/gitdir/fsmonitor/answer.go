package fsmonitor

import (
	"strings"

	"github.com/artifactfs/artifactfs/git/gitdir/fsmonitor/query"
)

// modesIgnored is the end of a journal position that belongs to an index of which git has compared files without their
// modes. The journal ignores it.
const modesIgnored = "+modes-ignored"

// Changes are the answers of a change journal, and what must be known about the repository to complete them. Git trusts
// an answer longer than is right in some commands, and then behaves differently from a repository without a monitor.
type Changes struct {
	// Since returns the next journal position and the paths that have changed since token, as an Ask does.
	Since func(token string) (next string, paths []string, all bool, err error)
	Start string // journal position before all changes
	// IgnoresModes is true if the repository has the setting core.fileMode=false. Git then stores that files are unchanged
	// whose modes differ, so the first answer after such a command contains all changes.
	IgnoresModes bool
	HasModules   bool // whether .gitmodules exists
}

// Answer returns the answer to the git process pid, or to the git process that has started the hook pid.
func (c Changes) Answer(pid int32, token string) (next string, paths []string, all bool, err error) {
	p := query.Find(int(pid))
	token, ignored := strings.CutSuffix(token, modesIgnored)
	overrides := p.SetsModes()
	if ignored && !c.IgnoresModes || overrides || p.ReadsPaths() {
		token = c.Start
	}
	next, paths, all, err = c.Since(token)
	if c.IgnoresModes || overrides {
		next += modesIgnored
	}
	if c.HasModules && p.StagesModules() {
		paths = append(paths, ".gitmodules")
	}
	return next, paths, all, err
}
