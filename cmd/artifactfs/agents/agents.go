// Package agents contains the commands "agent" and "session hook", by which coding agents record their work in a
// session.
package agents

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/memory"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/session/agenthook"
)

// AgentCommand returns the command "agent" with its subcommands. They write configuration files and contact no daemon.
func AgentCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:                   "agent COMMAND",
		DisableFlagsInUseLine: true,
		Short:                 "Configure a coding agent to record its work in the session",
		Long: `Agent install adds three parts to the configuration of a coding agent: hooks; the tools of artifactfs mcp; and a
skill, which tells the agent when to make checkpoints, undo, and make working trees.

With the hooks, the agent records its work in the session of the mount in which it runs. Each prompt, tool call and
result is appended to the transcript (artifactfs session transcript). A checkpoint is made before each tool that may
change files, and at the end of each turn. Each commit of the agent gets a note (git log --notes=agent). Text that looks
like a secret is removed before anything is written.

An agent waits for a hook for at most ` + agenthook.Timeout.String() + `. A hook that fails prints the reason on stderr, and never stops the
agent.

The hooks of claude also make and remove the working trees of claude --worktree and of its sub-agents, as artifactfs
worktree does: beside the mount, or the clone, at DIR, in DIR-worktrees.

agent     hooks                             tools                    skill: skills/artifactfs/SKILL.md in
claude    .claude/settings.local.json       .mcp.json                .claude
codex     .codex/hooks.json (trust: /hooks) .codex/config.toml       .agents
copilot   .github/hooks/artifactfs.json     .mcp.json                .github
cursor    .cursor/hooks.json                .cursor/mcp.json         .cursor
gemini    .gemini/settings.json             .gemini/settings.json    .gemini
opencode  .opencode/plugins/artifactfs.js   opencode.json            .opencode

If agent install creates the file of the hooks or of the skill, it excludes the file from git (info/exclude) and from
checkpoints, because the file is specific to this machine. The file of the tools is not excluded, because a project may
share it. If the file exists, its other settings are kept.`,
		Example: `  artifactfs agent install claude
  artifactfs agent install codex --dir /srv/app
  artifactfs agent status
  artifactfs agent uninstall claude`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return cmd.Help() },
	}
	cmd.AddCommand(installCommand(a), uninstallCommand(a), statusCommand(a))
	return cmd
}

// dirFlag adds the flag --dir, which selects the directory to configure.
func dirFlag(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, "dir", "",
		"configure the agent for `DIR` (default: the root of the git working tree that contains\n"+
			"the current directory)")
}

// completeAgents completes the argument of commands that take an agent.
func completeAgents(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	if len(args) == 0 {
		for _, a := range agenthook.Agents() {
			names = append(names, string(a))
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// agentChange is the output of `agent install|uninstall --json`.
type agentChange struct {
	Agent   string `json:"agent"`
	File    string `json:"file"`
	Changed bool   `json:"changed"`
	Tracked bool   `json:"tracked"` // whether git tracks the configuration file

	Part  agenthook.Part `json:"part"`
	Kept  bool           `json:"kept,omitempty"`  // whether an entry stays that the user has made or edited
	Other []agentChange  `json:"other,omitempty"` // changes of the other parts
}

// prepositions are words between the name of a part and its file, by the verbs of what was done.
var prepositions = map[string]string{"installed": "in", "removed": "from"}

// describe returns the change of a part, which was installed or removed if there was a change.
func (c agentChange) describe(verb string) string {
	what := "the " + string(c.Part) + " of " + c.Agent
	isAre := "are"
	if c.Part == agenthook.Skill {
		isAre = "is"
	}
	switch {
	case c.Changed && verb == "installed" && c.Agent == string(agenthook.Claude) && c.Part == agenthook.Tools:
		return verb + " " + what + " in " + c.File + " (claude asks once whether it may start them)"
	case c.Changed && c.Kept:
		return verb + " " + what + " " + prepositions[verb] + " " + c.File + ", except those that you have made or edited"
	case c.Changed:
		return verb + " " + what + " " + prepositions[verb] + " " + c.File
	case c.Kept:
		return "not changed, because you have made or edited the entry artifactfs in it: " + c.File
	case verb == "removed":
		return "no " + string(c.Part) + " of " + c.Agent + " " + isAre + " installed in " + c.File
	}
	return what + " " + isAre + " installed in " + c.File
}

// installCommand returns the command "agent install". A second installation changes nothing.
func installCommand(a *cli.App) *cobra.Command {
	var dir string
	var only []string
	cmd := &cobra.Command{
		Use:   "install claude|codex|copilot|cursor|gemini|opencode",
		Short: "Add the hooks, the tools and the skill to an agent's configuration",
		Long: `Install adds three parts to the configuration of the agent: the hooks, an entry that starts artifactfs mcp with its
default tools, and a skill, which tells the agent when to use checkpoints, undo and trees. What is installed already is
not changed. An entry artifactfs that you have added yourself stays.`,
		Example: `  artifactfs agent install claude
  artifactfs agent install codex --only hooks`,
		Args: cli.Arguments(1, 1, "AGENT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			agent, dir, err := agentAndDir("install hooks", args[0], dir)
			if err != nil {
				return err
			}
			parts, err := partsOf(only)
			if err != nil {
				return err
			}
			program, err := cli.OwnCommand()
			if err != nil {
				return cli.Failure("install hooks", args[0], err)
			}
			var changes []agentChange
			for _, p := range parts {
				c, failed := agenthook.InstallPart(dir, agent, p, program)
				if failed != nil {
					err = errors.Join(err, failed)
					continue // the other parts do not need this one
				}
				changes = append(changes, agentChange{Agent: args[0], File: c.Path, Changed: c.Changed, Tracked: c.Tracked, Part: p,
					Kept: c.Kept})
			}
			if gitDir, failed := agenthook.GitDir(cmd.Context(), dir); failed == nil {
				err = errors.Join(err, agenthook.MakeDir(gitDir))
			}
			if len(changes) > 0 {
				err = errors.Join(err, printChanges(a, changes, "installed"))
			}
			if err != nil {
				return cli.Failure("install hooks", args[0], err)
			}
			if a.Quiet {
				return nil
			}
			if agent == agenthook.Codex && changes[0].Part == agenthook.Hooks && changes[0].Changed {
				fmt.Fprintln(a.Stderr, "artifactfs: Codex runs the hooks after you have trusted them (/hooks in Codex)")
			}
			return nil
		},
		ValidArgsFunction: completeAgents,
	}
	dirFlag(cmd, &dir)
	cmd.Flags().StringSliceVar(&only, "only", nil, "add only these `PARTS`: hooks, tools, skill")
	_ = cmd.RegisterFlagCompletionFunc("only", cobra.FixedCompletions([]cobra.Completion{"hooks", "tools", "skill"},
		cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// partsOf returns the parts with these names, in the order in which they are installed; all if there are no names.
func partsOf(names []string) (parts []agenthook.Part, err error) {
	for _, p := range agenthook.Parts() {
		if len(names) == 0 || slices.Contains(names, string(p)) {
			parts = append(parts, p)
		}
	}
	for _, n := range names {
		if !slices.Contains(agenthook.Parts(), agenthook.Part(n)) {
			return nil, &control.Error{Code: control.ExitUsage, Verb: "install hooks",
				Cause: fmt.Sprintf("unknown part %q: want hooks, tools or skill", n)}
		}
	}
	return parts, nil
}

// uninstallCommand returns the command "agent uninstall". If no hooks are installed, the command succeeds.
func uninstallCommand(a *cli.App) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "uninstall claude|codex|copilot|cursor|gemini|opencode",
		Short: "Remove what install has added to an agent's configuration",
		Long: `Uninstall removes the hooks, the tools and the skill from the configuration of the agent, and keeps all other
settings.`,
		Example: "  artifactfs agent uninstall claude",
		Args:    cli.Arguments(1, 1, "AGENT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			agent, dir, err := agentAndDir("uninstall hooks", args[0], dir)
			if err != nil {
				return err
			}
			var changes []agentChange
			for _, p := range slices.Backward(agenthook.Parts()) {
				c, failed := agenthook.UninstallPart(dir, agent, p)
				err = errors.Join(err, failed)
				if p == agenthook.Hooks || c.Changed || c.Kept {
					changes = slices.Insert(changes, 0, agentChange{Agent: args[0], File: c.Path, Changed: c.Changed,
						Tracked: c.Tracked, Part: p, Kept: c.Kept})
				}
			}
			if err != nil {
				return cli.Failure("uninstall hooks", args[0], err)
			}
			if gitDir, err := agenthook.GitDir(cmd.Context(), dir); err == nil {
				// If no hooks are left, also remove the state that was stored between two events.
				err := agenthook.ForgetFired(gitDir, agent)
				if err == nil && !anyInstalled(dir) {
					err = agenthook.ForgetAll(gitDir)
				}
				if err != nil {
					return cli.Failure("uninstall hooks", args[0], err)
				}
			}
			return printChanges(a, changes, "removed")
		},
		ValidArgsFunction: completeAgents,
	}
	dirFlag(cmd, &dir)
	return cmd
}

// printChanges prints how an agent's configuration was changed.
func printChanges(a *cli.App, changes []agentChange, verb string) error {
	if a.JSON {
		all := changes[0]
		all.Other = changes[1:]
		return cli.PrintJSON(a.Stdout, all)
	}
	for _, c := range changes {
		if _, err := fmt.Fprintln(a.Stdout, c.describe(verb)); err != nil {
			return err
		}
		if c.Changed && c.Tracked && !a.Quiet {
			fmt.Fprintf(a.Stderr, "artifactfs: git tracks %s, so git status shows it as modified\n", c.File)
		}
	}
	return nil
}

// statusCommand returns the command "agent status".
func statusCommand(a *cli.App) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what is installed for which agents, and when the hooks have fired",
		Long: `Status prints a line for each agent: whether the hooks are installed, in which file, and when the agent has run
them last. An agent skips hooks that its user has not trusted, without a message. So hooks that have never fired record
nothing, and the line says what to do. artifactfs status and artifactfs doctor print the same for mounts.

If several agents work in the directory at the same time, another line names them. If the conversations of the
agents are kept in the session (--agent-memory of artifactfs mount), the last line has their size.`,
		Example: "  artifactfs agent status --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := configuredDir(dir)
			if err != nil {
				return err
			}
			all := statesAt(cmd.Context(), dir)
			if a.JSON {
				return cli.PrintJSON(a.Stdout, map[string]any{"hooks": all, "memory": memory.At(cmd.Context(), dir)})
			}
			now := time.Now()
			for _, s := range all {
				text := s.Text(now) + s.Others()
				if s.Installed && s.Error == "" {
					text = "installed in " + s.File + s.Others() + ", " + s.activity(now)
				}
				if s.Hint != "" {
					text += ": " + s.Hint
				}
				if _, err := fmt.Fprintf(a.Stdout, "%-9s %s\n", s.Agent, text); err != nil {
					return err
				}
			}
			if text := Sharing(all, now); text != "" {
				if _, err := fmt.Fprintln(a.Stdout, text); err != nil {
					return err
				}
			}
			if s := memory.At(cmd.Context(), dir); s.Kept {
				_, err = fmt.Fprintf(a.Stdout, "%-9s %s\n", "memory", s.Text())
			}
			return err
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	dirFlag(cmd, &dir)
	return cmd
}

// anyInstalled reports whether an agent's hooks are installed in dir. It returns true if it cannot read the agent's
// configuration.
func anyInstalled(dir string) bool {
	for _, agent := range agenthook.Agents() {
		if in, err := agenthook.Installed(dir, agent); in.Yes || err != nil {
			return true
		}
	}
	return false
}

// agentAndDir parses the name of an agent and determines the directory to configure.
func agentAndDir(verb, name, dir string) (agenthook.Agent, string, error) {
	agent, err := agenthook.ParseAgent(name)
	if err != nil {
		return "", "", &control.Error{Code: control.ExitUsage, Verb: verb, Cause: err.Error(),
			Hint: "artifactfs agent --help"}
	}
	dir, err = configuredDir(dir)
	return agent, dir, err
}

// configuredDir returns the absolute path of the directory to configure: the directory dir or, if dir is empty, the top
// of the git working tree that contains the current directory.
func configuredDir(dir string) (string, error) {
	if dir == "" {
		dir = "."
		if out, err := gitcmd.AsUser(context.Background(), "rev-parse", "--show-toplevel").Output(); err == nil {
			dir = strings.TrimSuffix(string(out), "\n")
		}
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return "", &control.Error{Code: control.ExitUsage, Verb: "configure hooks", Object: dir,
			Cause: "path is not a directory"}
	}
	return dir, nil
}
