package hosting

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/server/client"
)

// TokenCommand returns the command "token".
func TokenCommand(a *cli.App) *cobra.Command {
	var o Connection
	return o.group(&cobra.Command{
		Use:   "token",
		Short: "Create, list, rotate and revoke tokens for repositories of a server",
		Long: `Token manages the tokens with which git reads and writes one repository of a server. git uses a token as the password,
with any user name.`,
		Example: `  artifactfs token create team/app --scope read --ttl 1h
  artifactfs token list team/app
  artifactfs token revoke team/app 01JD4X8ZQ8K2V6M3T0N5R7W9YB`,
	}, tokenCreateCommand(a, &o), tokenListCommand(a, &o), tokenRotateCommand(a, &o), tokenRevokeCommand(a, &o))
}

// denials lists the changes of a ref that a rule of a token can forbid.
var denials = []string{"no-push", "no-force-push", "append-only", "no-delete"}

// parseRule parses GLOB or GLOB=DENIAL+DENIAL, the value of --refs.
func parseRule(text string) (client.RefRule, error) {
	glob, rest, _ := strings.Cut(text, "=")
	r := client.RefRule{Glob: glob}
	if rest != "" {
		r.Deny = strings.Split(rest, "+")
	}
	for _, d := range r.Deny {
		if !slices.Contains(denials, d) {
			return r, fmt.Errorf("--refs %s: want GLOB or GLOB=DENIAL, where DENIAL is one of %s", text,
				strings.Join(denials, ", "))
		}
	}
	if glob == "" {
		return r, errors.New("--refs: glob is empty")
	}
	return r, nil
}

// tokenCreateCommand returns the command "token create".
func tokenCreateCommand(a *cli.App, o *Connection) *cobra.Command {
	var t client.CreateToken
	var ttl cli.Days
	var rules []string
	cmd := &cobra.Command{
		Use:   "create NAMESPACE/NAME",
		Short: "Create a token for a repository",
		Long: `Create prints a new token for a repository. The server stores a hash of the token, so it cannot show the token again.

--refs GLOB restricts a token to the refs that match GLOB; it may be repeated. GLOB=DENIAL denies a kind of change of
these refs: no-push, no-force-push, append-only (no forced push and no deletion) or no-delete; join several with +.
A glob, such as refs/heads/x-*, matches full names of refs; ** at its end matches any number of components.`,
		Example: `  artifactfs token create team/app --scope read --ttl 1h
  artifactfs token create team/app --label ci --ttl 30d
  artifactfs token create team/app --refs 'refs/heads/*=no-force-push+no-delete' --refs 'refs/notes/**'
  export ARTIFACTFS_TOKEN=$(artifactfs token create team/app)`,
		Args: cli.Arguments(1, 1, "NAMESPACE/NAME"),
		RunE: o.runRepo(a, func(cmd *cobra.Command, c *Access, n name, _ []string) error {
			t.Repo, t.TTL, t.Refs = n.repo, int(time.Duration(ttl)/time.Second), nil
			for _, text := range rules {
				r, err := parseRule(text)
				if err != nil {
					return cli.Usage(cmd, err)
				}
				t.Refs = append(t.Refs, r)
			}
			made, err := c.CreateToken(cmd.Context(), n.namespace, t)
			if err != nil {
				return err
			}
			return printToken(a, made, made.Scope)
		}),
	}
	f := cmd.Flags()
	f.SortFlags = false
	ChoiceFlag(cmd, &t.Scope, client.Write, "scope", "what the token allows", client.Read, client.Write)
	f.Var(&ttl, "ttl", "how long the token is valid, such as 1h or 30d, from 1m to 365d (default 1d)")
	f.StringVar(&t.Label, "label", "", "`TEXT` that lists and the audit log show")
	f.StringVar(&t.Actor, "actor", "", "`NAME` of the user or program that will use the token")
	f.StringVar(&t.Session, "for-session", "",
		"restrict the token to the refs that the session `NAME` writes; not with --refs")
	f.StringArrayVar(&rules, "refs", nil, "restrict the token to the refs that match `GLOB`, or GLOB=DENIAL+DENIAL")
	return cmd
}

// tokenListCommand returns the command "token list".
func tokenListCommand(a *cli.App, o *Connection) *cobra.Command {
	var state string
	cmd := &cobra.Command{
		Use:     "list NAMESPACE/NAME",
		Aliases: []string{"ls"},
		Short:   "List the tokens of a repository",
		Long:    `List prints a line for each token of a repository, the newest first. It prints no secrets.`,
		Example: `  artifactfs token list team/app
  artifactfs token list team/app --which all --json`,
		Args: cli.Arguments(1, 1, "NAMESPACE/NAME"),
		RunE: o.runRepo(a, func(cmd *cobra.Command, c *Access, n name, _ []string) error {
			return printList(a, "tokens", 0, c.Tokens(cmd.Context(), n.namespace, n.repo, state),
				"ID\tSCOPE\tSTATE\tEXPIRES\tLABEL\tSESSION",
				func(t client.Token) string {
					return columns(t.ID, t.Scope, t.State, localTime(t.Expires), cli.OrDash(t.Label), cli.OrDash(t.Session))
				})
		}),
	}
	ChoiceFlag(cmd, &state, "active", "which", "tokens to list", "active", "expired", "revoked", "all")
	return cmd
}

// tokenRotateCommand returns the command "token rotate".
func tokenRotateCommand(a *cli.App, o *Connection) *cobra.Command {
	return &cobra.Command{
		Use:   "rotate NAMESPACE[/NAME] ID",
		Short: "Replace a token by a new one with the same rights",
		Long: `Rotate revokes a token, ends running transfers that use it, and prints a new token with the same scope, refs and label,
which is valid for as long as the old one was when it was created. It fails if the token is revoked or has expired.`,
		Example: `  export ARTIFACTFS_TOKEN=$(artifactfs token rotate team/app 01JD4X8ZQ8K2V6M3T0N5R7W9YB)`,
		Args:    cli.Arguments(2, 2, "NAMESPACE[/NAME] ID"),
		RunE: o.run(a, func(cmd *cobra.Command, c *Access, args []string) error {
			namespace, _, _ := strings.Cut(args[0], "/")
			made, err := c.Extensions().RotateToken(cmd.Context(), namespace, args[1])
			if err != nil {
				return err
			}
			return printToken(a, made, made.Scope)
		}),
	}
}

// tokenRevokeCommand returns the command "token revoke".
func tokenRevokeCommand(a *cli.App, o *Connection) *cobra.Command {
	return &cobra.Command{
		Use:   "revoke NAMESPACE[/NAME] ID...",
		Short: "Revoke tokens",
		Long: `Revoke makes tokens invalid at once, and ends running transfers that use them. It succeeds for a token that is already
revoked.`,
		Example: `  artifactfs token revoke team/app 01JD4X8ZQ8K2V6M3T0N5R7W9YB
  artifactfs token list team/app --json | jq -r '.tokens[].id' | xargs artifactfs token revoke team/app`,
		Args: cli.Arguments(2, -1, "NAMESPACE[/NAME] ID..."),
		RunE: o.run(a, func(cmd *cobra.Command, c *Access, args []string) error {
			namespace, _, _ := strings.Cut(args[0], "/")
			for _, id := range args[1:] {
				if err := c.RevokeToken(cmd.Context(), namespace, id); err != nil {
					return err
				}
				if err := PrintDone(a, "revoked", id); err != nil {
					return err
				}
			}
			return nil
		}),
	}
}
