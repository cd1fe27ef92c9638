package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/agents"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/hosting"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/mounts"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/serving"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/sessions"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/worktrees"
	"github.com/artifactfs/artifactfs/control"
)

// rootText is the introduction of the help of the root command.
const rootText = `artifactfs mounts a git repository at a directory. Its files and directories can be listed after about one network round
trip, however large the repository is. File contents are fetched when they are read, and in the background before they
are read.

Changes and commits made in a mount belong to a session. The session is saved automatically, in checkpoints. With mount
--session-remote it is also pushed to a git repository of yours, from which another machine can resume it.

A background daemon serves the mounts. The first mount starts the daemon, and it exits after 5 minutes without a mount.
mount --foreground serves a mount without the daemon.`

// exitCodes is the part of the help text that lists the exit codes of commands.
const exitCodes = `Exit codes: 0 success; 1 failure; 2 wrong arguments; 3 remote unreachable, access refused, or not found; 4 no such mount
or session; 5 success, but not everything is on the session remote yet. With --json, a command that fails prints the
error as the last line of stdout: {"error":{"code":"not-found","message":"...","hint":"...","retryable":false}};
doc/internals/protocol/README.md lists the codes.`

// rootTail ends the help of the root command without --all. It names the commands that this help does not list.
const rootTail = `For coding agents: agent, mcp
For operators: daemon, csi, keep, relay, doctor, top, ui, cache, repo, ...: artifactfs help --all lists all commands.
Topics: artifactfs help checkpoints, artifactfs help exit-codes
`

// addCommands adds all commands to root, in groups. Without --all, the help of root lists only the commands of the
// first groups.
func addCommands(root *cobra.Command, a *cli.App) {
	// The help lists commands in the order below, which is roughly the order in which a user needs them.
	cobra.EnableCommandSorting = false
	cli.SetBrief(root, cli.Brief{Text: rootText, Tail: rootTail})
	oldAgent := cli.Renamed(agents.AgentCommand(a), "hooks", "artifactfs agent") // scripts use this name
	cli.AddGroups(root,
		cli.Group{Title: "Work", Commands: []*cobra.Command{
			mounts.MountCommand(a), statusCommand(a), switchCommand(a), checkpointCommand(a), syncCommand(a),
			unmountCommand(a)}},
		cli.Group{Title: "Sessions", Commands: []*cobra.Command{
			sessions.SessionCommand(a, agents.HookCommand(a), oldAgent), worktrees.WorktreeCommand(a),
			runCommand(a)}},
		cli.Group{Title: "More", Commands: []*cobra.Command{serverCommands["serve"](a)}},
		cli.Group{Title: "Contents and branches of mounts", OnlyAll: true, Commands: []*cobra.Command{
			prefetchCommand(a), mounts.RefreshCommand(a), profileCommand(a), serving.CredentialCommand(a)}},
		cli.Group{Title: "Watch and repair", OnlyAll: true, Commands: []*cobra.Command{
			listCommand(a), topCommand(a), serverCommands["ui"](a), traceCommand(a), doctorCommand(a), cacheCommand(a)}},
		cli.Group{Title: "Repositories of a server", OnlyAll: true, Commands: []*cobra.Command{
			hosting.RepoCommand(a), hosting.TokenCommand(a), hosting.NamespaceCommand(a)}},
		cli.Group{Title: "Processes of a host or a cluster", OnlyAll: true, Commands: []*cobra.Command{
			serving.DaemonCommand(a), serving.KeepCommand(a), serving.CSICommand(a), serverCommands["relay"](a)}},
		cli.Group{Title: "Agents, shells and this program", OnlyAll: true, Commands: []*cobra.Command{
			agents.AgentCommand(a), mcpCommand(a), completionCommand(a), versionCommand(a)}},
	)
	// These commands are hidden.
	root.AddCommand(serving.WorkerCommand(a), serving.PromisorCommand(a), serverCommands["man"](a))
	root.InitDefaultHelpCmd()
}

// unknownCommand returns the error for a command that root does not have. Its hint names a command of "session" with
// this name, or a command with a similar name.
func unknownCommand(root *cobra.Command, name string) error {
	e := &control.Error{Code: control.ExitUsage, Cause: fmt.Sprintf("unknown command %q", name), Hint: "artifactfs --help"}
	sub, _, err := root.Find([]string{"session", name})
	if err == nil && sub.HasParent() && sub.Parent() != root && sub.IsAvailableCommand() {
		e.Hint = "did you mean session " + sub.Name() + "?"
	} else if near := root.SuggestionsFor(name); len(near) > 0 {
		e.Hint = "did you mean " + near[0] + "?"
	}
	return e
}

// topic is a text that the command "help" prints but that does not describe a command.
type topic struct {
	name, about, text string
}

// topics lists the topics.
var topics = []topic{
	{"checkpoints", "how to name a checkpoint", sessions.CheckpointNames},
	{"exit-codes", "exit codes and errors", exitCodes},
}

// helpCommand returns the command "help". It prints a topic, or the same text as the flag --help. It is hidden, because
// each help text mentions --help.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND|TOPIC] [--all]", Hidden: true,
		Short: "Print the help of a command, or a topic",
		Long: `Help prints what COMMAND --help prints, and the topics checkpoints and exit-codes. --all prints all commands and all
flags.`,
		Example: "  artifactfs help session restore\n  artifactfs help mount --all\n  artifactfs help checkpoints",
		RunE: func(cmd *cobra.Command, args []string) error {
			if i := slices.IndexFunc(topics, func(t topic) bool { return len(args) == 1 && t.name == args[0] }); i >= 0 {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), topics[i].text)
				return err
			}
			of, rest, err := root.Find(args)
			if err == nil && len(rest) > 0 {
				err = root.Args(root, args)
			}
			if err != nil {
				return err
			}
			of.InitDefaultHelpFlag()
			return of.Help()
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
			of, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			var all []cobra.Completion
			for _, c := range of.Commands() {
				if c.IsAvailableCommand() && strings.HasPrefix(c.Name(), word) {
					all = append(all, cobra.CompletionWithDesc(c.Name(), c.Short))
				}
			}
			for _, t := range topics {
				if of == root && strings.HasPrefix(t.name, word) {
					all = append(all, cobra.CompletionWithDesc(t.name, t.about))
				}
			}
			return all, cobra.ShellCompDirectiveNoFileComp
		},
	}
}
