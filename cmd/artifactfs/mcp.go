package main

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/sessions"
	"github.com/artifactfs/artifactfs/host/mcp"
)

// mcpCommand returns the command "mcp", a server of the Model Context Protocol on stdin and stdout (package mcp).
func mcpCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "mcp [DIR|SESSION]",
		Short: "Serve the tools of a session to a coding agent, over the Model Context Protocol",
		Long: `Mcp offers the tools checkpoint, log, diff, compare, restore, fork, promote, note, annotate, annotations, transcript,
request_approval, approvals, cache_get, cache_put, lock, unlock, locks, describe, status and prefetch to a coding agent.
The agent starts this command and exchanges messages of the Model Context Protocol with it over stdin and stdout. There
is no tool that grants an approval.

The tools operate on the session that is mounted at DIR, or that has the name SESSION. The default is the session whose
mount contains the current directory. The session is looked up at each call of a tool, so it can be mounted later.

A tool returns the JSON that the command of the same name prints with --json. A failure is a tool error with the code,
message and hint that --json prints.`,
		Example: `  claude mcp add artifactfs -- artifactfs mcp
  codex mcp add artifactfs -- artifactfs mcp /srv/app
  gemini mcp add artifactfs artifactfs mcp /srv/app
  artifactfs mcp --help    # --json is not possible: the output is in the protocol's format`,
		Args: cli.Arguments(0, 1, "[DIR|SESSION]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.JSON {
				return cli.Usage(cmd, errors.New("--json is not possible: the output is in the MCP protocol"))
			}
			err := mcp.Serve(cmd.Context(), versionText(), findSession(a, cli.First(args)), os.Stdin, a.Stdout)
			if errors.Is(err, context.Canceled) {
				return nil // a signal ends the server without an error, because agents stop the server in this way
			}
			return err
		},
		ValidArgsFunction: sessions.CompleteSessions(a, 1),
	}
}

// findSession returns a function that looks up the mount of a session at each call. The parameter of is the name of the session
// or a directory in its mount, in the form of the flag -C.
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
