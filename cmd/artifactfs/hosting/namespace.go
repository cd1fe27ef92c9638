package hosting

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/server/client"
)

// NamespaceCommand returns the command "namespace".
func NamespaceCommand(a *cli.App) *cobra.Command {
	var o Connection
	return o.group(&cobra.Command{
		Use:     "namespace",
		Aliases: []string{"ns"},
		Short:   "Create, list and delete namespaces of a server",
		Long: `Namespace manages the namespaces of a server, which are groups of repositories. repo create and mount --create create
a missing namespace automatically.`,
		Example: `  artifactfs namespace create team
  artifactfs namespace list`,
	}, namespaceCreateCommand(a, &o), namespaceListCommand(a, &o), namespaceShowCommand(a, &o),
		namespaceDeleteCommand(a, &o),
		namespaceTokenCommand(a, &o), namespaceRetentionCommand(a, &o))
}

// namespaceCreateCommand returns the command "namespace create".
func namespaceCreateCommand(a *cli.App, o *Connection) *cobra.Command {
	var jurisdiction string
	cmd := &cobra.Command{
		Use:     "create NAMESPACE",
		Short:   "Create a namespace",
		Long:    `Create creates an empty namespace. artifactfs serve stores and shows --jurisdiction, and ignores it otherwise.`,
		Example: `  artifactfs namespace create team`,
		Args:    cli.Arguments(1, 1, "NAMESPACE"),
		RunE: o.run(a, func(cmd *cobra.Command, c *Access, args []string) error {
			n, err := c.CreateNamespace(cmd.Context(), args[0], jurisdiction)
			if err != nil {
				return err
			}
			if a.JSON {
				return cli.PrintJSON(a.Stdout, n)
			}
			return PrintLine(a.Stdout, "created namespace "+n.Name)
		}),
	}
	ChoiceFlag(cmd, &jurisdiction, "", "jurisdiction", "where the server is to store the repositories", "eu", "us")
	return cmd
}

// namespaceListCommand returns the command "namespace list".
func namespaceListCommand(a *cli.App, o *Connection) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the namespaces of a server",
		Long:    `List prints a line for each namespace. With --json it prints {"namespaces":[...]}.`,
		Example: `  artifactfs namespace list
  artifactfs namespace list --json | jq -r '.namespaces[].namespace'`,
		Args: cli.Arguments(0, 0, "no arguments"),
		RunE: o.run(a, func(cmd *cobra.Command, c *Access, _ []string) error {
			return printList(a, "namespaces", 0, c.Namespaces(cmd.Context()), "NAME\tREPOSITORIES\tJURISDICTION\tUPDATED",
				func(n client.Namespace) string {
					return columns(n.Name, strconv.Itoa(n.Repos), cli.OrDash(n.Jurisdiction), cli.Ago(n.Updated, time.Now()))
				})
		}),
	}
}

// namespaceShowCommand returns the command "namespace show".
func namespaceShowCommand(a *cli.App, o *Connection) *cobra.Command {
	return &cobra.Command{
		Use:     "show NAMESPACE",
		Short:   "Show a namespace",
		Long:    `Show prints the properties of a namespace. repo list prints its repositories.`,
		Example: `  artifactfs namespace show team`,
		Args:    cli.Arguments(1, 1, "NAMESPACE"),
		RunE: o.run(a, func(cmd *cobra.Command, c *Access, args []string) error {
			n, err := c.Namespace(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.JSON {
				return cli.PrintJSON(a.Stdout, n)
			}
			fmt.Fprintln(a.Stdout, cli.OneLine(n.Name))
			cli.PrintLine(a.Stdout, "repos", "%d", n.Repos)
			cli.PrintLine(a.Stdout, "place", "%s", n.Jurisdiction)
			cli.PrintLine(a.Stdout, "created", "%s", localTime(n.Created))
			return nil
		}),
	}
}

// namespaceDeleteCommand returns the command "namespace delete".
func namespaceDeleteCommand(a *cli.App, o *Connection) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:     "delete NAMESPACE",
		Aliases: []string{"rm"},
		Short:   "Delete an empty namespace",
		Long:    `Delete deletes a namespace that has no repositories. It asks before it deletes, unless --yes is given.`,
		Example: `  artifactfs namespace delete team --yes`,
		Args:    cli.Arguments(1, 1, "NAMESPACE"),
		RunE: o.run(a, func(cmd *cobra.Command, c *Access, args []string) error {
			if err := c.confirm(a, "namespace "+args[0], yes); err != nil {
				return err
			}
			if err := c.DeleteNamespace(cmd.Context(), args[0]); err != nil {
				return err
			}
			return PrintDone(a, "deleted", args[0])
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// namespaceTokenCommand returns the command "namespace token".
func namespaceTokenCommand(a *cli.App, o *Connection) *cobra.Command {
	t := client.CreateControlToken{Role: "owner"}
	var ttl cli.Days
	cmd := &cobra.Command{
		Use:   "token NAMESPACE",
		Short: "Create a token for the REST API that is limited to a namespace",
		Long: `Token prints a token with which a user or a program can create, list, fork and delete the repositories of one namespace,
and make tokens for them. It needs an admin token. The server stores a hash of the token, so it cannot show the
token again. Other servers than artifactfs serve do not have such tokens.`,
		Example: `  artifactfs namespace token team --label 'build farm' --ttl 90d
  export ARTIFACTFS_SERVER_TOKEN=$(artifactfs namespace token team --scope read)`,
		Args: cli.Arguments(1, 1, "NAMESPACE"),
		RunE: o.run(a, func(cmd *cobra.Command, c *Access, args []string) error {
			t.Namespace, t.TTL = args[0], int(time.Duration(ttl)/time.Second)
			made, err := c.Extensions().CreateControlToken(cmd.Context(), t)
			if err != nil {
				return err
			}
			return printToken(a, made, "owner of "+args[0]+", "+made.Scope)
		}),
	}
	f := cmd.Flags()
	f.SortFlags = false
	ChoiceFlag(cmd, &t.Scope, client.Write, "scope", "what the token allows", client.Read, client.Write)
	f.Var(&ttl, "ttl", "how long the token is valid, such as 12h or 90d (default: until it is revoked)")
	f.StringVar(&t.Label, "label", "", "`TEXT` that lists and the audit log show")
	return cmd
}
