package agents

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
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
