// Package agents contains the commands "agent" and "session hook", by which coding agents record their work in a
// session.
package agents

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
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
		Long: `Agent install adds hooks to the configuration of a coding agent. The agent then records its work in the session
of the mount in which it runs. Each prompt, tool call and result is appended to the transcript (artifactfs session
transcript). A checkpoint is made before each tool that may change files, and at the end of each turn. Each commit of
the agent gets a note (git log --notes=agent). Text that looks like a secret is removed before anything is written.

An agent waits for a hook for at most ` + agenthook.Timeout.String() + `. A hook that fails prints the reason on stderr, and never stops the
agent.

The hooks of claude also make and remove the working trees of claude --worktree and of its sub-agents, as artifactfs
worktree does: beside the mount, or the clone, at DIR, in DIR-worktrees.

agent     configuration, relative to the directory   notes
claude    .claude/settings.local.json
codex     .codex/hooks.json                          Codex asks whether the hooks are trusted: /hooks
copilot   .github/hooks/artifactfs.json
cursor    .cursor/hooks.json
gemini    .gemini/settings.json
opencode  .opencode/plugins/artifactfs.js

If agent install creates the file, it excludes the file from git (info/exclude) and from checkpoints, because the file
is specific to this machine. If the file exists, its other settings are kept.`,
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
}

// installCommand returns the command "agent install". A second installation changes nothing.
func installCommand(a *cli.App) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:     "install claude|codex|copilot|cursor|gemini|opencode",
		Short:   "Add the hooks to an agent's configuration",
		Long:    "Install adds the hooks to the configuration of the agent. If they are installed already, it changes nothing.",
		Example: "  artifactfs agent install claude",
		Args:    cli.Arguments(1, 1, "AGENT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			agent, dir, err := agentAndDir("install hooks", args[0], dir)
			if err != nil {
				return err
			}
			program, err := cli.OwnCommand()
			if err != nil {
				return cli.Failure("install hooks", args[0], err)
			}
			change, err := agenthook.Install(dir, agent, program)
			if err != nil {
				return cli.Failure("install hooks", args[0], err)
			}
			if gitDir, err := gitDirOf(cmd.Context(), dir); err == nil {
				if err := agenthook.MakeDir(gitDir); err != nil {
					return cli.Failure("install hooks", args[0], err)
				}
			}
			done := "installed the hooks of " + args[0] + " in " + change.Path
			if !change.Changed {
				done = "the hooks of " + args[0] + " are installed in " + change.Path
			}
			if err := printHooks(a, agent, change, done); err != nil || a.Quiet {
				return err
			}
			if agent == agenthook.Codex && change.Changed {
				fmt.Fprintln(a.Stderr, "artifactfs: Codex runs the hooks after you have trusted them (/hooks in Codex)")
			}
			return nil
		},
		ValidArgsFunction: completeAgents,
	}
	dirFlag(cmd, &dir)
	return cmd
}

// uninstallCommand returns the command "agent uninstall". If no hooks are installed, the command succeeds.
func uninstallCommand(a *cli.App) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:     "uninstall claude|codex|copilot|cursor|gemini|opencode",
		Short:   "Remove the hooks from an agent's configuration",
		Long:    "Uninstall removes the hooks from the configuration of the agent, and keeps all other settings.",
		Example: "  artifactfs agent uninstall claude",
		Args:    cli.Arguments(1, 1, "AGENT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			agent, dir, err := agentAndDir("uninstall hooks", args[0], dir)
			if err != nil {
				return err
			}
			change, err := agenthook.Uninstall(dir, agent)
			if err != nil {
				return cli.Failure("uninstall hooks", args[0], err)
			}
			if gitDir, err := gitDirOf(cmd.Context(), dir); err == nil {
				// If no hooks are left, also remove the state that was stored between two events.
				err := agenthook.ForgetFired(gitDir, agent)
				if err == nil && !anyInstalled(dir) {
					err = agenthook.ForgetAll(gitDir)
				}
				if err != nil {
					return cli.Failure("uninstall hooks", args[0], err)
				}
			}
			done := "removed the hooks of " + args[0] + " from " + change.Path
			if !change.Changed {
				done = "no hooks of " + args[0] + " are installed in " + change.Path
			}
			return printHooks(a, agent, change, done)
		},
		ValidArgsFunction: completeAgents,
	}
	dirFlag(cmd, &dir)
	return cmd
}

// printHooks prints how an agent's configuration was changed.
func printHooks(a *cli.App, agent agenthook.Agent, c agenthook.Change, done string) error {
	if a.JSON {
		return cli.PrintJSON(a.Stdout, agentChange{string(agent), c.Path, c.Changed, c.Tracked})
	}
	_, err := fmt.Fprintln(a.Stdout, done)
	if c.Changed && c.Tracked && !a.Quiet {
		fmt.Fprintf(a.Stderr, "artifactfs: git tracks %s, so git status shows it as modified\n", c.Path)
	}
	return err
}

// statusCommand returns the command "agent status".
func statusCommand(a *cli.App) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show for which agents the hooks are installed, and when they have fired",
		Long: `Status prints a line for each agent: whether the hooks are installed, in which file, and when the agent has run
them last. An agent skips hooks that its user has not trusted, without a message. So hooks that have never fired record
nothing, and the line says what to do. artifactfs status and artifactfs doctor print the same for mounts.

If several agents work in the directory at the same time, another line names them.`,
		Example: "  artifactfs agent status --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := configuredDir(dir)
			if err != nil {
				return err
			}
			all := statesAt(cmd.Context(), dir)
			if a.JSON {
				return cli.PrintJSON(a.Stdout, map[string]any{"hooks": all})
			}
			now := time.Now()
			for _, s := range all {
				text := s.Text(now)
				if s.Installed && s.Error == "" {
					text = "installed in " + s.File + ", " + s.activity(now)
				}
				if s.Hint != "" {
					text += ": " + s.Hint
				}
				if _, err := fmt.Fprintf(a.Stdout, "%-9s %s\n", s.Agent, text); err != nil {
					return err
				}
			}
			if text := Sharing(all, now); text != "" {
				_, err = fmt.Fprintln(a.Stdout, text)
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

// gitDirOf returns the absolute path of a working tree's git directory.
func gitDirOf(ctx context.Context, dir string) (string, error) {
	out, err := gitcmd.AsUser(ctx, "-C", dir, "rev-parse", "--absolute-git-dir").Output()
	return strings.TrimSuffix(string(out), "\n"), err
}
