package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/sessions"
	"github.com/artifactfs/artifactfs/host/mcp"
)

// mcpCommand returns the command "mcp", a server of the Model Context Protocol on stdin and stdout (package mcp).
func mcpCommand(a *cli.App) *cobra.Command {
	var list string
	cmd := &cobra.Command{
		Use:   "mcp [DIR|SESSION] [--tools LIST]",
		Short: "Serve the tools of a session to a coding agent, over the Model Context Protocol",
		Long: `Mcp offers the tools checkpoint, log, diff, restore, fork, status and describe to a coding agent. The agent
starts this command and exchanges messages of the Model Context Protocol with it over stdin and stdout.

--tools offers others. LIST has names of tools, separated by commas; default for the seven tools above; all for these
and compare, note, annotate, annotations, transcript, undo, request_approval, approvals, cache_get, cache_put, lock,
unlock, locks and prefetch; or +NAME for the default and one more. The tool promote, which pushes to the mounted
repository, is only offered if LIST has its name. There is no tool that grants an approval. Each tool takes some of the
agent's context, even if it is never called.

The tools operate on the session that is mounted at DIR, or that has the name SESSION. The default is the session whose
mount contains the current directory. The session is looked up at each call of a tool, so it can be mounted later.

A tool returns the JSON that the command of the same name prints with --json; log and status return a part of it, and
status with "full" returns everything. A failure is a tool error with the code, message and hint that --json prints.`,
		Example: `  claude mcp add artifactfs -- artifactfs mcp
  codex mcp add artifactfs -- artifactfs mcp /srv/app
  gemini mcp add artifactfs artifactfs mcp /srv/app
  claude mcp add artifactfs -- artifactfs mcp --tools +lock,+unlock,+locks
  claude mcp add artifactfs -- artifactfs mcp --tools all,promote
  artifactfs mcp --help    # --json is not possible: the output is in the protocol's format`,
		Args: cli.Arguments(0, 1, "[DIR|SESSION]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.JSON {
				return cli.Usage(cmd, errors.New("--json is not possible: the output is in the MCP protocol"))
			}
			tools, err := mcp.ParseTools(list)
			if err != nil {
				return cli.Usage(cmd, fmt.Errorf("--tools: %w", err))
			}
			o := mcp.Options{Find: findSession(a, cli.First(args)), Tools: tools}
			err = mcp.Serve(cmd.Context(), versionText(), o, os.Stdin, a.Stdout)
			if errors.Is(err, context.Canceled) {
				return nil // a signal ends the server without an error, because agents stop the server in this way
			}
			return err
		},
		ValidArgsFunction: sessions.CompleteSessions(a, 1),
	}
	cmd.Flags().StringVar(&list, "tools", "default", "offer the tools in `LIST`: names, default, all, or +NAME")
	cli.CompleteFlag(cmd, "tools", "default", "all")
	return cmd
}

// findSession returns a function that looks up the mount of a session at each call. The parameter of is the name of the
// session or a directory in its mount, in the form of the flag -C.
func findSession(a *cli.App, of string) mcp.Find {
	return func(ctx context.Context, verb string) (mcp.Session, error) {
		w, err := sessions.SessionOf(ctx, a, verb, of)
		if err != nil {
			return mcp.Session{}, err
		}
		m, err := w.Mounted(verb)
		if err != nil || verb != "status" {
			return mcp.Session{Client: m.Client, Mount: m.MountStatus}, err
		}
		// Request the status again, because SessionOf omits the numbers for which the daemon has to count files.
		status, err := m.Client.Status(ctx)
		for _, s := range status.Mounts {
			if s.Dir == m.Dir {
				return mcp.Session{Client: m.Client, Mount: s}, err
			}
		}
		if err == nil {
			err = cli.NotMounted(verb, m.Dir)
		}
		return mcp.Session{}, err
	}
}
