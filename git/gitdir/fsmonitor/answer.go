package fsmonitor

import (
	"strings"

	"github.com/artifactfs/artifactfs/git/gitdir/fsmonitor/query"
)

// comparedLess is the end of a journal position in an index whose files git has compared by loose settings (see
// Changes.ComparesLess). The journal ignores it.
const comparedLess = "+compared-less"

// Changes are the answers of a change journal, and what must be known about the repository to complete them. Git trusts
// an answer longer than is right in some commands, and then behaves differently from a repository without a monitor.
type Changes struct {
	// Since returns the next journal position and the paths that have changed since token, as an Ask does.
	Since func(token string) (next string, paths []string, all bool, err error)
	Start string // journal position before all changes
	// ComparesLess is true if the repository has a setting such as core.fileMode=false. Git then stores that files are
	// unchanged whose modes differ, so the first answer without this setting contains all changes.
	ComparesLess bool
	HasModules   bool // whether .gitmodules exists
}

// Answer returns the answer to the git process pid, or to the git process that has started the hook pid.
func (c Changes) Answer(pid int32, token string) (next string, paths []string, all bool, err error) {
	p := query.Find(int(pid))
	token, ignored := strings.CutSuffix(token, comparedLess)
	overrides := p.SetsComparison()
	next, paths, all, err = c.Since(token)
	if err == nil && !all && (ignored && !c.ComparesLess || overrides || p.ReadsPaths()) {
		_, paths, all, err = c.Since(c.Start)
	}
	if c.ComparesLess || overrides {
		next += comparedLess
	}
	if c.HasModules && p.StagesModules() {
		paths = append(paths, ".gitmodules")
	}
	return next, paths, all, err
}
