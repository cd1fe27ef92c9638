package agents

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session/agenthook"
)

// AgentState is the state of the hooks of one agent in one directory.
type AgentState struct {
	Agent     agenthook.Agent  `json:"agent"`
	File      string           `json:"file"`             // configuration file of the agent in the directory
	Installed bool             `json:"installed"`        // whether the file contains the hooks
	Parts     []agenthook.Part `json:"parts,omitempty"`  // other parts that are installed
	Fired     *agenthook.Fired `json:"fired,omitempty"`  // newest event that a hook has received; missing: none
	Prompt    *time.Time       `json:"prompt,omitempty"` // time of the newest prompt that a hook has received
	Hint      string           `json:"hint,omitempty"`   // what the user has to do so that installed hooks fire for all events
	Error     string           `json:"error,omitempty"`  // reason why the file, or the events, cannot be read

	// Live contains the conversations that the agent seems to continue in the directory.
	Live []agenthook.Conversation `json:"live,omitempty"`

	Changed time.Time `json:"-"` // time of the last change of the file, if the hooks are installed
}

// statesIn returns the state of the hooks of all agents in the directory dir. gitDir is its git directory, or "" if it
// has none.
func statesIn(dir, gitDir string) []AgentState {
	var fired map[agenthook.Agent][]agenthook.Fired
	var failed error
	var live []agenthook.Conversation
	if gitDir != "" {
		fired, failed = agenthook.LastFired(gitDir)
		live = agenthook.Conversations(gitDir, time.Now())
	}
	var all []AgentState
	for _, agent := range agenthook.Agents() {
		s := AgentState{Agent: agent}
		in, err := agenthook.Installed(dir, agent)
		if s.File, s.Installed = in.Path, in.Yes; err == nil && s.Installed {
			err = failed
		}
		if err != nil {
			s.Error = err.Error()
		}
		for _, p := range []agenthook.Part{agenthook.Tools, agenthook.Skill} {
			if ok, err := agenthook.Has(dir, agent, p); ok && err == nil {
				s.Parts = append(s.Parts, p)
			}
		}
		if agent == agenthook.Copilot && !s.Installed && slices.Equal(s.Parts, []agenthook.Part{agenthook.Tools}) {
			s.Parts = nil // the entry of claude, which copilot reads, too
		}
		if events := fired[agent]; len(events) > 0 {
			s.Fired = &events[0]
			i := slices.IndexFunc(events, func(f agenthook.Fired) bool { return f.Kind == agenthook.Prompt })
			if i >= 0 {
				s.Prompt = &events[i].Time
			}
		}
		for _, c := range live {
			if c.Agent == agent {
				s.Live = append(s.Live, c)
			}
		}
		if s.Installed && s.Error == "" {
			if info, err := os.Stat(s.File); err == nil {
				s.Changed = info.ModTime()
			}
			if s.Fired == nil {
				s.Hint = strings.ReplaceAll(hints[agent], "DIR", dir)
			} else if in.Old {
				s.Hint = "an earlier version has written the hooks: run artifactfs agent install " + string(agent) +
					" --dir " + cli.ShellWord(dir)
			}
		}
		all = append(all, s)
	}
	return all
}

// hints say what the user has to do so that an agent runs hooks for the first time.
var hints = map[agenthook.Agent]string{
	agenthook.Claude:   "start claude in DIR, and accept the directory",
	agenthook.Codex:    "trust it with /hooks in codex (codex exec runs no project hooks)",
	agenthook.Copilot:  "restart copilot in DIR, and trust the folder",
	agenthook.Cursor:   "start a conversation with the agent of cursor in DIR, and trust the folder",
	agenthook.Gemini:   "start gemini in DIR, and trust the folder",
	agenthook.OpenCode: "restart opencode in DIR",
}

// Look returns the states of the hooks in each of the mounts, of agents whose hooks are installed or have fired. In a
// mount in which no hooks were installed and none have fired, Look reads no file through the mount. The result for a
// mount is nil also if the mount does not answer within cli.LookTime.
func Look(a *cli.App, mounts []cli.Served) [][]AgentState {
	all := make([][]AgentState, len(mounts))
	var wg sync.WaitGroup
	for i, m := range mounts {
		if !m.Mounted() || !m.GitReady {
			continue
		}
		gitDir := filepath.Join(statedir.Homes{State: a.State}.Dir(), m.ID, "git")
		if a.Socket != "" || m.Guest() { // the mount belongs to another state directory
			gitDir = filepath.Join(m.Dir, ".git")
		}
		wg.Go(func() { all[i], _ = cli.Look(func() []AgentState { return statesOf(m.Dir, gitDir) }) })
	}
	wg.Wait()
	return all
}

// statesOf returns the states of the hooks in the mount at dir for Look.
func statesOf(dir, gitDir string) []AgentState {
	if fired, err := agenthook.LastFired(gitDir); fired == nil && err == nil {
		return nil
	}
	return slices.DeleteFunc(statesIn(dir, gitDir), func(s AgentState) bool { return !s.Installed && s.Fired == nil })
}

// statesAt returns the states of the hooks in the directory dir, which need not be in a mount.
func statesAt(ctx context.Context, dir string) []AgentState {
	gitDir, err := agenthook.GitDir(ctx, dir)
	if err != nil {
		gitDir = "" // dir is in no git repository, so no hook can have stored an event
	}
	return statesIn(dir, gitDir)
}

// activity describes when the hooks have fired.
func (s AgentState) activity(now time.Time) string {
	switch {
	case s.Fired == nil:
		return "never fired"
	case s.Prompt != nil:
		return "last prompt " + cli.Ago(*s.Prompt, now)
	case s.Fired.Kind == agenthook.Other:
		return "last event " + cli.Ago(s.Fired.Time, now) + ", no prompt yet"
	}
	kind := strings.ReplaceAll(string(s.Fired.Kind), "_", " ")
	return "last event (" + kind + ") " + cli.Ago(s.Fired.Time, now) + ", no prompt yet"
}

// Others names the other parts that are installed, behind a text about the hooks. It returns "" if there are none.
func (s AgentState) Others() string {
	if len(s.Parts) == 0 {
		return ""
	}
	var names []string
	for _, p := range s.Parts {
		names = append(names, string(p))
	}
	return " (with " + strings.Join(names, " and ") + ")"
}

// Text describes the state, without the hint.
func (s AgentState) Text(now time.Time) string {
	switch {
	case s.Error != "":
		return s.Error
	case s.Installed && s.Fired == nil:
		return "installed, " + s.activity(now)
	case s.Installed:
		return s.activity(now)
	case s.Fired != nil:
		return "fired " + cli.Ago(s.Fired.Time, now) + ", but " + s.File + " contains no hooks"
	}
	return "not installed"
}
