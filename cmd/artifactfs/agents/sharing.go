package agents

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/worktrees"
	"github.com/artifactfs/artifactfs/session/agenthook"
)

// maxNamed is the maximum number of agents that a text names.
const maxNamed = 5

// named returns the agents of conversations as text, with the times at which they were seen.
func named(all []agenthook.Conversation, now time.Time) string {
	var names []string
	for _, c := range all[:min(len(all), maxNamed)] {
		names = append(names, fmt.Sprintf("%s, last seen %s", c.Agent, cli.Ago(c.Seen, now)))
	}
	if n := len(all) - maxNamed; n > 0 {
		names = append(names, fmt.Sprintf("and %d more", n))
	}
	return strings.Join(names, "; ")
}

// Sharing describes the agents that work in one directory at the same time. It returns "" if there are fewer than two.
func Sharing(states []AgentState, now time.Time) string {
	var all []agenthook.Conversation
	for _, s := range states {
		all = append(all, s.Live...)
	}
	if len(all) < 2 {
		return ""
	}
	slices.SortStableFunc(all, func(a, b agenthook.Conversation) int { return b.Seen.Compare(a.Seen) })
	return fmt.Sprintf("%d agents work in this tree: %s", len(all), named(all, now))
}

// sharingNotice returns the notice for an agent that begins a conversation in the mount m, where the others work. The
// notice has a command that makes a working tree, with the hooks of the agents, except in a container, whose programs
// cannot mount. The parameter all lists the mounts of this host.
func sharingNotice(all []cli.Served, m cli.Served, others []agenthook.Conversation, now time.Time) string {
	who, whose := "Another coding agent works", "Its"
	if len(others) > 1 {
		who, whose = "Other coding agents work", "Their"
	}
	text := fmt.Sprintf("%s in this directory tree, %s (%s). %s changes and yours mix.",
		who, m.Dir, named(others, now), whose)
	dir := freeSibling(all, m.Dir)
	program, err := cli.OwnCommand()
	if m.Guest() || dir == "" || err != nil {
		return text
	}
	return text + fmt.Sprintf(" This command makes a tree of its own, with the present files, in which you can work instead:"+
		" %s worktree add -C %s %s", program, cli.ShellWord(m.Dir), cli.ShellWord(dir))
}

// freeSibling returns a path that does not exist, next to the mount at dir. If the mount is inside of another mount,
// where nothing can be mounted, the path is next to the outermost one. The result is "" if all names are in use.
func freeSibling(all []cli.Served, dir string) string {
	dir = worktrees.Outermost(all, dir)
	for n := 2; n < 100; n++ {
		path := fmt.Sprintf("%s-%d", dir, n)
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			return path
		}
	}
	return ""
}
