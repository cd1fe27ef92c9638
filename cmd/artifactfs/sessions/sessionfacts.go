package sessions

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
)

// sessionFactCommand returns the command "session fact" with the subcommands add, list and remove.
func sessionFactCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:                   "fact COMMAND",
		DisableFlagsInUseLine: true,
		Short:                 "Store short facts about the work, one by one",
		Long: `Fact stores short texts for the users and agents who resume a session. Facts are stored separately from the transcript,
so erasing records does not remove them. They are pushed to the session remote. Text that looks like a secret is
removed.`,
		Example: `  artifactfs session fact add 'the tests need port 5432'
  artifactfs session fact list
  artifactfs session fact remove 01M80Q4Z50EZKC5YR3HTMPRYYQ`,
		Args: commandOf("session fact"),
		RunE: func(cmd *cobra.Command, args []string) error { return cmd.Help() },
	}
	var of string
	add := &cobra.Command{
		Use:     "add TEXT",
		Short:   "Add a fact to a session",
		Long:    `Add stores TEXT as a fact of the session, and prints the id of the fact.`,
		Example: `  artifactfs session fact add 'the tests need port 5432' -C fix-login`,
		Args:    cli.Arguments(1, 1, "TEXT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.TrimSpace(args[0]) == "" {
				return cli.Usage(cmd, errors.New("TEXT is empty"))
			}
			reply, err := sessionFacts(cmd.Context(), a, "add fact", of, control.SessionFactsRequest{Add: args})
			if err != nil || a.JSON {
				return err
			}
			_, err = fmt.Fprintln(a.Stdout, reply.Facts[len(reply.Facts)-1].ID)
			return err
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	list := &cobra.Command{
		Use:     "list",
		Short:   "List the facts of a session",
		Long:    `List prints the facts of the session, each with its id, oldest first.`,
		Example: `  artifactfs session fact list -C fix-login --json | jq -r '.facts[].text'`,
		Args:    cli.Arguments(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, args []string) error {
			reply, err := sessionFacts(cmd.Context(), a, "list facts", of, control.SessionFactsRequest{})
			if err != nil || a.JSON {
				return err
			}
			for _, f := range reply.Facts {
				if _, err := fmt.Fprintf(a.Stdout, "%s  %s\n", f.ID, cli.OneLine(f.Text)); err != nil {
					return cli.Printed(err)
				}
			}
			return nil
		},
	}
	remove := &cobra.Command{
		Use:     "remove ID",
		Short:   "Remove a fact of a session",
		Long:    `Remove removes the fact with this ID from the session. Its text remains in the history of the ref that stores the facts.`,
		Example: `  artifactfs session fact remove 01M80Q4Z50EZKC5YR3HTMPRYYQ`,
		Args:    cli.Arguments(1, 1, "ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, err := sessionFacts(cmd.Context(), a, "remove fact", of,
				control.SessionFactsRequest{Remove: strings.ToUpper(args[0])})
			return err
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	for _, c := range []*cobra.Command{add, list, remove} {
		ofFlag(a, c, &of)
	}
	cmd.AddCommand(add, list, remove)
	return cmd
}

// sessionHandoffCommand returns the command "session handoff". A session has at most one handoff.
func sessionHandoffCommand(a *cli.App) *cobra.Command {
	var of, set string
	cmd := &cobra.Command{
		Use:   "handoff [--set TEXT|-]",
		Short: "Show or write the one text that says where the work stands",
		Long: `Handoff prints the one text that describes the state of the session for the next user, such as which tasks are finished
and which are not. --set replaces the text; an empty text removes it. Like facts, the handoff is stored separately from
the transcript and pushed to the session remote.`,
		Example: `  artifactfs session handoff
  artifactfs session handoff --set 'login works; the tests of logout do not'
  agent --summary | artifactfs session handoff --set -`,
		Args: cli.Arguments(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, args []string) error {
			r := control.SessionFactsRequest{}
			if cmd.Flags().Changed("set") {
				if set == "-" {
					text, err := io.ReadAll(io.LimitReader(os.Stdin, maxNote+1))
					if err != nil {
						return fmt.Errorf("read stdin: %w", err)
					}
					set = string(bytes.TrimSpace(text))
				}
				if len(set) > maxNote {
					return &control.Error{Code: control.ExitUsage, Verb: "handoff",
						Cause: "text is longer than " + cli.BytesOf(maxNote)}
				}
				r.Handoff = &set
			}
			reply, err := sessionFacts(cmd.Context(), a, "handoff", of, r)
			if err != nil || a.JSON || r.Handoff != nil || reply.Handoff == "" {
				return err
			}
			_, err = fmt.Fprintln(a.Stdout, strings.TrimRight(reply.Handoff, "\n"))
			return err
		},
	}
	cmd.Flags().StringVar(&set, "set", "", "replace the handoff by `TEXT`; -: read the text from stdin")
	ofFlag(a, cmd, &of)
	return cmd
}

// sessionFacts sends a request to list or change the facts and the handoff of a session, and prints the reply if --json
// is set.
func sessionFacts(ctx context.Context, a *cli.App, verb, of string,
	r control.SessionFactsRequest) (control.SessionFactsReply, error) {
	w, err := SessionOf(ctx, a, verb, of)
	if err != nil {
		return control.SessionFactsReply{}, err
	}
	r.Of = w.of
	reply, err := w.client.SessionFacts(ctx, r)
	if err != nil {
		return reply, cli.Failure(verb, w.name(), err)
	}
	printRedacted(a.Stderr, reply.Redacted)
	if a.JSON {
		return reply, cli.PrintJSON(a.Stdout, reply)
	}
	return reply, nil
}
